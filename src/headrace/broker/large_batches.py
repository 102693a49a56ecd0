"""Batches so large that other clients would notice the check of their records: they are checked in a thread.

The check holds Python's lock, which it hands over whenever the event loop has waited for it as long as `headrace start`
lets it, half a millisecond. Who has sent such a batch waits for it, with all that it sends after it; nobody else does
(docs/decisions/071).
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from headrace.errors import ErrorCode, KafkaError
from headrace.wire.validation import PreparedBatch, check_ahead, refused_ahead, unpack_ahead

MAX_AT_ONCE: Final = 2 * 1024 * 1024
"""Bytes of records that the event loop checks in one turn: at worst, made for it, they take a fifth of a second."""
MAX_WAITING: Final = 64 * 1024 * 1024
"""Bytes of batches that may wait for the thread; more are refused with an error that clients retry."""
_FLAGS: Final = slice(22, 23)
"""The lower half of a batch's attributes: how it is compressed, above all."""
_NO_FLAGS: Final = b"\0"

Prepared = Mapping[int, PreparedBatch]
"""Batches with what was done ahead of `validate_produced`, by the identity of those that were sent."""


class LargeBatches:
    """Finds and checks the large batches of Produce requests. Used by the thread of the event loop alone."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._waiting = 0

    def found_in(self, requests: Iterable[tuple[Any, Any]]) -> tuple[list[bytes], Prepared]:
        """The batches that are to be checked in the thread, and what others that are compressed unpack to."""
        size = 0
        is_plain = True
        for _, request in requests:
            for topic in request.topic_data:
                for data in topic.partition_data:
                    records = data.records
                    if records:
                        size += len(records)
                        if records[_FLAGS] != _NO_FLAGS:
                            is_plain = False
        return _NOTHING if is_plain and size <= MAX_AT_ONCE else self._sorted(requests)

    def _sorted(self, requests: Iterable[tuple[Any, Any]]) -> tuple[list[bytes], Prepared]:
        large: list[bytes] = []
        prepared: dict[int, PreparedBatch] = {}
        room = MAX_AT_ONCE
        room_to_wait = MAX_WAITING - self._waiting
        for batch in _batches(requests):
            unpacked = unpack_ahead(batch, room) if room > 0 else None
            if unpacked is not None:
                prepared[id(batch)] = unpacked
                room -= len(batch if unpacked.body is None else unpacked.body)
            elif len(batch) <= room_to_wait:
                large.append(batch)
                room_to_wait -= len(batch)
            else:
                prepared[id(batch)] = refused_ahead(batch, _busy())
        return large, prepared

    async def checked(self, batches: Sequence[bytes]) -> Prepared:
        """What `check_ahead` makes of each of them."""
        size = sum(map(len, batches))
        self._waiting += size
        try:
            async with self._turn:
                return {id(batch): await _in_thread(batch) for batch in batches}
        finally:
            self._waiting -= size


_NOTHING: Final[tuple[list[bytes], Prepared]] = ([], {})


def _busy() -> KafkaError:
    return KafkaError(
        ErrorCode.request_timed_out, f"more than {MAX_WAITING >> 20} MiB of large batches wait to be checked; try again"
    )


def _batches(requests: Iterable[tuple[Any, Any]]) -> list[bytes]:
    return [
        data.records
        for _, request in requests
        for topic in request.topic_data
        for data in topic.partition_data
        if data.records
    ]


async def _in_thread(batch: bytes) -> PreparedBatch:
    work = asyncio.get_running_loop().run_in_executor(None, check_ahead, batch)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        # The thread goes on, and the next one's turn comes when it is done.
        await asyncio.wait([work])
        raise
