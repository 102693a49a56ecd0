"""The log of one partition: an ordered list of segments, appended to at the end and deleted from the start.

Synchronous; callers pass the time. One thread appends, reads, truncates and deletes. `flusher.flush` and
`deleted_files.remove_due`, which block on the disk, may run in another thread.
"""

import logging
from collections.abc import Callable, Sequence
from itertools import zip_longest
from pathlib import Path

from headrace.errors import ErrorCode, KafkaError
from headrace.storage.files.atomic_file import sync_directory
from headrace.storage.files.checkpoint import CorruptCheckpointError
from headrace.storage.files.disk_failures import indivisible
from headrace.storage.log.config import LogConfig
from headrace.storage.log.deleted_files import DeletedFiles
from headrace.storage.log.flusher import LogFlusher
from headrace.storage.log.indexes.index import CorruptIndexError
from headrace.storage.log.indexes.txn_index import AbortedTransaction
from headrace.storage.log.leader_epochs import FILE_NAME as LEADER_EPOCHS_FILE
from headrace.storage.log.leader_epochs import EpochEntry, LeaderEpochs, read_entries
from headrace.storage.log.producers.kept_producers import keep_producers
from headrace.storage.log.producers.producer_snapshot import remove_snapshots, remove_stray_snapshots
from headrace.storage.log.producers.txn_recovery import restore_transaction_indexes
from headrace.storage.log.reader import LogReader
from headrace.storage.log.recovery import Loading, drop_segments, load_segments, remove_unfinished_swaps
from headrace.storage.log.retention import expired_segments
from headrace.storage.log.segment import MAX_RELATIVE_OFFSET, Segment
from headrace.storage.log.segment_files import SNAPSHOT_SUFFIX, SWAP_SUFFIX, segment_file
from headrace.storage.log.segments import Segments
from headrace.storage.log.state import LogState
from headrace.types import Buffer, TopicPartition
from headrace.wording import count

log = logging.getLogger(__name__)


class CleaningAbortedError(Exception):
    """A compaction cannot continue, usually because its log has changed: start it again later."""


class Log:
    """Appends, truncates, applies retention, moves, swaps in compacted segments; `reader` reads, `flusher` flushes.

    Code that runs for every append or read takes offsets and settings from `state`, to avoid the cost of properties.
    """

    __slots__ = (
        "__weakref__",
        "deleted_files",
        "flusher",
        "is_moving",
        "leader_epochs",
        "reader",
        "save_bounds",
        "segments",
        "state",
        "topic_partition",
    )

    def __init__(
        self, directory: Path, topic_partition: TopicPartition, config: LogConfig, epochs: list[EpochEntry], now_ms: int
    ) -> None:
        """Use `open`."""
        self.topic_partition = topic_partition
        self.state = LogState(directory, topic_partition, config)
        self.segments: Segments = self.state.segments
        self.leader_epochs = LeaderEpochs(directory / LEADER_EPOCHS_FILE, epochs, self.state)
        self.reader = LogReader(self.state)
        self.flusher = LogFlusher(self.state, self.leader_epochs, now_ms)
        self.deleted_files = DeletedFiles(self.state)
        self.is_moving = False
        """True while the log is copied to another log directory; compaction waits."""
        self.save_bounds: Callable[[Log], None] = lambda _: None
        """Writes the recovery point and the log start offset to disk before later data is rewritten."""

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
        """Open the log in the existing `directory`, and recover it after an unclean shutdown.

        Recovery reads from the segment that contains `recovery_point` to the end, and truncates a torn tail. With
        `kernel_survived` (the machine has not restarted since the last write) it reads only what the indexes do not
        cover. With `gapless` (nothing after the recovery point was compacted) it also detects that a segment has lost
        whole batches at its end. Raises KafkaError: kafka_storage_error if the disk fails,
        unsupported_for_message_format, corrupt_message if a transaction index must be rebuilt from damaged batches.
        """
        try:
            entries = read_entries(directory / LEADER_EPOCHS_FILE)
        except (CorruptCheckpointError, OSError) as error:
            log.warning("%s; restoring the leader epochs from the log", error)
            entries = []
        self = cls(directory, topic_partition, config, entries, now_ms)
        try:
            ordered, end_offset = load_segments(
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
            state = self.state
            self.segments.replace(ordered)
            state.log_end_offset = end_offset
            state.log_start_offset = max(log_start_offset, self.segments.first_offset)
            self.flusher.start_at(end_offset if clean_shutdown else min(recovery_point, end_offset), recovery_point)
            self.leader_epochs.complete(self.segments.headers(self.segments.first_offset), state.log_start_offset)
            self.leader_epochs.truncate_from_end(end_offset)
            self.leader_epochs.truncate_from_start(state.log_start_offset)
            remove_stray_snapshots(directory, [segment.base_offset for segment in ordered], end_offset)
        except OSError as error:
            raise self.state.storage_error("open", error) from error
        return self

    @property
    def directory(self) -> Path:
        return self.state.directory

    @property
    def config(self) -> LogConfig:
        return self.state.config

    @property
    def log_start_offset(self) -> int:
        return self.state.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self.state.log_end_offset

    def configure(self, config: LogConfig) -> None:
        """Use `config` from now on."""
        self.state.config = config

    # -- writing -------------------------------------------------------------------------------------------------------

    def append(
        self,
        buffers: Sequence[Buffer],
        size: int,
        *,
        base_offset: int,
        first_last_offset: int,
        last_offset: int,
        max_timestamp: int,
        offset_of_max_timestamp: int,
        leader_epoch: int,
        now_ms: int,
    ) -> None:
        """Write whole, validated batches of `size` bytes in total, with their final offsets and epochs.

        `first_last_offset` is the last offset of the first batch; `offset_of_max_timestamp` is the last offset of the
        first batch with `max_timestamp`. On KafkaError(kafka_storage_error) the log is unchanged.
        """
        state = self.state
        segment = state.segments.ordered[-1]
        config = state.config
        try:
            if segment.should_roll(size, last_offset, max_timestamp, config, now_ms):
                # Begin at the log end even if the batch comes after a gap left by the leader's compaction, because
                # recovery treats a gap between two segments as lost records.
                end_offset = state.log_end_offset
                fits = last_offset - end_offset <= MAX_RELATIVE_OFFSET
                segment = self._roll_to(end_offset if fits else base_offset, now_ms)
            if leader_epoch != self.leader_epochs.latest and leader_epoch >= 0:
                self.leader_epochs.assign(leader_epoch, base_offset)
            position = segment.size
            segment.append(
                buffers, size, first_last_offset, max_timestamp, offset_of_max_timestamp, config.index_interval_bytes
            )
        except OSError as error:
            raise state.storage_error(f"append {size} bytes to", error) from error
        state.segments.appended(base_offset, segment, position)
        state.log_end_offset = last_offset + 1

    def begin_epoch(self, leader_epoch: int) -> None:
        """Record that `leader_epoch` begins at the end of the log. Raises KafkaError(kafka_storage_error)."""
        try:
            self.leader_epochs.assign(leader_epoch, self.state.log_end_offset)
        except OSError as error:
            raise self.state.storage_error("record a leader epoch of", error) from error

    def fits_active_segment(self, size: int, last_offset: int, max_timestamp: int, now_ms: int) -> bool:
        """Return True if the active segment is not empty and can take `size` bytes of batches up to `last_offset`."""
        segment, config = self.segments.ordered[-1], self.state.config
        try:
            return segment.size > 0 and not segment.should_roll(size, last_offset, max_timestamp, config, now_ms)
        except OSError:
            return False  # the append that follows fails in the same way, and reports it

    def note_aborted(self, transaction: AbortedTransaction) -> None:
        """Index an aborted transaction that ends in the active segment; on a full disk, a flush writes it later."""
        try:
            self.segments.active.txn_index.append(transaction)
        except OSError as error:
            log.warning("Trying again later: %s", self.state.storage_error("write the transaction index of", error))

    def roll(self, now_ms: int) -> Segment:
        """Begin a new segment at the log end offset, unless the active one is empty. Return the active segment."""
        if not self.segments.active.size:
            return self.segments.active
        try:
            return self._roll_to(self.log_end_offset, now_ms)
        except OSError as error:
            raise self.state.storage_error("roll", error) from error

    def _roll_to(self, base_offset: int, now_ms: int) -> Segment:
        *older, active = self.segments.ordered
        if active.base_offset == base_offset:
            return active  # it is empty
        active.seal()
        self.flusher.rolled(active)
        segment = Segment.create(self.directory, base_offset, now_ms=now_ms, config=self.config)
        self.flusher.files_created()
        self.segments.replace([*older, active, segment] if active.size else [*older, segment])
        if not active.size:
            active.remove()  # it is named by an offset that it will never contain
        self.state.write_producer_snapshot(base_offset)  # so that recovery does not read earlier segments
        return segment

    # -- dropping ------------------------------------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> None:
        """Delete the batch that contains `offset`, and everything after it.

        Raises KafkaError: kafka_storage_error, and those of `Segment.find`.
        """
        if offset >= self.log_end_offset:
            try:
                # Drop epochs without records: if a leader is replaced before its first append, no other has its epoch.
                self.leader_epochs.truncate_from_end(self.log_end_offset)
            except OSError as error:
                raise self.state.storage_error("truncate", error) from error
            return
        if offset < self.segments.first_offset:
            self.truncate_fully_and_start_at(offset)
            return
        kept = self.segments.floor(offset) + 1
        self._begin_truncation(offset, self.segments.ordered[kept - 1])
        with self.state.truncating():
            self.deleted_files.add(drop_segments(self.directory, self.segments.ordered[kept:]))
            self.segments.replace(self.segments.ordered[:kept])
            end_offset = self.segments.active.truncate(offset)
            # a power failure must not bring the old data back after newly written batches
            self.segments.active.file.sync()
            self._end_at(end_offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Delete everything, and continue at `offset`. Raises KafkaError(kafka_storage_error)."""
        self._begin_truncation(min(offset, self.segments.first_offset))
        with self.state.truncating():
            self.deleted_files.add(drop_segments(self.directory, self.segments.ordered))
            remove_snapshots(self.directory)
            with_room, now = self.deleted_files.with_room, self.segments.active.created_ms
            self.segments.replace([with_room(Segment.create, self.directory, offset, now_ms=now, config=self.config)])
            sync_directory(self.directory)
            with_room(self.leader_epochs.clear)
            self.state.log_start_offset = offset
            self._end_at(offset)

    def _begin_truncation(self, offset: int, last: Segment | None = None) -> None:
        state, log_start_offset = self.state, self.log_start_offset
        state.truncations += 1
        try:
            if last is not None and (found := last.find(offset)) is not None:  # this fails if it is damaged
                offset = min(offset, found[1].base_offset)
            with self.flusher.truncating_to(offset) as recovery_point:
                remove_unfinished_swaps(state.directory)
                if offset < recovery_point:
                    # recovery does not check data before the recovery point, so save it before that data is rewritten
                    state.log_start_offset = min(state.log_start_offset, offset)
                    self.save_bounds(self)
        except (OSError, CorruptIndexError) as error:
            state.log_start_offset = log_start_offset
            raise state.storage_error("truncate", error) from error

    def _end_at(self, offset: int) -> None:
        self.state.log_end_offset = offset
        self.state.truncations += 1  # a flush that has begun since the first increment must not move the recovery point
        self.flusher.truncated_to(offset)
        self.state.log_start_offset = min(self.log_start_offset, offset)
        self.leader_epochs.truncate_from_end(offset)
        remove_stray_snapshots(self.directory, [segment.base_offset for segment in self.segments.ordered], offset)

    def advance_log_start(self, offset: int) -> None:
        """Hide records before `offset` (DeleteRecords); retention later deletes segments that have no other records.

        Raises KafkaError, and then hides none: kafka_storage_error, or offset_out_of_range after the log end offset.
        """
        if offset > self.log_end_offset:
            raise KafkaError(
                ErrorCode.offset_out_of_range,
                f"{self.topic_partition} ends at offset {self.log_end_offset}; it cannot start at {offset}",
            )
        if offset > self.log_start_offset:
            try:
                self.leader_epochs.truncate_from_start(offset)
            except OSError as error:
                raise self.state.storage_error("move the start of", error) from error
            self.state.log_start_offset = offset

    def apply_retention(self, now_ms: int, high_watermark: int) -> int:
        """Drop segments that exceed the retention time or size or end before the log start offset; return their number.

        Segments with records at or above `high_watermark` are kept. Raises KafkaError(kafka_storage_error).
        """
        try:
            doomed = expired_segments(
                self.segments.ordered, self.config, now_ms, high_watermark, self.log_start_offset, self.log_end_offset
            )
            inactive = [segment for segment in doomed if segment is not self.segments.active]
            if inactive or self.state.lacks_snapshot:
                self._drop(inactive, now_ms)
            if len(inactive) < len(doomed):
                # after the others: on a full disk, the roll may fail until their files are removed
                self._roll_to(self.log_end_offset, now_ms)
                self._drop(doomed[-1:], now_ms)
        except OSError as error:
            raise self.state.storage_error("delete old segments of", error) from error
        return len(doomed)

    def _drop(self, oldest: Sequence[Segment], now_ms: int) -> None:
        """Drop the first segments. On OSError, those whose files were not renamed stay."""
        ordered, dropped = self.segments.ordered, 0
        keep_producers(self.state, ordered[len(oldest) :])
        # before the renames: a flush in another thread fails if a file of a listed segment is missing
        self.segments.replace(ordered[len(oldest) :])
        try:
            for segment in oldest:
                self.deleted_files.add(segment.mark_deleted(), now_ms)
                dropped += 1
            remove_snapshots(self.directory, self.segments.first_offset)
        finally:
            self.segments.replace(ordered[dropped:])
            self.flusher.restored(ordered[dropped : len(oldest)])
            try:
                # after the renames, because unlike them it may fail on a full disk; a start derives it from the files
                self.advance_log_start(self.segments.first_offset)
            except KafkaError as error:
                log.warning("The file %s is outdated: %s", self.leader_epochs.path, error)
                self.state.log_start_offset = max(self.log_start_offset, self.segments.first_offset)
            if dropped:
                start, removed = self.log_start_offset, count(dropped, "segment")
                log.info("%s: removed %s; the log now starts at offset %d", self.topic_partition, removed, start)

    # -- compaction ----------------------------------------------------------------------------------------------------

    def stage_swap(self, old: Sequence[Segment], cleaned: Segment) -> None:
        """Rename the `.cleaned` files to `.swap`: a start after a crash now replaces `old` with them.

        Sync the directory next, in a thread if need be, then call `finish_swap`. Raises CleaningAbortedError if the log
        has changed since the compaction began, and KafkaError(kafka_storage_error).
        """
        try:
            self._check_swap(old, cleaned)
            cleaned.change_suffix(SWAP_SUFFIX)
        except OSError as error:
            raise self.state.storage_error("compact", error) from error

    def finish_swap(self, old: Sequence[Segment], cleaned: Segment, now_ms: int) -> None:
        """Replace `old` with the `.swap` segment; current readers keep their old files open.

        Raises the errors of `stage_swap`.
        """
        try:
            place = self._check_swap(old, cleaned)
            try:
                files = [path for segment in old for path in segment.mark_deleted()]
                cleaned.change_suffix("")
            except OSError as error:
                self._undo_swap(old, cleaned, error)
                raise
            self.deleted_files.add(files, now_ms)
            ordered = self.segments.ordered
            self.segments.replace([*ordered[:place], cleaned, *ordered[place + len(old) :]])
            for segment in old[1:]:
                segment_file(self.directory, segment.base_offset, SNAPSHOT_SUFFIX).unlink(missing_ok=True)
        except OSError as error:
            raise self.state.storage_error("compact", error) from error

    def _undo_swap(self, old: Sequence[Segment], cleaned: Segment, error: OSError) -> None:
        """Rename the files of `old` back. Raises HalfDoneError."""
        with indivisible(f"After an error ({error}), restoring the compacted segments"):
            for segment in old:
                segment.change_suffix("")
                segment.path.stat()  # another thread, removing an older deleted file of that name, may have taken it
            cleaned.remove()  # last: after a crash before that, the start completes the swap
        self.flusher.files_created()  # the next flush syncs the names

    def _check_swap(self, old: Sequence[Segment], cleaned: Segment) -> int:
        """Return the index of `old[0]`. If `old` has changed, remove `cleaned` and raise CleaningAbortedError."""
        if self.is_moving:
            cleaned.remove()
            raise CleaningAbortedError("the log is being moved to another log directory")
        ordered = self.segments.ordered
        place = next((place for place, segment in enumerate(ordered) if segment is old[0]), -1)
        current = ordered[place : place + len(old)]
        unchanged = place >= 0 and all(one is other for one, other in zip_longest(old, current))
        if not unchanged or ordered[-1] is old[-1] or not cleaned.path.exists():
            cleaned.remove()
            raise CleaningAbortedError("the log was truncated, shortened by retention or deleted meanwhile")
        return place

    # -- closing and moving --------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Complete the files and sync them. Raises KafkaError(kafka_storage_error)."""
        try:
            self.segments.active.seal()
            self.flusher.flush()
            self.segments.active.sync_indexes()
        except OSError as error:
            raise self.state.storage_error("close", error) from error
        self.segments.replace([])

    def switch_to(self, directory: Path, from_parent: Path) -> None:
        """Use `directory`, a complete copy, instead of the old one in `from_parent`."""
        # a flush in another thread may still be syncing the old files: it must not advance the recovery point
        self.state.truncations += 1
        self.flusher.switched(from_parent)
        self.deleted_files.clear()
        self.move(directory)
        for segment in self.segments.ordered:
            segment.close_file()

    def move(self, directory: Path) -> None:
        """Use the new path of the log's directory, which was renamed or copied."""
        self.state.directory = directory
        self.leader_epochs.path = directory / LEADER_EPOCHS_FILE
        for segment in self.segments.ordered:
            segment.move(directory)
