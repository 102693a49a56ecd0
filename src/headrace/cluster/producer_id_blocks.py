"""Allocate blocks of producer ids to brokers (KIP-730)."""

import asyncio
from typing import Final

from headrace.cluster import znodes
from headrace.cluster.failures import StoreFailures
from headrace.cluster.loading import decoded
from headrace.cluster.store import BadVersionError, MetadataStore
from headrace.errors import ErrorCode, KafkaError

PRODUCER_IDS_PER_BLOCK: Final = 1000
_MAX_PRODUCER_ID: Final = 2**63 - 1


class ProducerIdBlocks:
    """Allocates blocks. The store contains the latest one."""

    def __init__(self, store: MetadataStore, broker_id: int, failures: StoreFailures) -> None:
        self._store = store
        self._broker_id = broker_id
        self._failures = failures

    async def allocate(self) -> tuple[int, int]:
        """Allocate a block of ids, and return its first id and its size.

        Raises KafkaError: coordinator_load_in_progress, which producers retry, if the block cannot be written;
        unknown_server_error if no ids are left.
        """
        return await asyncio.shield(self._allocate())

    async def _allocate(self) -> tuple[int, int]:
        path = znodes.PRODUCER_ID_BLOCK
        with self._failures.answering(ErrorCode.coordinator_load_in_progress, ErrorCode.coordinator_load_in_progress):
            while True:
                node = await self._store.get(path)
                first = decoded(path, znodes.decode_producer_ids, node.data)[1] + 1 if node.data else 0
                last = first + PRODUCER_IDS_PER_BLOCK - 1
                if last > _MAX_PRODUCER_ID:
                    raise KafkaError(ErrorCode.unknown_server_error, "This cluster has used up all producer ids.")
                block = znodes.encode_producer_ids(self._broker_id, first, last)
                try:
                    await self._store.set(path, block, node.stat.version)
                except BadVersionError:
                    continue
                self._failures.note_written()
                return first, PRODUCER_IDS_PER_BLOCK

    async def skip(self, last: int) -> None:
        """Skip all ids up to `last`, which are in use. Raises KafkaError."""
        path = znodes.PRODUCER_ID_BLOCK
        with self._failures.answering():
            node = await self._store.get(path)
            if not node.data or decoded(path, znodes.decode_producer_ids, node.data)[1] < last:
                await self._store.set(path, znodes.encode_producer_ids(self._broker_id, 0, last), node.stat.version)
