"""Decompress, check and recompress large batches in a thread, because they would block the event loop.

The thread handles one batch at a time, in pieces, which bounds its memory. Only the sender of such a batch waits, with
its later requests (docs/decisions/071, 072).
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from headrace.clock import now_ms
from headrace.errors import ErrorCode, KafkaError
from headrace.replication.batch_rules import PreparedBatch
from headrace.server.context import RequestContext
from headrace.storage.log.config import LogConfig
from headrace.wire.batch import CODEC_MASK, TRANSACTIONAL_FLAG
from headrace.wire.compression import UnpackedTooLargeError, codec_named
from headrace.wire.record_checks import COMPILED
from headrace.wire.validation import is_compressed, unpacked_at_once

TOPIC_IDS: Final = 13
"""The first version of Produce that refers to topics by id."""
MAX_AT_ONCE: Final = 2 * 1024 * 1024 if COMPILED else 128 * 1024
"""Bytes of records to check on the event loop in one turn: a few ms compiled, up to 20 ms uncompiled."""
LEAST_UNPACKED: Final = 1024
"""Smaller batches count as this many bytes, because they take as long."""
MAX_COMPRESSED_AT_ONCE: Final = 64 * 1024
"""Bytes of records to recompress on the event loop in one turn."""
MAX_WAITING: Final = 64 * 1024 * 1024
"""Maximum bytes of all batches that wait for the thread, and of the recompressed batches of one `prepare`. Further
batches are refused with a retriable error. A single batch may be larger."""
_FLAGS: Final = 22
"""Position of the low byte of a batch's attributes, which contains the codec."""
_FLAGS_SLICE: Final = slice(_FLAGS, _FLAGS + 1)
_NO_FLAGS: Final = b"\0"
_ONLY_TRANSACTIONAL: Final = bytes([TRANSACTIONAL_FLAG])

Requests: TypeAlias = Sequence[tuple[RequestContext, Any]]
Place: TypeAlias = tuple[int, int, int]
"""Position of a batch in several requests: the indexes of its request, topic and partition."""
Prepared: TypeAlias = Mapping[Place, PreparedBatch]


class Large(NamedTuple):
    """A batch for the thread, and the config of its topic."""

    place: Place
    batch: PreparedBatch
    config: LogConfig


class LargeBatches:
    """Selects and prepares the large batches of Produce requests. Call it on the event loop only."""

    def __init__(self, config_of: Callable[[RequestContext, Any], LogConfig | None]) -> None:
        """`config_of` returns the config of a topic in a request; None if the topic is unknown."""
        self._config_of = config_of
        self._turn = asyncio.Lock()
        self._waiting = 0

    def select(self, requests: Requests) -> tuple[list[Large], Prepared]:
        """Return the batches to prepare in the thread, and those that were decompressed or refused here."""
        size = 0
        found = NONE_LARGE
        for _, request in requests:
            for topic in request.topic_data:
                for data in topic.partition_data:
                    records = data.records
                    if records:
                        size += len(records)
                        flags = records[_FLAGS_SLICE]
                        if flags != _NO_FLAGS:
                            if flags != _ONLY_TRANSACTIONAL:
                                return self._classify(requests)
                            found = ONLY_TRANSACTIONAL
        if size <= MAX_COMPRESSED_AT_ONCE or (size <= MAX_AT_ONCE and not self._any_codec(requests)):
            return found
        return self._classify(requests)

    def _any_codec(self, requests: Requests) -> bool:
        """Return True if a topic sets its own codec (`compression.type`). Look up a topic in several requests once."""
        found: set[str | UUID] = set()
        for context, request in requests:
            by_name = context.api_version < TOPIC_IDS
            for topic in request.topic_data:
                key = topic.name if by_name else topic.topic_id
                if key in found:
                    continue
                config = self._config_of(context, topic)
                if config is not None:
                    if config.compression_type != "producer":
                        return True
                    found.add(key)
        return False

    def _classify(self, requests: Requests) -> tuple[list[Large], Prepared]:
        large: list[Large] = []
        prepared: dict[Place, PreparedBatch] = {}
        room = MAX_AT_ONCE
        room_to_compress = MAX_COMPRESSED_AT_ONCE
        room_to_wait = MAX_WAITING - self._waiting
        is_first = not self._waiting
        for place, records, config in self._batches(requests):
            needs_recompression = _takes_another_codec(config, records)
            allowed = min(room, room_to_compress) if needs_recompression else room
            body = None
            if is_compressed(records):
                fits = allowed > 0
                if fits:
                    try:
                        body = unpacked_at_once(records, allowed)
                    except UnpackedTooLargeError:
                        fits = False
                    except KafkaError:
                        pass  # the append reports it
                # a batch that failed counts as decompressed up to the limit
                used = max(0, allowed) if body is None else max(len(body), LEAST_UNPACKED)
            else:
                fits = len(records) <= allowed
                used = len(records) if fits else 0
            room -= used
            if needs_recompression:
                room_to_compress -= used
            if fits:
                if body is not None:
                    prepared[place] = PreparedBatch(records, body=body)
                continue
            batch = PreparedBatch(records)
            if is_first or len(records) <= room_to_wait:
                is_first = False
                large.append(Large(place, batch, config))
                room_to_wait -= len(records)
            else:
                batch.refuse(_busy())
                prepared[place] = batch
        return large, prepared

    def _batches(self, requests: Requests) -> Iterable[tuple[Place, bytes, LogConfig]]:
        for number, (context, request) in enumerate(requests):
            for topic_place, topic in enumerate(request.topic_data):
                # batches of an unknown topic are refused by the append
                config = self._config_of(context, topic) or LogConfig()
                for partition_place, data in enumerate(topic.partition_data):
                    if data.records:
                        yield (number, topic_place, partition_place), data.records, config

    async def prepare(self, large: Sequence[Large]) -> Prepared:
        size = sum(len(item.batch) for item in large)
        self._waiting += size
        made = 0
        try:
            async with self._turn:
                for _, batch, config in large:
                    if made > MAX_WAITING:
                        batch.refuse(_busy())
                        continue
                    await _in_thread(batch, config)
                    if batch.accepted is not None and batch.accepted.batch is not batch.data:
                        made += len(batch.accepted.batch)
        finally:
            self._waiting -= size
        return {item.place: item.batch for item in large}


NONE_LARGE: Final[tuple[list[Large], Prepared]] = ([], {})
"""The result for requests with small batches, neither compressed nor transactional."""
ONLY_TRANSACTIONAL: Final[tuple[list[Large], Prepared]] = ([], {})
"""The result for requests with small batches, uncompressed and partly transactional."""


def _takes_another_codec(config: LogConfig, records: bytes) -> bool:
    return (
        config.compression_type != "producer"
        and len(records) > _FLAGS
        and codec_named(config.compression_type) != records[_FLAGS] & CODEC_MASK
    )


def _busy() -> KafkaError:
    return KafkaError(
        ErrorCode.request_timed_out,
        f"more than {MAX_WAITING >> 20} MiB of large batches are waiting to be checked; retry",
    )


async def _in_thread(batch: PreparedBatch, config: LogConfig) -> None:
    work = asyncio.get_running_loop().run_in_executor(None, batch.prepare, config, now_ms())
    try:
        await asyncio.shield(work)
    except asyncio.CancelledError:
        # The thread stops after the current piece; wait until it can handle the next batch.
        batch.is_abandoned = True
        await asyncio.wait([work])
        raise
