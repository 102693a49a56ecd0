"""Throttled I/O of a cleaner: reads batches of inactive segments, and writes `.cleaned` segments."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from headrace.errors import ErrorCode, KafkaError
from headrace.storage.cleaner.job import CleaningJob
from headrace.storage.files.atomic_file import sync_file
from headrace.storage.log.config import LogConfig
from headrace.storage.log.segment import MIN_BATCH_LENGTH, Segment
from headrace.storage.log.segment_files import CLEANED_SUFFIX
from headrace.types import Buffer
from headrace.wire.batch import CRC_START, HEADER_SIZE, LOG_OVERHEAD, MAGIC_V2, BatchHeader, parse_header
from headrace.wire.checksum import crc32c

_THROTTLE_INTERVAL_S: Final = 0.1


class Throttle:
    """Sleeps to limit reads and writes to `bytes_per_second`. First calls `check`, which may raise to end the job."""

    def __init__(self, bytes_per_second: float, check: Callable[[], None]) -> None:
        self._rate = bytes_per_second
        self._check = check
        self._due = time.monotonic()

    def spend(self, size: int) -> None:
        self._check()
        now = time.monotonic()
        self._due = max(self._due, now - _THROTTLE_INTERVAL_S) + size / self._rate
        if self._due > now:
            time.sleep(self._due - now)


def read_batches(
    path: Path, size: int, buffer_bytes: int, throttle: Throttle
) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield the header and the bytes of every batch in the first `size` bytes of a file.

    Raises OSError, and KafkaError(corrupt_message) for an invalid batch, because its copy would get a valid checksum.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        position = next_offset = 0
        while position < size:
            data = os.pread(descriptor, min(buffer_bytes, size - position), position)
            view = memoryview(data)
            at = 0
            while at + HEADER_SIZE <= len(data):
                header = parse_header(data, at)
                end = at + LOG_OVERHEAD + header.batch_length
                if header.batch_length < MIN_BATCH_LENGTH or header.magic != MAGIC_V2 or position + end > size:
                    raise _corrupt(path, position + at)
                if end > len(data):
                    break
                base_offset, last_delta = header.base_offset, header.last_offset_delta
                if base_offset < next_offset or last_delta < 0:
                    raise _corrupt(path, position + at)
                next_offset = base_offset + last_delta + 1
                if crc32c(view[at + CRC_START : end]) != header.crc:
                    raise _corrupt(path, position + at)
                yield header, view[at:end]
                at = end
            throttle.spend(at)
            if not at:
                if len(data) < HEADER_SIZE or buffer_bytes >= size - position:
                    raise _corrupt(path, position)
                buffer_bytes = parse_header(data).size
            position += at
    finally:
        os.close(descriptor)


def _corrupt(path: Path, position: int) -> KafkaError:
    return KafkaError(
        ErrorCode.corrupt_message,
        f"{path} has no valid batch at byte {position}: the file is damaged; restore it from a replica or a backup",
    )


class CleanedSegment:
    """A `.cleaned` segment that is being written, through a buffer."""

    def __init__(self, job: CleaningJob, base_offset: int, throttle: Throttle) -> None:
        remove_cleaned(job.directory, base_offset)
        self.segment = Segment.create(
            job.directory, base_offset, now_ms=job.now_ms, config=LogConfig(), suffix=CLEANED_SUFFIX
        )
        self.records = 0
        self._interval = job.index_interval_bytes
        self._buffer_bytes = job.io_buffer_bytes
        self._buffer = bytearray()
        self._throttle = throttle

    @property
    def size(self) -> int:
        return self.segment.size

    def add(self, header: BatchHeader, batch: Buffer) -> None:
        segment = self.segment
        segment.index_append(
            len(batch), segment.size, header.last_offset, header.max_timestamp, header.last_offset, self._interval
        )
        segment.size += len(batch)
        self.records += header.record_count
        self._buffer += batch
        if len(self._buffer) >= self._buffer_bytes:
            self._write()

    def _write(self) -> None:
        position = self.segment.size - len(self._buffer)
        self.segment.file.append([self._buffer], len(self._buffer), position)
        self._throttle.spend(len(self._buffer))
        self._buffer = bytearray()
        self.segment.write_indexes()

    def finish(self, modified_ns: int) -> None:
        """Write and sync all files. Set the log file's modification time, which retention needs without timestamps."""
        self._write()
        segment = self.segment
        segment.seal()
        os.utime(segment.path, ns=(modified_ns, modified_ns))
        segment.file.sync()
        for path in (segment.index.path, segment.time_index.path):
            sync_file(path)
        if segment.txn_index.path.exists():
            sync_file(segment.txn_index.path)


def remove_cleaned(directory: Path, base_offset: int) -> None:
    """Remove the files of an unfinished copy. Raises OSError."""
    for path in directory.glob(f"{base_offset:020d}.*{CLEANED_SUFFIX}"):
        path.unlink(missing_ok=True)
