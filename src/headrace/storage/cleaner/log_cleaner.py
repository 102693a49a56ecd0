"""Schedules compaction: chooses the next log, passes it to the cleaner process, and swaps in the result.

Runs in its own threads. It chooses logs and swaps segments in the thread that owns the logs, through `on_loop`.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple, Protocol, TypeVar

from headrace.errors import KafkaError
from headrace.storage.cleaner.job import CleanedGroup, CleaningJob, LastRecord, SourceSegment
from headrace.storage.cleaner.process import CleanerProcess, CleaningFailedError
from headrace.storage.dirs.log_dirs import LogDirs
from headrace.storage.files.atomic_file import sync_directory
from headrace.storage.files.disk_failures import is_disk_failure
from headrace.storage.log.indexes.index import CorruptIndexError
from headrace.storage.log.log import CleaningAbortedError, Log
from headrace.storage.log.producers.producer_snapshot import ProducerEntry
from headrace.storage.log.segment import Segment
from headrace.storage.log.segment_files import CLEANED_SUFFIX, INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, segment_file
from headrace.types import TopicPartition

RETRY_MS: Final = 60_000
"""The delay before a failed log is compacted again."""

_NO_LIMIT: Final = 2**63 - 1
_T = TypeVar("_T")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerSettings:
    """Current values of `log.cleaner.*` for one thread; sizes in bytes."""

    map_bytes: float
    io_buffer_bytes: int
    bytes_per_second: float


class Compactable(NamedTuple):
    """A log that may be compacted up to `last_stable_offset`, and its active producers."""

    log: Log
    last_stable_offset: int
    producers: Callable[[], Sequence[ProducerEntry]]


class OnLoop(Protocol):
    """Runs a function in the thread that owns the logs, and returns its result."""

    def __call__(self, work: Callable[[], _T], /) -> _T: ...


class Dirt(NamedTuple):
    """The work in a log. `ratio` is the share of dirty bytes; `overdue` is True after `max.compaction.lag.ms`."""

    first_dirty_offset: int
    first_uncleanable_offset: int
    segments: tuple[Segment, ...]
    ratio: float
    overdue: bool


def dirt_of(cleanable: Compactable, cleaned_upto: int | None, now_ms: int) -> Dirt | None:
    """Return the dirty part of a log; None if nothing can be cleaned.

    It ends at the active segment, the last stable offset, or the first dirty segment with records newer than
    `min.compaction.lag.ms`. Raises OSError or KafkaError for an unreadable segment.
    """
    dirty_log, config = cleanable.log, cleanable.log.config
    first_dirty = dirty_log.log_start_offset if cleaned_upto is None else cleaned_upto
    if not dirty_log.log_start_offset <= first_dirty <= dirty_log.log_end_offset:
        first_dirty = dirty_log.log_start_offset
    cleanable_segments: list[Segment] = []
    clean_bytes = dirty_bytes = 0
    overdue = False
    first_uncleanable = dirty_log.log_start_offset
    for segment, following in pairwise(dirty_log.segments.ordered):
        end = following.base_offset
        dirty = end > first_dirty
        too_new = (
            dirty
            and config.min_compaction_lag_ms > 0
            and (segment.largest_timestamp > now_ms - config.min_compaction_lag_ms)
        )
        if too_new or end > cleanable.last_stable_offset:
            break
        first_uncleanable = end
        cleanable_segments.append(segment)
        if not dirty:
            clean_bytes += segment.size
            continue
        dirty_bytes += segment.size
        if config.max_compaction_lag_ms < _NO_LIMIT:
            overdue = overdue or 0 < segment.first_timestamp < now_ms - config.max_compaction_lag_ms
    if not dirty_bytes:
        return None
    return Dirt(
        first_dirty,
        first_uncleanable,
        tuple(cleanable_segments),
        dirty_bytes / (clean_bytes + dirty_bytes),
        overdue,
    )


class LogCleaner:
    """Compacts logs; every cleaner thread calls `clean_filthiest` with its own CleanerProcess.

    `failing` has the logs whose last compaction failed, and the reasons, for a metric.
    """

    def __init__(
        self,
        log_dirs: LogDirs,
        logs: Callable[[], Iterable[Compactable]],
        settings: Callable[[], CleanerSettings],
        *,
        on_loop: OnLoop,
        now_ms: Callable[[], int],
    ) -> None:
        """`logs` returns the logs whose `cleanup.policy` has `compact`; called in the thread that owns the logs."""
        self._log_dirs = log_dirs
        self._logs = logs
        self._settings = settings
        self._on_loop = on_loop
        self._now_ms = now_ms
        self._in_progress: set[TopicPartition] = set()
        self._retry_at: dict[TopicPartition, int] = {}
        self._warned: dict[TopicPartition, set[int]] = {}
        """Base offsets of unreadable batches that were already logged."""
        self.failing: dict[TopicPartition, str] = {}
        self.looked_at_ms = now_ms()
        """The time of the last search for a log to compact."""
        self.max_dirty_ratio = 0.0
        """The maximum over the logs that the last search considered."""

    def clean_filthiest(self, process: CleanerProcess) -> bool:
        """Compact the log with the largest ratio of dirty bytes; return False if none needs it. Call it in a thread."""
        chosen = self._on_loop(self._choose)
        if chosen is None:
            process.end()
            return False
        cleanable, dirt, job = chosen
        topic_partition = cleanable.log.topic_partition
        try:
            self._clean(cleanable.log, dirt, job, process)
        except CleaningAbortedError as error:
            log.info("Compaction of %s was aborted and will start again: %s", topic_partition, error)
        except (CleaningFailedError, CorruptIndexError, KafkaError, OSError) as error:
            # not `cleanable.log.directory`: the log may have moved to another disk
            self._log_dirs.note_failure(job.directory.parent, error)
            self._failed(cleanable.log, str(error))
        else:
            if self.failing.pop(topic_partition, None) is not None:
                log.info("Compaction of %s succeeded after earlier failures", topic_partition)
        finally:
            self._in_progress.discard(topic_partition)
        return True

    def _choose(self) -> tuple[Compactable, Dirt, CleaningJob] | None:
        now = self.looked_at_ms = self._now_ms()
        self.max_dirty_ratio = 0.0
        found: list[tuple[Compactable, Dirt]] = []
        logs = {candidate.log.topic_partition: candidate for candidate in self._logs()}
        for topic_partition in self.failing.keys() - logs.keys():
            del self.failing[topic_partition]
        for topic_partition in self._warned.keys() - logs.keys():
            del self._warned[topic_partition]
        for topic_partition, candidate in logs.items():
            if (
                topic_partition in self._in_progress
                or now < self._retry_at.get(topic_partition, 0)
                or candidate.log.is_moving
            ):
                continue
            try:
                dirt = dirt_of(candidate, self._log_dirs.cleaned_upto(topic_partition), now)
            except (KafkaError, CorruptIndexError, OSError) as error:
                self._log_dirs.note_failure(candidate.log.directory.parent, error)
                self._failed(candidate.log, str(error))
                continue
            if dirt is None:
                continue
            self.max_dirty_ratio = max(self.max_dirty_ratio, dirt.ratio)
            if dirt.overdue or dirt.ratio > candidate.log.config.min_cleanable_dirty_ratio:
                reason = self._lack_of_space(candidate.log, dirt.segments) or self._unwritten(candidate.log)
                if reason is None:
                    found.append((candidate, dirt))
                else:
                    self._failed(candidate.log, reason)
        # an error above may have taken a whole log directory offline
        found = [pair for pair in found if self._log_dirs.is_here(pair[0].log)]
        if not found:
            return None
        cleanable, dirt = max(found, key=lambda pair: pair[1].ratio)
        self._in_progress.add(cleanable.log.topic_partition)
        return cleanable, dirt, self._job_for(cleanable, dirt, now)

    def _lack_of_space(self, cleanable: Log, segments: Iterable[Segment]) -> str | None:
        """Return the reason if the disk lacks space for a cleaned segment in addition to its sources, else None."""
        directory = cleanable.directory.parent
        space = self._log_dirs.owned.disk_space.get(directory)
        _, free = self._log_dirs.owned.space(directory)
        if space is None or free < 0:
            return None
        needed = min(sum(segment.size for segment in segments), cleanable.config.segment_bytes) + space.hard // 2
        if free >= needed:
            return None
        return f"it may need {needed} bytes before it frees any, but {directory} has {free}: free some space there"

    def _unwritten(self, cleanable: Log) -> str | None:
        """Write pending entries of the transaction indexes: the cleaner reads the files. Return the error, or None."""
        try:
            for segment in cleanable.segments.ordered:
                segment.txn_index.write_tail()
        except OSError as error:
            self._log_dirs.note_failure(cleanable.directory.parent, error)
            return str(error)
        return None

    def _job_for(self, cleanable: Compactable, dirt: Dirt, now: int) -> CleaningJob:
        config = cleanable.log.config
        settings = self._settings()
        return CleaningJob(
            directory=cleanable.log.directory,
            segments=[
                SourceSegment(segment.base_offset, segment.size, segment.index.size, segment.time_index.size)
                for segment in dirt.segments
            ],
            transaction_segments=[segment.base_offset for segment in cleanable.log.segments.ordered],
            first_dirty_offset=dirt.first_dirty_offset,
            first_uncleanable_offset=dirt.first_uncleanable_offset,
            producers={
                entry.producer_id: LastRecord(entry.last_offset, entry.epoch) for entry in cleanable.producers()
            },
            now_ms=now,
            delete_retention_ms=config.delete_retention_ms,
            segment_bytes=config.segment_bytes,
            segment_index_bytes=config.segment_index_bytes,
            index_interval_bytes=config.index_interval_bytes,
            map_bytes=settings.map_bytes,
            io_buffer_bytes=settings.io_buffer_bytes,
            bytes_per_second=settings.bytes_per_second,
        )

    def _clean(self, cleaned: Log, dirt: Dirt, job: CleaningJob, process: CleanerProcess) -> None:
        started = time.monotonic()
        groups: list[CleanedGroup] = []
        by_base = {segment.base_offset: segment for segment in dirt.segments}

        def swap(group: CleanedGroup) -> None:
            self._swap(cleaned, [by_base[base_offset] for base_offset in group.base_offsets])
            groups.append(group)
            for base_offset in group.base_offsets:
                del by_base[base_offset]
            if by_base and (reason := self._lack_of_space(cleaned, by_base.values())) is not None:
                raise CleaningAbortedError(reason)

        # compaction leaves gaps, and recovery treats gaps after its recovery point as lost records: raise that first
        cleaned.flusher.flush_rolled()
        if cleaned.flusher.recovery_point < dirt.first_uncleanable_offset:
            raise CleaningAbortedError("the log was truncated or moved during the flush")
        self._log_dirs.save_bounds(cleaned)
        try:
            end_offset, unreadable = process.clean(job, swap)
        except (CleaningFailedError, OSError) as error:
            if is_disk_failure(error):
                raise
            if self._on_loop(lambda: not set(by_base.values()).issubset(cleaned.segments.ordered)):
                raise CleaningAbortedError(f"segments were deleted or replaced meanwhile ({error})") from error
            raise
        finally:
            for path in job.directory.glob(f"*{CLEANED_SUFFIX}"):
                path.unlink(missing_ok=True)
        self._log_dirs.note_cleaned(cleaned, end_offset)
        self._warn_of(cleaned.topic_partition, unreadable)
        log.info(
            "Compacted %s from offset %d to %d in %.1f s: kept %.1f of %.1f MB, %d of %d records",
            cleaned.topic_partition,
            dirt.first_dirty_offset,
            end_offset,
            time.monotonic() - started,
            sum(group.bytes_written for group in groups) / 1e6,
            sum(group.bytes_read for group in groups) / 1e6,
            sum(group.records_kept for group in groups),
            sum(group.records_read for group in groups),
        )

    def _warn_of(self, topic_partition: TopicPartition, unreadable: Mapping[int, str]) -> None:
        warned = self._warned.setdefault(topic_partition, set())
        for offset, reason in unreadable.items():
            if offset not in warned:
                warned.add(offset)
                log.warning(
                    "The batch at offset %d of %s cannot be read and is kept unchanged; consumers must skip it: %s",
                    offset,
                    topic_partition,
                    reason,
                )

    def _swap(self, cleaned: Log, old: Sequence[Segment]) -> None:
        new = _open_cleaned(old[0], self._now_ms())
        self._on_loop(lambda: cleaned.stage_swap(old, new))
        try:
            # even after a power failure, the new files must have their names before the old ones lose theirs
            sync_directory(new.directory)
        except OSError:
            new.remove()
            raise
        self._on_loop(lambda: cleaned.finish_swap(old, new, self._now_ms()))
        sync_directory(new.directory)

    def _failed(self, failed: Log, reason: str) -> None:
        topic_partition = failed.topic_partition
        if self._log_dirs.logs.get(topic_partition) is not failed:
            return  # it has been deleted, or the broker is stopping
        self._retry_at[topic_partition] = self._now_ms() + RETRY_MS
        if self.failing.get(topic_partition) != reason:
            log.error("Compaction of %s failed and will be retried every minute: %s", topic_partition, reason)
        self.failing[topic_partition] = reason


def _open_cleaned(first: Segment, now_ms: int) -> Segment:
    size, index_size, time_index_size = (
        segment_file(first.directory, first.base_offset, kind + CLEANED_SUFFIX).stat().st_size
        for kind in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX)
    )
    return Segment(
        first.directory,
        first.base_offset,
        size=size,
        index_size=index_size,
        time_index_size=time_index_size,
        now_ms=now_ms,
        suffix=CLEANED_SUFFIX,
    )
