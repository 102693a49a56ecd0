"""Reads the log of one partition, by offset or by timestamp."""

import time
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from headrace.errors import ErrorCode, KafkaError
from headrace.storage.files.log_file import FileSlice
from headrace.storage.log.indexes.index import CorruptIndexError
from headrace.storage.log.indexes.txn_index import AbortedTransaction
from headrace.storage.log.segment import Segment
from headrace.storage.log.segments import Segments
from headrace.storage.log.state import LogState
from headrace.storage.log.timestamps import max_timestamp, offset_for_timestamp

_T = TypeVar("_T")
_ATTEMPTS: Final = 5
_PAUSE_S: Final = 0.005


class LogReader:
    """Reads a log within its bounds. The only thing it changes is the cache of positions in `Segments`."""

    __slots__ = ("_state",)

    def __init__(self, state: LogState) -> None:
        self._state = state

    def read(self, offset: int, max_bytes: int, *, upto_offset: int, min_one_batch: bool = True) -> FileSlice | None:
        """Return a region of one segment file, from the batch that contains `offset` to the one before `upto_offset`.

        The region has at most `max_bytes` bytes and may end within a batch, but not within its first: if that is
        larger than `max_bytes`, it is returned whole with `min_one_batch`, otherwise not at all. Return None if no
        batch qualifies. Raises KafkaError: offset_out_of_range, kafka_storage_error, and those of `Segment.find`.
        """
        state = self._state
        end_offset = state.log_end_offset
        if not state.log_start_offset <= offset <= end_offset:
            raise KafkaError(
                ErrorCode.offset_out_of_range,
                f"offset {offset} of {state.topic_partition} is out of range: the log starts at offset"
                f" {state.log_start_offset} and ends at offset {end_offset}",
            )
        upto_offset = min(upto_offset, end_offset)
        if offset >= upto_offset:
            return None
        try:
            segments = state.segments
            found = segments.locate(offset)
            if found is None:
                return None
            segment, position = found
            if upto_offset < end_offset:
                limit = _limit_in(segment, position, segments, upto_offset)
            else:
                limit = segment.size
                if segment is segments.ordered[-1]:
                    segments.remember(upto_offset, segment, limit)
            available = limit - position
            size = min(available, max_bytes)
            if size < available:
                _, header = next(segment.headers(position))
                if size < header.size:
                    size = header.size if min_one_batch else 0
            if size <= 0 or size > available:
                return None
            return FileSlice(segment.file, position, size)
        except (OSError, CorruptIndexError) as error:
            raise state.storage_error("read", error) from error

    def offset_for_timestamp(self, timestamp: int) -> tuple[int, int, int] | None:
        """Return the timestamp, offset and leader epoch of the first record not older than `timestamp` ms, or None.

        Thread-safe. Raises KafkaError: corrupt_message, kafka_storage_error.
        """
        start = self._state.log_start_offset
        return self._look_up(lambda segments: offset_for_timestamp(segments, timestamp, start))

    def max_timestamp(self) -> tuple[int, int] | None:
        """Return the largest timestamp in the log, in ms, and the offset of the first record that has it (KIP-734).

        Returns None for a log without timestamps. Thread-safe. Raises KafkaError like `offset_for_timestamp`.
        """
        return self._look_up(max_timestamp)

    def _look_up(self, look: Callable[[Sequence[Segment]], _T]) -> _T:
        state = self._state
        attempts = _ATTEMPTS
        while True:
            segments = state.segments.ordered
            try:
                return look(segments)
            except (OSError, KafkaError, CorruptIndexError) as error:
                # another thread may have renamed, replaced or removed the files: retry with the current ones
                attempts -= 1
                time.sleep(_PAUSE_S)
                if attempts and (state.segments.ordered is not segments or isinstance(error, FileNotFoundError)):
                    continue
                if isinstance(error, KafkaError):
                    raise
                raise state.storage_error("read", error) from error

    def aborted_transactions(self, offset: int, part: FileSlice) -> list[AbortedTransaction]:
        """Return the aborted transactions in `part`, which was read for `offset`, for READ_COMMITTED clients (KIP-98).

        Raises KafkaError: corrupt_message, kafka_storage_error.
        """
        state = self._state
        try:
            return state.segments.aborted_transactions(offset, part, state.log_end_offset)
        except (OSError, CorruptIndexError) as error:
            raise state.storage_error("read transactions of", error) from error


def _limit_in(segment: Segment, position: int, segments: Segments, upto_offset: int) -> int:
    """Return the end position in `segment` of a read from `position` up to `upto_offset`.

    Batches before a damaged one can be read. Raises KafkaError as `Segment.find` does if there are none.
    """
    try:
        found = segments.locate(upto_offset)
    except KafkaError:
        is_last = segments.ordered[segments.floor(upto_offset)] is segment
        limit = segment.readable_end(upto_offset) if is_last else segment.size
        if limit <= position:
            raise
        return limit
    return found[1] if found is not None and found[0] is segment else segment.size
