"""What can be read of the log of one partition: by offset, by timestamp, and as the headers of its batches."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeVar

from headrace.errors import ErrorCode, KafkaError
from headrace.storage.files.log_file import FileSlice
from headrace.storage.log.index import CorruptIndexError
from headrace.storage.log.segment import Segment
from headrace.storage.log.segments import Segments
from headrace.storage.log.timestamps import max_timestamp, offset_for_timestamp
from headrace.storage.log.txn_index import AbortedTransaction
from headrace.types import TopicPartition
from headrace.wire.batch import BatchHeader

_T = TypeVar("_T")
_ATTEMPTS: Final = 5
_PAUSE_S: Final = 0.005


class ReadableLog:
    """The segments of a log and the offsets between which it is read; `FlushedLog` and `Log` change them."""

    __slots__ = (
        "__weakref__",
        "_segments",
        "directory",
        "log_end_offset",
        "log_start_offset",
        "on_disk_error",
        "topic_partition",
    )

    def __init__(self, directory: Path, topic_partition: TopicPartition) -> None:
        self.directory = directory
        self.topic_partition = topic_partition
        self.log_start_offset = 0
        self.log_end_offset = 0
        self._segments = Segments([])
        self.on_disk_error: Callable[[ReadableLog, OSError], None] = _tell_nobody
        """Told of every error of the disk, in whichever thread it is met."""

    @property
    def segments(self) -> tuple[Segment, ...]:
        return tuple(self._segments.ordered)

    @property
    def size(self) -> int:
        """Bytes of all segments, without their indexes."""
        return sum(segment.size for segment in self._segments.ordered)

    @property
    def active_segment(self) -> Segment:
        return self._segments.ordered[-1]

    @property
    def active_base_offset(self) -> int:
        """Where the active segment begins; it changes when the log rolls, and producer state is worth a snapshot."""
        return self._segments.active_base_offset

    def read(self, offset: int, max_bytes: int, *, upto_offset: int, min_one_batch: bool = True) -> FileSlice | None:
        """A region of one segment file, from the batch that holds `offset` up to at most the one with `upto_offset`.

        At most `max_bytes` long, in which case the last batch may be cut off; but at least one batch with
        `min_one_batch`, and nothing instead of less than one without. None when there is nothing to read.
        Raises KafkaError: offset_out_of_range, kafka_storage_error.
        """
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise KafkaError(
                ErrorCode.offset_out_of_range,
                f"offset {offset} of {self.topic_partition} is not within the log, "
                f"{self.log_start_offset} to {self.log_end_offset}",
            )
        upto_offset = min(upto_offset, self.log_end_offset)
        if offset >= upto_offset:
            return None
        try:
            found = self._segments.locate(offset)
            if found is None:
                return None
            segment, position = found
            available = self._limit_in(segment, upto_offset) - position
            size = min(available, max_bytes)
            if size < available:
                _, header = next(segment.headers(position))
                if size < header.size:
                    size = header.size if min_one_batch else 0
            if size <= 0 or size > available:
                return None
            return FileSlice(segment.file, position, size)
        except OSError as error:
            raise self._storage_error("read", error) from error

    def headers(self, from_offset: int) -> Iterator[BatchHeader]:
        """Header of every batch from the one that holds `from_offset` to the end of the log."""
        return self._segments.headers(from_offset)

    def headers_before(self, offset: int, index_entries: int) -> Iterator[BatchHeader]:
        """Headers of the batches before `offset`, at which one begins, as far back as so many index entries lead."""
        return self._segments.headers_before(offset, index_entries)

    def offset_for_timestamp(self, timestamp: int) -> tuple[int, int, int] | None:
        """Timestamp, offset and leader epoch of the first record that is not older than `timestamp` ms.

        May run in a thread. Raises KafkaError: corrupt_message, kafka_storage_error.
        """
        return self._look_up(lambda segments: offset_for_timestamp(segments, timestamp, self.log_start_offset))

    def max_timestamp(self) -> tuple[int, int] | None:
        """The largest timestamp in the log, in ms, and the offset of the first record that has it (KIP-734).

        May run in a thread. Raises as `offset_for_timestamp` does.
        """
        return self._look_up(max_timestamp)

    def _look_up(self, look: Callable[[Sequence[Segment]], _T]) -> _T:
        attempts = _ATTEMPTS
        while True:
            segments = self._segments.ordered
            try:
                return look(segments)
            except (OSError, KafkaError, CorruptIndexError) as error:
                # A thread may find files renamed, replaced or removed on the way; another look finds others.
                attempts -= 1
                time.sleep(_PAUSE_S)
                if attempts and (self._segments.ordered is not segments or isinstance(error, FileNotFoundError)):
                    continue
                if isinstance(error, OSError):
                    raise self._storage_error("read", error) from error
                if isinstance(error, CorruptIndexError):
                    raise KafkaError(ErrorCode.kafka_storage_error, str(error)) from error
                raise

    def aborted_transactions(self, offset: int, part: FileSlice) -> list[AbortedTransaction]:
        """What a reader of committed records, who is given `part` for `offset`, has to leave out (KIP-98).

        Raises KafkaError(kafka_storage_error).
        """
        try:
            return self._segments.aborted_transactions(offset, part, self.log_end_offset)
        except OSError as error:
            raise self._storage_error("read transactions of", error) from error

    def batches(self, from_offset: int) -> Iterator[tuple[Segment, int, BatchHeader]]:
        """As `headers`, with the segment and the position in it of each."""
        return self._segments.batches(from_offset)

    def _limit_in(self, segment: Segment, upto_offset: int) -> int:
        """The position in `segment` that a reader up to `upto_offset` must not pass."""
        if upto_offset >= self.log_end_offset:
            if segment is self._segments.ordered[-1]:
                self._segments.remember(upto_offset, segment, segment.size)
            return segment.size
        found = self._segments.locate(upto_offset)
        return found[1] if found is not None and found[0] is segment else segment.size

    def _storage_error(self, what: str, error: OSError) -> KafkaError:
        self.on_disk_error(self, error)
        reason = os.strerror(error.errno) if error.errno else str(error)
        return KafkaError(
            ErrorCode.kafka_storage_error, f"cannot {what} {self.topic_partition} in {self.directory}: {reason}"
        )


def _tell_nobody(_: ReadableLog, __: OSError) -> None:
    """For a log that belongs to no directory."""
