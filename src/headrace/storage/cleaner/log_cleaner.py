"""Compaction of all logs: which one is next, its job for the cleaner process, and the swap of what comes back.

Runs in threads beside the one that owns the logs; whatever touches a log is handed to that one through `on_loop`.
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
from headrace.storage.log.indexes.index import CorruptIndexError
from headrace.storage.log.log import CleaningAbortedError, Log
from headrace.storage.log.producers.producer_snapshot import ProducerEntry
from headrace.storage.log.segment import Segment
from headrace.storage.log.segment_files import CLEANED_SUFFIX, INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, segment_file
from headrace.types import TopicPartition

RETRY_MS: Final = 60_000
"""How long a log that could not be compacted is left alone."""

_NO_LIMIT: Final = 2**63 - 1
_T = TypeVar("_T")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerSettings:
    """What is in force of `log.cleaner.*`, for one thread."""

    map_bytes: float
    io_buffer_bytes: int
    bytes_per_second: float


class Compactable(NamedTuple):
    """A log that may be compacted up to `last_stable_offset`, and its active producers."""

    log: Log
    last_stable_offset: int
    producers: Callable[[], Sequence[ProducerEntry]]


class OnLoop(Protocol):
    """Runs a function in the thread that owns the logs and returns what it returns."""

    def __call__(self, work: Callable[[], _T], /) -> _T: ...


class Dirt(NamedTuple):
    """What there is to do in a log: `segments` from the first to the last that may be cleaned, `ratio` dirty bytes."""

    first_dirty_offset: int
    first_uncleanable_offset: int
    segments: tuple[Segment, ...]
    ratio: float
    overdue: bool


def dirt_of(cleanable: Compactable, cleaned_upto: int | None, now_ms: int) -> Dirt | None:
    """None where nothing can be cleaned. The active segment never is, nor what is newer than `min.compaction.lag.ms`.

    Raises OSError and KafkaError where a segment cannot be read.
    """
    log_of_it, config = cleanable.log, cleanable.log.config
    first_dirty = log_of_it.log_start_offset if cleaned_upto is None else cleaned_upto
    if not log_of_it.log_start_offset <= first_dirty <= log_of_it.log_end_offset:
        first_dirty = log_of_it.log_start_offset
    cleanable_segments: list[Segment] = []
    clean_bytes = dirty_bytes = 0
    overdue = False
    first_uncleanable = log_of_it.log_start_offset
    for segment, following in pairwise(log_of_it.segments.ordered):
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
    """Compacts the logs that need it; each thread calls `clean_filthiest` with its own CleanerProcess.

    `failing` has the reason of every log that could not be compacted the last time, for a metric.
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
        """`logs` gives those whose `cleanup.policy` has `compact`; it is called in the thread of the logs."""
        self._log_dirs = log_dirs
        self._logs = logs
        self._settings = settings
        self._on_loop = on_loop
        self._now_ms = now_ms
        self._in_progress: set[TopicPartition] = set()
        self._retry_at: dict[TopicPartition, int] = {}
        self._warned: dict[TopicPartition, set[int]] = {}
        """The batches that cannot be read and were named in the log."""
        self.failing: dict[TopicPartition, str] = {}
        self.looked_at_ms = now_ms()
        """When it last looked for logs to compact."""
        self.max_dirty_ratio = 0.0
        """Of all logs, when it last looked."""

    def clean_filthiest(self, process: CleanerProcess) -> bool:
        """Compact the log with the largest share of dirty bytes; whether there was one. Blocks: call it in a thread."""
        chosen = self._on_loop(self._choose)
        if chosen is None:
            process.end()
            return False
        cleanable, dirt, job = chosen
        topic_partition = cleanable.log.topic_partition
        try:
            self._clean(cleanable.log, dirt, job, process)
        except CleaningAbortedError as error:
            log.info("Compaction of %s ended early and begins anew: %s", topic_partition, error)
        except (CleaningFailedError, CorruptIndexError, KafkaError, OSError) as error:
            self._failed(cleanable.log, str(error))
        else:
            if self.failing.pop(topic_partition, None) is not None:
                log.info("Compaction of %s works again", topic_partition)
        finally:
            self._in_progress.discard(topic_partition)
        return True

    def _choose(self) -> tuple[Compactable, Dirt, CleaningJob] | None:
        now = self.looked_at_ms = self._now_ms()
        self.max_dirty_ratio = 0.0
        found: list[tuple[Compactable, Dirt]] = []
        logs = {each.log.topic_partition: each for each in self._logs()}
        for topic_partition in self.failing.keys() - logs.keys():
            del self.failing[topic_partition]
        for topic_partition in self._warned.keys() - logs.keys():
            del self._warned[topic_partition]
        for topic_partition, each in logs.items():
            if (
                topic_partition in self._in_progress
                or now < self._retry_at.get(topic_partition, 0)
                or each.log.is_moving
            ):
                continue
            try:
                dirt = dirt_of(each, self._log_dirs.cleaned_upto(topic_partition), now)
            except (KafkaError, CorruptIndexError, OSError) as error:
                self._failed(each.log, str(error))
                continue
            if dirt is None:
                continue
            self.max_dirty_ratio = max(self.max_dirty_ratio, dirt.ratio)
            if dirt.overdue or dirt.ratio > each.log.config.min_cleanable_dirty_ratio:
                reason = self._lack_of_room(each.log, dirt.segments)
                if reason is None:
                    found.append((each, dirt))
                else:
                    self._failed(each.log, reason)
        if not found:
            return None
        cleanable, dirt = max(found, key=lambda pair: pair[1].ratio)
        self._in_progress.add(cleanable.log.topic_partition)
        return cleanable, dirt, self._job_for(cleanable, dirt, now)

    def _lack_of_room(self, cleanable: Log, segments: Iterable[Segment]) -> str | None:
        """Why the next segment cannot be written now, or None. The old ones go only some time after it is there."""
        directory = cleanable.directory.parent
        space = self._log_dirs.owned.disk_space.get(directory)
        _, free = self._log_dirs.owned.space(directory)
        if space is None or free < 0:
            return None
        needed = min(sum(each.size for each in segments), cleanable.config.segment_bytes) + space.hard // 2
        if free >= needed:
            return None
        return f"it may need {needed} bytes before it frees any, and {directory} has {free}: make room there"

    def _job_for(self, cleanable: Compactable, dirt: Dirt, now: int) -> CleaningJob:
        config = cleanable.log.config
        settings = self._settings()
        return CleaningJob(
            directory=cleanable.log.directory,
            segments=[
                SourceSegment(each.base_offset, each.size, each.index.size, each.time_index.size)
                for each in dirt.segments
            ],
            transaction_segments=[each.base_offset for each in cleanable.log.segments.ordered],
            first_dirty_offset=dirt.first_dirty_offset,
            first_uncleanable_offset=dirt.first_uncleanable_offset,
            producers={each.producer_id: LastRecord(each.last_offset, each.epoch) for each in cleanable.producers()},
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
            self._swap(cleaned, [by_base[each] for each in group.base_offsets])
            groups.append(group)
            for each in group.base_offsets:
                del by_base[each]
            if by_base and (reason := self._lack_of_room(cleaned, by_base.values())) is not None:
                raise CleaningAbortedError(reason)

        # compaction leaves gaps; recovery takes one behind the recovery point for something that was lost
        cleaned.flusher.flush_rolled()
        self._log_dirs.save_bounds(cleaned)
        try:
            end_offset, unreadable = process.clean(job, swap)
        except (CleaningFailedError, OSError) as error:
            if self._on_loop(lambda: not set(by_base.values()).issubset(cleaned.segments.ordered)):
                raise CleaningAbortedError(f"its segments have changed meanwhile ({error})") from error
            raise
        finally:
            for path in job.directory.glob(f"*{CLEANED_SUFFIX}"):
                path.unlink(missing_ok=True)
        self._log_dirs.note_cleaned(cleaned, end_offset)
        self._warn_of(cleaned.topic_partition, unreadable)
        read, written = sum(each.bytes_read for each in groups), sum(each.bytes_written for each in groups)
        log.info(
            "Compacted %s from offset %d up to %d: %.1f MB of %.1f MB, %d of %d records stay, in %.1f s",
            cleaned.topic_partition,
            dirt.first_dirty_offset,
            end_offset,
            written / 1e6,
            read / 1e6,
            sum(each.records_kept for each in groups),
            sum(each.records_read for each in groups),
            time.monotonic() - started,
        )

    def _warn_of(self, topic_partition: TopicPartition, unreadable: Mapping[int, str]) -> None:
        warned = self._warned.setdefault(topic_partition, set())
        for offset, reason in unreadable.items():
            if offset not in warned:
                warned.add(offset)
                log.warning(
                    "The batch at offset %d of %s cannot be read and stays as it is; consumers have to skip it: %s",
                    offset,
                    topic_partition,
                    reason,
                )

    def _swap(self, cleaned: Log, old: Sequence[Segment]) -> None:
        new = _open_cleaned(old[0], self._now_ms())
        self._on_loop(lambda: cleaned.stage_swap(old, new))
        try:
            # the new files have their names for good before the old ones lose theirs, even if the power fails
            sync_directory(new.directory)
        except OSError:
            for path in new.files():
                path.unlink(missing_ok=True)
            raise
        self._on_loop(lambda: cleaned.finish_swap(old, new, self._now_ms()))
        sync_directory(new.directory)

    def _failed(self, failed: Log, reason: str) -> None:
        topic_partition = failed.topic_partition
        if self._log_dirs.logs.get(topic_partition) is not failed:
            return  # it has been deleted meanwhile, or the broker is stopping
        self._retry_at[topic_partition] = self._now_ms() + RETRY_MS
        if self.failing.get(topic_partition) != reason:
            log.error("Compaction of %s failed and is tried again every minute: %s", topic_partition, reason)
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
