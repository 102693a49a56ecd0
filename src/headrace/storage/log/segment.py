"""One segment of a log: a file of batches and its indexes."""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final
from zlib import crc32

from headrace.errors import ErrorCode, KafkaError
from headrace.storage.files.atomic_file import sync_file
from headrace.storage.files.disk_failures import indivisible
from headrace.storage.files.log_file import LogFile
from headrace.storage.files.open_files import OPEN_FILES
from headrace.storage.log.config import LogConfig
from headrace.storage.log.indexes.index import NO_TIMESTAMP, TIME_ENTRY_SIZE, OffsetIndex, TimeIndex
from headrace.storage.log.indexes.txn_index import TransactionIndex
from headrace.storage.log.segment_files import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    segment_file,
)
from headrace.types import Buffer
from headrace.wire.batch import HEADER_SIZE, LOG_OVERHEAD, MAGIC_V2, BatchHeader, parse_header

_MIN_OLD_LENGTH: Final = 14
"""The smallest value in the length field of a v0 or v1 message."""
MIN_BATCH_LENGTH: Final = HEADER_SIZE - LOG_OVERHEAD
_WALK_BYTES: Final = 8192
"""Covers the default index interval, so most lookups need one read."""
MAX_RELATIVE_OFFSET: Final = 2**31 - 1


class Segment:
    """Batches with offsets from `base_offset` on.

    `size` is in bytes, `max_timestamp` in ms; `offset_of_max_timestamp` is the last offset of the first batch that has
    it. The file is opened when it is first used.
    """

    __slots__ = (
        "__weakref__",
        "_bytes_since_index",
        "_file",
        "_first_timestamp",
        "base_offset",
        "created_ms",
        "directory",
        "index",
        "is_cut",
        "max_timestamp",
        "offset_of_max_timestamp",
        "size",
        "suffix",
        "time_index",
        "txn_index",
    )

    def __init__(
        self,
        directory: Path,
        base_offset: int,
        *,
        size: int,
        index_size: int,
        time_index_size: int,
        now_ms: int,
        suffix: str = "",
    ) -> None:
        """The sizes are those of the files, in bytes; `suffix` is appended to their names.

        Raises CorruptIndexError and OSError.
        """
        self.directory = directory
        self.base_offset = base_offset
        self.suffix = suffix
        self.size = size
        self.created_ms = now_ms
        self.index = OffsetIndex(self._file_with(INDEX_SUFFIX), base_offset, size=index_size)
        self.time_index = TimeIndex(self._file_with(TIME_INDEX_SUFFIX), base_offset, size=time_index_size)
        self.txn_index = TransactionIndex(self._file_with(TXN_INDEX_SUFFIX))
        self.max_timestamp, self.offset_of_max_timestamp = self.time_index.last
        self.is_cut = False
        """True if the indexes refer to positions after the end of the log file: its end is lost."""
        self._file: LogFile | None = None
        self._first_timestamp: int | None = None
        self._bytes_since_index = 0

    @classmethod
    def create(
        cls, directory: Path, base_offset: int, *, now_ms: int, config: LogConfig, suffix: str = ""
    ) -> "Segment":
        """Create the files of an empty segment. Raises OSError, after which no file is left, and HalfDoneError."""
        segment = cls(directory, base_offset, size=0, index_size=0, time_index_size=0, now_ms=now_ms, suffix=suffix)
        try:
            segment._file = file = OPEN_FILES.open(segment.path, segment, create=True)
            file.truncate(0)
            segment.index.clear()
            segment.time_index.clear()
            segment.txn_index.clear()
            if config.preallocate:
                file.preallocate(config.segment_bytes)
        except OSError:
            # the next start would load it, and the log would end or have a gap there
            segment.remove()
            raise
        return segment

    @property
    def path(self) -> Path:
        return self._file_with(LOG_SUFFIX)

    def _file_with(self, suffix: str) -> Path:
        return segment_file(self.directory, self.base_offset, suffix + self.suffix)

    @property
    def file(self) -> LogFile:
        file = self._file
        if file is None:
            self._file = file = OPEN_FILES.open(self.path, self)
        return file

    def open_read_only(self) -> None:
        """Open the file for a tool that only reads, perhaps without permission to write. Raises OSError."""
        self._file = LogFile(os.open(self.path, os.O_RDONLY))

    def close_file(self) -> None:
        """Drop the reference to the file; it stays open for current readers."""
        self._file = None

    @property
    def last_modified_ms(self) -> int:
        return self.path.stat().st_mtime_ns // 1_000_000

    @property
    def largest_timestamp(self) -> int:
        """The timestamp for retention by time: the newest record's, otherwise the file's modification time."""
        return self.max_timestamp if self.max_timestamp >= 0 else self.last_modified_ms

    def should_roll(self, size: int, last_offset: int, max_timestamp: int, config: LogConfig, now_ms: int) -> bool:
        """Return True if `size` bytes up to `last_offset` require a new segment."""
        if self.size == 0:
            return last_offset - self.base_offset > MAX_RELATIVE_OFFSET
        if self.size + size > config.segment_bytes or last_offset - self.base_offset > MAX_RELATIVE_OFFSET:
            return True
        first = self._first_timestamp
        if first is None:
            first = self.first_timestamp
        waited = max_timestamp - first if first >= 0 else now_ms - self.created_ms
        if waited > config.segment_ms - (config.segment_jitter_ms and self._jitter_ms(config)):
            return True
        return (
            self._bytes_since_index > config.index_interval_bytes
            # this test is cheap and usually fails: time entries are larger, and at most one more than offset entries
            and (self.index.count + 3) * TIME_ENTRY_SIZE > config.segment_index_bytes
            and (self.index.full(config.segment_index_bytes) or self.time_index.full(config.segment_index_bytes))
        )

    @property
    def first_timestamp(self) -> int:
        """The max timestamp of the first batch; -1 for an empty segment."""
        if self._first_timestamp is None:
            if not self.size:
                return NO_TIMESTAMP
            _, header = next(self.headers())
            self._first_timestamp = header.max_timestamp
        return self._first_timestamp

    def _jitter_ms(self, config: LogConfig) -> int:
        # derived from the name, not random, so that it is the same after a restart
        return crc32(os.fsencode(self.path)) % min(config.segment_jitter_ms, config.segment_ms)

    def append(
        self,
        buffers: Sequence[Buffer],
        size: int,
        first_last_offset: int,
        max_timestamp: int,
        offset_of_max_timestamp: int,
        index_interval: int,
    ) -> None:
        """Write `size` bytes of whole batches in constant time; `first_last_offset` is the first batch's last offset.

        On OSError, the segment is unchanged.
        """
        position = self.size
        if self._bytes_since_index > index_interval and self.index.tail_is_long:
            self.write_indexes()
        (self._file or self.file).append(buffers, size, position)
        self.size = position + size
        if position == 0:
            self._first_timestamp = max_timestamp
        self.index_append(size, position, first_last_offset, max_timestamp, offset_of_max_timestamp, index_interval)

    def index_append(
        self,
        size: int,
        position: int,
        first_last_offset: int,
        max_timestamp: int,
        offset_of_max_timestamp: int,
        index_interval: int,
    ) -> None:
        """Account for batches at `position`. Once per index interval, add index entries for the first batch."""
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.offset_of_max_timestamp = offset_of_max_timestamp
        if self._bytes_since_index > index_interval:
            self.index.append(first_last_offset, position)
            self.time_index.append(self.max_timestamp, self.offset_of_max_timestamp)
            self._bytes_since_index = 0
        self._bytes_since_index += size

    def index_batch(self, position: int, header: BatchHeader, index_interval: int) -> None:
        """Account for one existing batch at `position`, to rebuild the indexes. Raises OSError."""
        self.index_append(
            header.size, position, header.last_offset, header.max_timestamp, header.last_offset, index_interval
        )
        if self.index.tail_is_long:
            self.write_indexes()

    def headers(self, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
        """Yield the position and header of every batch, from the one that begins at `position` on.

        Raises KafkaError: corrupt_message for an invalid or incomplete batch, unsupported_for_message_format for one
        from before Kafka 0.11.
        """
        data, start = b"", 0
        read_bytes = _WALK_BYTES
        while position + HEADER_SIZE <= self.size:
            at = position - start
            if at + HEADER_SIZE > len(data):
                data, start, at = self.file.pread(read_bytes, position), position, 0
                if len(data) < HEADER_SIZE:
                    break
            header = parse_header(data, at)
            if header.magic != MAGIC_V2 or header.batch_length < MIN_BATCH_LENGTH:
                raise self._invalid_header(position, header)
            size = header.size
            if position + size > self.size:
                break
            yield position, header
            # after a large batch, a larger read would rarely contain the next header
            read_bytes = HEADER_SIZE if size > _WALK_BYTES // 2 else _WALK_BYTES
            position += size
        if position != self.size:
            raise KafkaError(ErrorCode.corrupt_message, f"{self.path} ends within a batch, at byte {self.size}")

    def _invalid_header(self, position: int, header: BatchHeader) -> KafkaError:
        if header.magic in (0, 1) and header.batch_length >= _MIN_OLD_LENGTH:  # zeros are damage
            return old_format_error(self.path, position, header.magic)
        return damage_error(self.path, position)

    def find(self, offset: int) -> tuple[int, BatchHeader] | None:
        """Return the position and header of the first batch that ends at or after `offset`, or None.

        Raises OSError, CorruptIndexError if the index file was truncated, and KafkaError as `headers` does, with
        corrupt_message also if the batch was in the lost end of the file.
        """
        for position, header in self.headers(self.index.lookup(offset)):
            if header.last_offset >= offset:
                return position, header
        if self.is_cut or (self.max_timestamp >= 0 and self.offset_of_max_timestamp >= offset):
            raise damage_error(self.path, self.size, offset)
        return None

    def readable_end(self, offset: int) -> int:
        """Return the position after the last readable batch before `offset`, which `find` cannot find."""
        end = self.index.lookup(offset)
        with suppress(KafkaError):
            for position, header in self.headers(end):
                end = position + header.size
        return end

    def end_offset_at(self, position: int) -> int:
        """Return the offset after the first batch that ends at or after `position`."""
        end_offset = self.base_offset
        for start, header in self.headers(self.index.position_before(position)):
            end_offset = max(end_offset, header.next_offset)
            if start + header.size >= position:
                break
        return end_offset

    def read_end(self) -> int:
        """Read the headers after the last index entry and return the offset after the last batch.

        Updates `max_timestamp`. Raises KafkaError as `headers` does.
        """
        end_offset = self.base_offset
        position = self.index.last[1] if self.index.last else 0
        self._bytes_since_index = self.size - position
        for _, header in self.headers(position):
            end_offset = header.next_offset
            if header.max_timestamp > self.max_timestamp:
                self.max_timestamp, self.offset_of_max_timestamp = header.max_timestamp, header.last_offset
        return end_offset

    def truncate(self, offset: int) -> int:
        """Remove the batch that contains `offset` and all later ones, and return the new end offset."""
        found = self.find(offset)
        if found is None:
            return offset
        position, header = found
        # in this order, a crash between any two steps leaves indexes that recovery can complete from the log
        self.index.truncate(header.base_offset)
        if self.time_index.last[1] >= header.base_offset:
            # That entry may also stand for batches that stay: those of the same append. They begin after the last but
            # one offset entry. `read_end` and recovery read the timestamps after the last offset entry again.
            self.index.drop_last()
        self.time_index.truncate(header.base_offset)
        self.file.truncate(position)
        self.size = position
        self.txn_index.truncate(header.base_offset)
        if not position:
            self._first_timestamp = None
        self.max_timestamp, self.offset_of_max_timestamp = self.time_index.last
        self.read_end()
        return min(offset, header.base_offset)

    def clear_indexes(self) -> None:
        """Empty the offset and time indexes before a rebuild."""
        self.index.clear()
        self.time_index.clear()
        self.max_timestamp, self.offset_of_max_timestamp = self.time_index.last
        self._first_timestamp = None
        self._bytes_since_index = 0

    def cut(self, size: int) -> None:
        """Truncate the log file to `size` bytes. The indexes must not refer to positions beyond that."""
        self.file.truncate(size)
        self.size = size

    def write_indexes(self) -> None:
        """Write pending entries to the index files. Raises OSError.

        Write the offset index last: recovery starts at its last entry, so the others must cover all earlier batches.
        """
        self.txn_index.write_tail()
        self.time_index.write_tail()
        self.index.write_tail()

    def seal(self) -> None:
        """Complete the files of a segment that is rolled or closed. Raises OSError."""
        self.time_index.append(self.max_timestamp, self.offset_of_max_timestamp)
        self.write_indexes()
        if self.path.stat().st_size > self.size:
            self.file.trim(self.size)

    def sync_indexes(self) -> None:
        """Make the indexes of an inactive segment survive a power failure. Raises OSError."""
        sync_file(self.index.path)
        sync_file(self.time_index.path)
        if self.txn_index.path.exists():
            sync_file(self.txn_index.path)

    def move(self, directory: Path) -> None:
        """Use the new path of the renamed or copied directory."""
        self.directory = directory
        for part in (self.index, self.time_index, self.txn_index):
            part.path = directory / part.path.name

    def files(self) -> list[Path]:
        """Return the paths of all files that the segment may have."""
        return [self._file_with(kind) for kind in SEGMENT_SUFFIXES]

    def remove(self) -> None:
        """Remove all files. Raises HalfDoneError."""
        with indivisible(f"The removal of {self.path}"):
            if self.suffix == SWAP_SUFFIX:
                # A start after a crash completes a swap, unless a `.cleaned` file shows that it may be incomplete.
                self.change_suffix(CLEANED_SUFFIX)
            # The log file last: after a crash, a start would use a `.swap` index without it for the original segment.
            for path in reversed(self.files()):
                path.unlink(missing_ok=True)

    def mark_deleted(self) -> list[Path]:
        """Rename the files so that a restart does not load them, and return the new names."""
        return self.change_suffix(DELETED_SUFFIX)

    def change_suffix(self, suffix: str) -> list[Path]:
        """Rename the existing files to end with `suffix`, and return the new names.

        Raises OSError, after which all files have their old names, and HalfDoneError.
        """
        renamed: dict[Path, Path] = {}
        try:
            for path in self.files():
                target = path.with_name(path.name.removesuffix(self.suffix) + suffix)
                with suppress(FileNotFoundError):
                    path.rename(target)
                    renamed[path] = target
        except OSError:
            with indivisible(f"The renaming of {self.path}"):
                for path, target in reversed(renamed.items()):
                    target.rename(path)
            raise
        self.suffix = suffix
        for part, kind in (
            (self.index, INDEX_SUFFIX),
            (self.time_index, TIME_INDEX_SUFFIX),
            (self.txn_index, TXN_INDEX_SUFFIX),
        ):
            part.path = self._file_with(kind)
        return list(renamed.values())


def damage_error(path: Path, position: int, offset: int | None = None) -> KafkaError:
    where = f"byte {position}" if offset is None else f"byte {position}, offset {offset}"
    return KafkaError(
        ErrorCode.corrupt_message,
        f"{path} has no valid record batch at {where}: the file is damaged; `headrace verify {path.parent}` shows the"
        " extent, and the lost records may be in a replica or a backup",
    )


def old_format_error(path: Path, position: int, magic: int) -> KafkaError:
    return KafkaError(
        ErrorCode.unsupported_for_message_format,
        f"{path} has message format v{magic} at byte {position}; only v2 (Kafka 0.11 and later) is supported:"
        " start Kafka again, and copy the topic to a new one with a client",
    )
