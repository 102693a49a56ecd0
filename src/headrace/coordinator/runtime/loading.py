"""Reading a shard's partition of `__consumer_offsets` back into memory, a slice of time at a time."""

import logging
from collections.abc import Callable, Iterable, Iterator

from headrace.coordinator.groups.shard import GroupShard
from headrace.errors import KafkaError
from headrace.types import Buffer
from headrace.wire.batch import BatchHeader
from headrace.wire.records import batch_headers, records_of, uncompressed_body

log = logging.getLogger(__name__)

_COMMIT_MARKER = 1
_RECORDS_PER_STEP = 200


def load(shard: GroupShard, batches: Iterable[Buffer], now_ms: Callable[[], int], name: str) -> Iterator[int]:
    """Replay `batches` (each buffer holds whole batches) into `shard`; yields the records replayed, now and then.

    Raises KafkaError(corrupt_message) for a batch that cannot be read; a single bad record is logged and passed over.
    """
    count = 0
    for data in batches:
        for position, header in batch_headers(data):
            body = uncompressed_body(header, data, position)
            if header.is_control:
                _end_transaction(shard, header, body)
                continue
            producer_id = header.producer_id if header.is_transactional else -1
            for record in records_of(header, body):
                count += 1
                if count % _RECORDS_PER_STEP == 0:
                    yield count
                if record.key is None:
                    continue
                try:
                    shard.replay_bytes(
                        record.key, record.value, record.offset, now_ms=now_ms(), producer_id=producer_id
                    )
                except (KafkaError, UnicodeDecodeError) as error:
                    log.error("%s: the record at offset %d is passed over: %s", name, record.offset, error)
    yield count


def _end_transaction(shard: GroupShard, header: BatchHeader, body: bytes) -> None:
    for record in records_of(header, body):
        # A marker's key is its version and type, both int16.
        if record.key is not None and len(record.key) >= 4:
            is_commit = int.from_bytes(record.key[2:4], "big") == _COMMIT_MARKER
            shard.offsets.end_transaction(header.producer_id, committed=is_commit)
