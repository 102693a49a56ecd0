"""Logs that are compacted synchronously, without threads and processes."""

import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar
from uuid import UUID

from headrace.errors import KafkaError
from headrace.storage.cleaner.compaction import Cleaner
from headrace.storage.cleaner.job import CleanedGroup, CleanedLog, CleaningJob
from headrace.storage.cleaner.log_cleaner import CleanerSettings, Compactable, LogCleaner
from headrace.storage.cleaner.process import CleanerProcess, CleaningFailedError
from headrace.storage.dirs.log_dirs import LogDirs
from headrace.storage.log.config import LogConfig
from headrace.storage.log.producers.producer_snapshot import ProducerEntry
from headrace.storage.log.segment import Segment
from headrace.types import TopicPartition
from headrace.wire.batch import BatchHeader, parse_header
from headrace.wire.compression import Codec
from headrace.wire.records import Record, RecordData, build_batch, iter_records, uncompressed_body
from tests.unit.storage.logs import NOW, append_batch

T = TypeVar("T")
DAY: int = 86_400_000
TP = TopicPartition("table", 0)
COMPACTED = LogConfig(
    segment_bytes=1200,
    index_interval_bytes=200,
    segment_index_bytes=4096,
    cleanup_policy=frozenset({"compact"}),
    min_cleanable_dirty_ratio=0.0,
)
SETTINGS = CleanerSettings(map_bytes=10e6, io_buffer_bytes=512, bytes_per_second=1e12)


class InlineProcess(CleanerProcess):
    """Runs jobs in the calling process."""

    def clean(self, job: CleaningJob, swap: Callable[[CleanedGroup], None]) -> CleanedLog:
        cleaner = Cleaner(job)
        try:
            cleaner.build_map()
            for group in cleaner.groups():
                swap(cleaner.clean(group))
        except KafkaError as error:
            raise CleaningFailedError(str(error)) from error
        return CleanedLog(cleaner.end_offset, cleaner.unreadable)


class Table:
    """A compacted log in its own log directory, and its cleaner."""

    def __init__(self, directory: Path, config: LogConfig = COMPACTED) -> None:
        self.directory = directory
        self.now = NOW
        self.settings = SETTINGS
        self.last_stable_offset: int | None = None
        self.producers: Sequence[ProducerEntry] = ()
        self._open(config)

    def _open(self, config: LogConfig) -> None:
        self.dirs = LogDirs.open([self.directory], broker_id=0)
        if TP in self.dirs.partitions():
            self.log = self.dirs.load(TP, config, now_ms=self.now)
        else:
            self.log = self.dirs.create(TP, UUID(int=1), config, now_ms=self.now)
        self.cleaner = LogCleaner(
            self.dirs, self._logs, lambda: self.settings, on_loop=lambda work: work(), now_ms=lambda: self.now
        )

    def _logs(self) -> list[Compactable]:
        stable = self.log.log_end_offset if self.last_stable_offset is None else self.last_stable_offset
        return [Compactable(self.log, stable, lambda: self.producers)]

    def reopen(self) -> None:
        """Close and open again."""
        config = self.log.config
        self.dirs.close({})
        self._open(config)

    def close(self) -> None:
        self.dirs.close({})

    def configure(self, **values: object) -> None:
        self.log.configure(replace(self.log.config, **values))  # type: ignore[arg-type]

    def put(
        self,
        *records: tuple[str | None, str | None],
        codec: Codec = Codec.NONE,
        timestamp: int = NOW,
        **options: int,
    ) -> BatchHeader:
        """Append one batch of keys and values; a value of None is a tombstone."""
        data = build_batch(
            [
                RecordData(
                    key=None if key is None else key.encode(),
                    value=None if value is None else value.encode(),
                    timestamp=timestamp + place,
                )
                for place, (key, value) in enumerate(records)
            ],
            base_offset=self.log.log_end_offset,
            codec=codec,
            leader_epoch=0,
            **options,
        )
        return self.append(data)

    def append(self, data: bytes) -> BatchHeader:
        return append_batch(self.log, data, now_ms=self.now)

    def compact(self, *, from_start: bool = False) -> bool:
        """Run one pass, over the whole log if `from_start`; return False if nothing needed cleaning."""
        if from_start:
            self.dirs.note_cleaned(self.log, self.log.log_start_offset)
        return self.cleaner.clean_filthiest(InlineProcess())

    def records(self) -> list[Record]:
        return [record for segment in self.log.segments.ordered for record in iter_records(segment.path.read_bytes())]

    def records_at(self, segment: Segment, position: int, header: BatchHeader) -> list[Record]:
        """Return the records of one batch."""
        return list(iter_records(segment.file.pread(header.size, position)))

    def pairs(self) -> list[tuple[int, bytes | None, bytes | None]]:
        return [(record.offset, record.key, record.value) for record in self.records()]

    def headers(self) -> list[BatchHeader]:
        return [header for segment in self.log.segments.ordered for _, header in segment.headers()]

    def content(self) -> bytes:
        return b"".join(segment.path.read_bytes() for segment in self.log.segments.ordered)


def filled(directory: Path) -> Table:
    """Write three segments with superseded records, of which the last two are merged, and an active one."""
    table = Table(directory)
    for place in range(12):
        key = f"key {place * 7 % 5}"
        table.put((key, f"value {place}" * 5), (f"{key}, once: {place}" if place % 3 == 0 else key, "v" * 20))
        if place == 9:
            table.log.roll(NOW)
            table.put((key, None))
    table.log.roll(NOW)
    table.put(("active", "1"))
    table.log.flusher.flush()
    return table


def newest(records: list[Record]) -> dict[bytes | None, Record]:
    return {record.key: record for record in records}


def opened(batch: bytes) -> tuple[BatchHeader, bytes]:
    """Return the header and the uncompressed body of a batch."""
    header = parse_header(batch)
    return header, uncompressed_body(header, batch, 0)


def opened_batch(pairs: Sequence[tuple[bytes | None, bytes | None]], base_offset: int) -> tuple[BatchHeader, bytes]:
    return opened(build_batch([RecordData(key, value, 0) for key, value in pairs], base_offset=base_offset))


def peak_memory(work: Callable[[], object]) -> int:
    """Return the bytes that `work` has in memory at most."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
