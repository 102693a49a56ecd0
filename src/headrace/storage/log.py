"""The log of one partition: an ordered run of segments, appended to at the end and dropped from at the start.

Synchronous, and told the time by its caller. One thread appends, reads, truncates and deletes; `flush` and
`remove_deleted_files`, which wait for the disk, may run in another beside it.
"""

import errno
import logging
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from threading import Lock
from typing import Final

from headrace.errors import ErrorCode, KafkaError
from headrace.storage.atomic_file import sync_directory, sync_file
from headrace.storage.checkpoint import CorruptCheckpointError
from headrace.storage.leader_epochs import FILE_NAME as LEADER_EPOCHS_FILE
from headrace.storage.leader_epochs import UNDEFINED, EpochEntry, LeaderEpochs, read_entries
from headrace.storage.log_config import LogConfig
from headrace.storage.log_file import FileSlice
from headrace.storage.producer_snapshot import remove_stray_snapshots
from headrace.storage.recovery import Loading, load_segments, remove_segments, remove_unfinished_swaps
from headrace.storage.retention import expired_segments
from headrace.storage.segment import Segment
from headrace.storage.segment_files import SNAPSHOT_SUFFIX, SWAP_SUFFIX, segment_file
from headrace.storage.segments import Segments
from headrace.storage.timestamps import max_timestamp, offset_for_timestamp
from headrace.storage.txn_index import AbortedTransaction
from headrace.storage.txn_recovery import restore_transaction_indexes
from headrace.types import Buffer, TopicPartition
from headrace.wire.batch import BatchHeader

_NOT_THE_DISK: Final = (errno.ENOENT, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""A flush that fails so may be tried again: the log is just being deleted, or a file could not be opened."""

log = logging.getLogger(__name__)


class CleaningAbortedError(Exception):
    """The log is no longer what was compacted: do it again."""


class Log:
    """Appends, reads and keeps the batches of one partition.

    `config` may be replaced at any time.
    """

    __slots__ = (
        "__weakref__",
        "_deleted_files",
        "_flushing",
        "_kept_recovery_point",
        "_last_flush_ms",
        "_moved_from",
        "_new_names",
        "_rolled",
        "_segments",
        "_truncations",
        "config",
        "directory",
        "flush_failure",
        "is_moving",
        "keep_bounds",
        "leader_epochs",
        "log_end_offset",
        "log_start_offset",
        "on_disk_error",
        "recovery_point",
        "topic_partition",
    )

    def __init__(
        self, directory: Path, topic_partition: TopicPartition, config: LogConfig, epochs: list[EpochEntry], now_ms: int
    ) -> None:
        """Use `open`."""
        self.directory = directory
        self.topic_partition = topic_partition
        self.config = config
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.recovery_point = 0
        # a weak reference, because a cycle would keep the files of a deleted log open until the next collection
        self.leader_epochs = LeaderEpochs(directory / LEADER_EPOCHS_FILE, epochs, weakref.proxy(self))
        self._segments = Segments([])
        self._deleted_files: deque[tuple[int, list[Path]]] = deque()
        self._last_flush_ms = now_ms
        self._truncations = 0
        self._flushing = Lock()
        self._new_names = True
        self._rolled: list[Segment] = []
        self._kept_recovery_point = 0
        self.flush_failure: str | None = None
        """Why the log cannot be used any more: what an fsync failed to write, the next one does not try again."""
        self._moved_from: Path | None = None
        self.is_moving = False
        """Whether it is being copied to another log directory; it is not compacted meanwhile."""
        self.keep_bounds: Callable[[Log], None] = _keep_nothing
        """Writes the recovery point and the log start offset down before what lies behind them changes."""
        self.on_disk_error: Callable[[Log, OSError], None] = _tell_nobody
        """Told of every error of the disk, in whichever thread it is met."""

    @classmethod
    def open(
        cls,
        directory: Path,
        topic_partition: TopicPartition,
        config: LogConfig,
        *,
        recovery_point: int,
        clean_shutdown: bool,
        log_start_offset: int,
        now_ms: int,
        kernel_survived: bool = False,
        gapless: bool = False,
    ) -> "Log":
        """Open the log in `directory`, an existing directory, and recover it after an unclean shutdown.

        Recovery reads the segments from the one with `recovery_point` on and cuts off a torn tail. With
        `kernel_survived`, which says that the machine has not restarted since the log was written, it reads only what
        the indexes do not cover. With `gapless`, which says that nothing behind the recovery point was compacted, it
        also notices the loss of a segment's whole end. Raises KafkaError(kafka_storage_error) when the disk fails.
        """
        epochs_path = directory / LEADER_EPOCHS_FILE
        try:
            entries = read_entries(epochs_path)
        except (CorruptCheckpointError, OSError) as error:
            log.warning("%s; reading the epochs from the log", error)
            entries = []
        self = cls(directory, topic_partition, config, entries, now_ms)
        try:
            ordered, self.log_end_offset = load_segments(
                Loading(
                    directory=directory,
                    config=config,
                    now_ms=now_ms,
                    recovery_point=recovery_point,
                    clean_shutdown=clean_shutdown,
                    log_start_offset=log_start_offset,
                    kernel_survived=kernel_survived,
                    gapless=gapless,
                ),
                self.leader_epochs,
            )
            restore_transaction_indexes(directory, ordered)
            self._segments.replace(ordered)
            self.log_start_offset = max(log_start_offset, self._segments.first_offset)
            self.recovery_point = self.log_end_offset if clean_shutdown else min(recovery_point, self.log_end_offset)
            self._kept_recovery_point = max(recovery_point, self.recovery_point)
            self._complete_epochs()
            self.leader_epochs.truncate_from_end(self.log_end_offset)
            self.leader_epochs.truncate_from_start(self.log_start_offset)
            remove_stray_snapshots(directory, [segment.base_offset for segment in ordered], self.log_end_offset)
        except OSError as error:
            raise self._storage_error("open", error) from error
        return self

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

    # -- writing -------------------------------------------------------------------------------------------------------

    def append(
        self,
        buffers: Sequence[Buffer],
        size: int,
        *,
        base_offset: int,
        last_offset: int,
        max_timestamp: int,
        offset_of_max_timestamp: int,
        leader_epoch: int,
        now_ms: int,
    ) -> bool:
        """Write whole, validated batches, `size` bytes together, with the offsets and epochs already in them.

        Returns whether a new segment begins with them.

        `offset_of_max_timestamp` is the last offset of the first batch that has `max_timestamp`: that of a batch, not
        of the record inside it. All or nothing: raises KafkaError(kafka_storage_error) with the log as it was.
        """
        segment = self._segments.ordered[-1]
        config = self.config
        try:
            rolls = segment.should_roll(size, last_offset, max_timestamp, config, now_ms)
            if rolls:
                segment = self._roll_to(base_offset, now_ms)
            if leader_epoch > self.leader_epochs.latest:
                self.leader_epochs.assign(leader_epoch, base_offset)
            position = segment.size
            segment.append(
                buffers, size, last_offset, max_timestamp, offset_of_max_timestamp, config.index_interval_bytes
            )
        except OSError as error:
            raise self._storage_error(f"append {size} bytes to", error) from error
        self._segments.appended(base_offset, segment, position)
        self.log_end_offset = last_offset + 1
        return rolls

    def roll(self, now_ms: int) -> Segment:
        """Begin a new segment at the log end offset; an empty active one serves as it is."""
        if not self.active_segment.size:
            return self.active_segment
        try:
            return self._roll_to(self.log_end_offset, now_ms)
        except OSError as error:
            raise self._storage_error("roll", error) from error

    def _roll_to(self, base_offset: int, now_ms: int) -> Segment:
        *older, active = self._segments.ordered
        active.seal()
        if self.recovery_point >= self.log_end_offset:
            # no flush will come to this segment by itself any more
            if self._kept_recovery_point < self.log_end_offset:
                self._rolled.append(active)
            else:  # and recovery would not look into it
                active.file.sync()
                active.sync_indexes()
        segment = Segment.create(self.directory, base_offset, now_ms=now_ms, config=self.config)
        self._new_names = True
        if active.size:
            self._segments.replace([*older, active, segment])
        else:
            # nothing of the empty segment is worth keeping, and its name says an offset it will never hold
            _unlink(active.mark_deleted())
            self._segments.replace([*older, segment])
        return segment

    # -- reading -------------------------------------------------------------------------------------------------------

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
        """Timestamp, offset and leader epoch of the first record that is not older than `timestamp` ms."""
        try:
            return offset_for_timestamp(self._segments.ordered, timestamp, self.log_start_offset)
        except OSError as error:
            raise self._storage_error("read", error) from error

    def max_timestamp(self) -> tuple[int, int] | None:
        """The largest timestamp in the log, in ms, and the offset of the first record that has it (KIP-734)."""
        try:
            return max_timestamp(self._segments.ordered)
        except OSError as error:
            raise self._storage_error("read", error) from error

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

    # -- dropping ------------------------------------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> None:
        """Drop everything from `offset` on, the whole batch when it is in the middle of one.

        Raises KafkaError(kafka_storage_error).
        """
        if offset >= self.log_end_offset:
            return
        if offset < self._segments.first_offset:
            self.truncate_fully_and_start_at(offset)
            return
        try:
            self._begin_truncation(offset)
            kept = self._segments.floor(offset) + 1
            remove_segments(self.directory, self._segments.ordered[kept:])
            self._segments.replace(self._segments.ordered[:kept])
            end_offset = self.active_segment.truncate(offset)
            # what was cut off must not come back with a power failure, behind what is written next
            self.active_segment.file.sync()
            self._end_at(end_offset)
        except OSError as error:
            raise self._storage_error("truncate", error) from error

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything and go on at `offset`. Raises KafkaError(kafka_storage_error)."""
        try:
            self._begin_truncation(min(offset, self._segments.first_offset))
            remove_segments(self.directory, self._segments.ordered)
            now_ms = self.active_segment.created_ms
            self._segments.replace([Segment.create(self.directory, offset, now_ms=now_ms, config=self.config)])
            sync_directory(self.directory)
            self.leader_epochs.clear()
            self.log_start_offset = offset
            self._end_at(offset)
        except OSError as error:
            raise self._storage_error("truncate", error) from error

    def _begin_truncation(self, offset: int) -> None:
        self._truncations += 1
        remove_unfinished_swaps(self.directory)
        if offset < self.recovery_point:
            # a recovery that trusts what lies before the old one would trust what is written anew
            self.recovery_point = offset
            self.log_start_offset = min(self.log_start_offset, offset)
            self.keep_bounds(self)

    def _end_at(self, offset: int) -> None:
        self.log_end_offset = offset
        self.recovery_point = min(self.recovery_point, offset)
        self.log_start_offset = min(self.log_start_offset, offset)
        self.leader_epochs.truncate_from_end(offset)
        remove_stray_snapshots(self.directory, [segment.base_offset for segment in self._segments.ordered], offset)

    def advance_log_start(self, offset: int) -> None:
        """Hide what is before `offset` (DeleteRecords); retention removes segments that are hidden as a whole.

        Raises KafkaError(offset_out_of_range) behind the log end offset.
        """
        if offset > self.log_end_offset:
            raise KafkaError(
                ErrorCode.offset_out_of_range,
                f"{self.topic_partition} ends at offset {self.log_end_offset}; it cannot start at {offset}",
            )
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self.leader_epochs.truncate_from_start(offset)

    def apply_retention(self, now_ms: int, high_watermark: int) -> int:
        """Drop segments past the retention time, size or the log start offset; how many.

        Only what is below `high_watermark`. The files go after `file.delete.delay.ms`: see `remove_deleted_files`.
        """
        try:
            doomed = expired_segments(
                self._segments.ordered, self.config, now_ms, high_watermark, self.log_start_offset, self.log_end_offset
            )
            if not doomed:
                return 0
            if len(doomed) == len(self._segments.ordered):
                self._roll_to(self.log_end_offset, now_ms)
            self._segments.replace(self._segments.ordered[len(doomed) :])
            self.advance_log_start(self._segments.first_offset)
            files = [path for segment in doomed for path in segment.mark_deleted()]
            self._deleted_files.append((now_ms + self.config.file_delete_delay_ms, files))
            for segment in doomed:
                segment_file(self.directory, segment.base_offset, SNAPSHOT_SUFFIX).unlink(missing_ok=True)
        except OSError as error:
            raise self._storage_error("delete old segments of", error) from error
        log.info(
            "%s: removed %d segments, the log starts at offset %d",
            self.topic_partition,
            len(doomed),
            self.log_start_offset,
        )
        return len(doomed)

    # -- compaction ----------------------------------------------------------------------------------------------------

    def stage_swap(self, old: Sequence[Segment], cleaned: Segment) -> None:
        """Make `.swap` files of the `.cleaned` ones: from here on a crash puts them in the place of `old`.

        To be followed by a sync of the directory, which may take its time elsewhere, and `finish_swap`. Raises
        CleaningAbortedError when the log has changed since; KafkaError(kafka_storage_error).
        """
        try:
            self._check_swap(old, cleaned)
            cleaned.change_suffix(SWAP_SUFFIX)
        except OSError as error:
            raise self._storage_error("compact", error) from error

    def finish_swap(self, old: Sequence[Segment], cleaned: Segment, now_ms: int) -> None:
        """Put the `.swap` segment in the place of `old`; readers go on with what they have in hand.

        Raises as `stage_swap` does.
        """
        try:
            place = self._check_swap(old, cleaned)
            files = [path for segment in old for path in segment.mark_deleted()]
            cleaned.change_suffix("")
        except OSError as error:
            raise self._storage_error("compact", error) from error
        self._deleted_files.append((now_ms + self.config.file_delete_delay_ms, files))
        ordered = self._segments.ordered
        self._segments.replace([*ordered[:place], cleaned, *ordered[place + len(old) :]])
        for segment in old[1:]:
            segment_file(self.directory, segment.base_offset, SNAPSHOT_SUFFIX).unlink(missing_ok=True)

    def _check_swap(self, old: Sequence[Segment], cleaned: Segment) -> int:
        """Where `old` is in the log."""
        if self.is_moving:
            _unlink(cleaned.files())
            raise CleaningAbortedError(f"{self.topic_partition} is being moved to another log directory")
        ordered = self._segments.ordered
        place = next((place for place, each in enumerate(ordered) if each is old[0]), -1)
        whole = place >= 0 and all(each is other for each, other in zip_longest(old, ordered[place : place + len(old)]))
        if not whole or ordered[-1] is old[-1] or not cleaned.path.exists():
            for path in cleaned.files():
                path.unlink(missing_ok=True)
            raise CleaningAbortedError(f"{self.topic_partition} was truncated, cut by retention or deleted meanwhile")
        return place

    @property
    def has_deleted_files(self) -> bool:
        """Whether files of dropped segments wait for their removal."""
        return bool(self._deleted_files)

    def remove_deleted_files(self, now_ms: int) -> None:
        """Unlink the files of dropped segments whose delay is over."""
        for _ in range(len(self._deleted_files)):
            due, files = self._deleted_files.popleft()
            if due > now_ms:
                self._deleted_files.appendleft((due, files))
                return
            _unlink(files)

    # -- the disk ------------------------------------------------------------------------------------------------------

    @property
    def truncations(self) -> int:
        """How often the log was truncated since it was opened."""
        return self._truncations

    @property
    def recovery_point_to_keep(self) -> int:
        """What a checkpoint may say: everything before it is on the disk, with the indexes that recovery leaves alone.

        Those of the active segment are not, so it must not be passed over even if it is rolled right now.
        """
        kept = self.recovery_point
        if self._rolled:
            kept = min(kept, self._rolled[0].base_offset)
        elif self._segments.ordered:  # otherwise it is closed, with its indexes
            kept = min(kept, max(self._segments.active_base_offset, self.log_end_offset - 1))
        self._kept_recovery_point = max(self._kept_recovery_point, kept)
        return kept

    @property
    def is_flushing(self) -> bool:
        """Whether a flush is under way in another thread."""
        return self._flushing.locked()

    def flush_due(self, now_ms: int) -> bool:
        """Whether `flush.messages` or `flush.ms` asks for a flush."""
        unflushed = self.log_end_offset - self.recovery_point
        return unflushed > 0 and (
            unflushed >= self.config.flush_messages or now_ms - self._last_flush_ms >= self.config.flush_ms
        )

    def flush(self, now_ms: int | None = None, *, upto: int | None = None) -> None:
        """Bring records to the disk, all or those before `upto`, and move the recovery point there.

        May run beside appends. Raises KafkaError(kafka_storage_error).
        """
        end = self.log_end_offset if upto is None else upto
        if now_ms is not None:
            self._last_flush_ms = now_ms
        if end > self.recovery_point or self._rolled:
            with self._flushing:
                self._flush(end)

    def _flush(self, end: int) -> None:
        if self.flush_failure is not None:
            raise KafkaError(ErrorCode.kafka_storage_error, self.flush_failure)
        truncations = self._truncations
        segments = self._segments.ordered
        try:
            self.keep_switch()
            while self._rolled:
                self._sync_segment(self._rolled[0], active=False)
                del self._rolled[0]
            for segment, next_segment in zip_longest(segments, segments[1:]):
                if segment.base_offset >= end:
                    break
                if next_segment is not None and next_segment.base_offset <= self.recovery_point:
                    continue
                self._sync_segment(segment, active=segment is segments[-1])
            self.leader_epochs.sync()
            if self._new_names:
                self._new_names = False
                try:
                    sync_directory(self.directory)
                except OSError:
                    self._new_names = True
                    raise
            if truncations == self._truncations:
                self.recovery_point = max(self.recovery_point, end)
            if segments[-1] is not self._segments.ordered[-1]:
                self._sync_segment(segments[-1], active=False)  # it was rolled meanwhile, when this flush was not over
        except OSError as error:
            failed = self._storage_error("flush", error)
            if error.errno not in _NOT_THE_DISK:
                self.flush_failure = str(failed)
            raise failed from error

    def _sync_segment(self, segment: Segment, *, active: bool) -> None:
        try:
            segment.file.sync()
            if not active:
                segment.sync_indexes()
            if segment.txn_index.path.exists():
                sync_file(segment.txn_index.path)
        except FileNotFoundError:
            if segment in self._segments.ordered:
                raise
            log.debug("%s was dropped while it was being flushed", segment.path)

    def flush_rolled(self) -> None:
        """Bring the segments that are not appended to any more to the disk. May run beside appends."""
        self.flush(upto=self._segments.active_base_offset)

    def close(self) -> None:
        """Finish the files and bring them to the disk. Raises KafkaError(kafka_storage_error)."""
        try:
            self.active_segment.seal()
            self.flush()
            self.active_segment.sync_indexes()
        except OSError as error:
            raise self._storage_error("close", error) from error
        self._segments.replace([])

    def switch_to(self, directory: Path, from_parent: Path) -> None:
        """Go on in `directory`, which has the same content; the old one, in `from_parent`, has been given up."""
        # a flush that is under way in another thread syncs the old files
        self._truncations += 1
        self._moved_from = from_parent
        self._new_names = True
        self._deleted_files.clear()
        self.move(directory)
        for segment in self._segments.ordered:
            segment.close_file()

    def keep_switch(self) -> None:
        """Let no power failure bring the log back to where it was before `switch_to`. Raises OSError."""
        if self._moved_from is not None:
            sync_directory(self._moved_from)
            self._moved_from = None

    def move(self, directory: Path) -> None:
        """The directory has been renamed to `directory`."""
        self.directory = directory
        self.leader_epochs.path = directory / LEADER_EPOCHS_FILE
        for segment in self._segments.ordered:
            segment.move(directory)
        self._deleted_files = deque(
            (due, [directory / path.name for path in files]) for due, files in self._deleted_files
        )

    def _complete_epochs(self) -> None:
        """Find leader epochs in the batches, where their file is missing or damaged.

        Or where it is ahead: it was cut for a log start offset that a crash took back.
        """
        known = self.leader_epochs.entries
        first = known[0].start_offset if known else self.log_end_offset
        if first <= self.log_start_offset:
            return
        found: list[EpochEntry] = []
        for header in self.headers(self._segments.first_offset):
            if header.base_offset >= first:
                break
            if header.partition_leader_epoch > (found[-1].epoch if found else UNDEFINED):
                found.append(EpochEntry(header.partition_leader_epoch, header.base_offset))
        if found:
            self.leader_epochs.prepend(found)

    def _storage_error(self, what: str, error: OSError) -> KafkaError:
        self.on_disk_error(self, error)
        reason = os.strerror(error.errno) if error.errno else str(error)
        return KafkaError(
            ErrorCode.kafka_storage_error, f"cannot {what} {self.topic_partition} in {self.directory}: {reason}"
        )


def _keep_nothing(_: Log) -> None:
    """For a log that belongs to no directory."""


def _tell_nobody(_: Log, __: OSError) -> None:
    """For a log that belongs to no directory."""


def _unlink(paths: list[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
