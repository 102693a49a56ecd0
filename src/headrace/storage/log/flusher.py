"""Flushes the log of one partition to disk and maintains its recovery point.

A flush blocks on the disk. It may run in one thread while another thread appends.
"""

import errno
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from threading import Lock
from typing import Final

from headrace.errors import ErrorCode, KafkaError
from headrace.storage.files.atomic_file import sync_directory, sync_file
from headrace.storage.files.disk_failures import may_pass
from headrace.storage.log.leader_epochs import LeaderEpochs
from headrace.storage.log.segment import Segment
from headrace.storage.log.state import LogState

_RETRIABLE: Final = (errno.ENOENT, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""The log is being deleted, or a file could not be opened: no written data was lost, so a later flush may succeed."""

log = logging.getLogger(__name__)


class LogFlusher:
    """Flushes a log. Everything before `recovery_point`, which only the flusher changes, is on disk."""

    __slots__ = (
        "_flushing",
        "_last_flush_ms",
        "_leader_epochs",
        "_limit",
        "_moved_from",
        "_moving_point",
        "_new_names",
        "_rolled",
        "_saved_recovery_point",
        "_state",
        "flush_failure",
        "recovery_point",
    )

    def __init__(self, state: LogState, leader_epochs: LeaderEpochs, now_ms: int) -> None:
        self._state = state
        self._leader_epochs = leader_epochs
        self._last_flush_ms = now_ms
        self._flushing = Lock()
        self._moving_point = Lock()
        self._limit: int | None = None
        """Maximum recovery point during a truncation."""
        self._new_names = True
        self._rolled: list[Segment] = []
        self._saved_recovery_point = 0
        self._moved_from: Path | None = None
        self.recovery_point = 0
        self.flush_failure: str | None = None
        """The error that made the log unusable. After a failed fsync the kernel may drop the data, so never retry."""

    # -- events of the log ---------------------------------------------------------------------------------------------

    def start_at(self, recovery_point: int, saved: int) -> None:
        """Begin with a log whose records before `recovery_point` are on disk; `saved` is the checkpointed point."""
        self.recovery_point = recovery_point
        self._saved_recovery_point = max(saved, recovery_point)

    @contextmanager
    def truncating_to(self, offset: int) -> Iterator[int]:
        """Keep the recovery point at `offset` or lower until `truncated_to`, and yield the earlier one.

        After an exception, it is restored: nothing may have been deleted by then.
        """
        with self._moving_point:
            earlier, self._limit = self.recovery_point, offset
            self.recovery_point = min(earlier, offset)
        try:
            yield earlier
        except BaseException:
            with self._moving_point:
                self.recovery_point, self._limit = max(self.recovery_point, earlier), None
            raise

    def truncated_to(self, offset: int) -> None:
        """End a truncation. Call it after `truncations` has been incremented."""
        with self._moving_point:
            self.recovery_point, self._limit = min(self.recovery_point, offset), None

    def rolled(self, active: Segment) -> None:
        """Sync a segment that receives no more appends, or leave it to the next flush if recovery would read it anyway.

        Call it before the new segment is listed: a flush that runs until then does not sync the indexes of this one.
        Raises OSError.
        """
        end_offset = self._state.log_end_offset
        if self._saved_recovery_point >= end_offset and (self.recovery_point >= end_offset or self.is_flushing):
            # recovery would not read it
            active.file.sync()
            active.sync_indexes()
        elif active not in self._rolled:  # an earlier roll that failed may have added it
            self._rolled.append(active)

    def restored(self, segments: Sequence[Segment]) -> None:
        """Make the next flush sync segments that were not listed for a while: a flush may have missed them.

        Call it after they are listed again. Those in `_rolled` are added again, because a flush may be removing them.
        """
        self._rolled += segments

    def files_created(self) -> None:
        """Record that files were created: the next flush also syncs the directory."""
        self._new_names = True

    def switched(self, from_parent: Path) -> None:
        """Record that the log now uses another directory; the old one was in `from_parent`."""
        self._moved_from = from_parent
        self._new_names = True

    # -- flushing ------------------------------------------------------------------------------------------------------

    @property
    def recovery_point_to_save(self) -> int:
        """The recovery point for the checkpoint: earlier segments are on disk with their indexes.

        The active segment's indexes are not on disk, so recovery must read that segment, even if it is rolled later.
        """
        # Another thread may roll the log at the same time: it adds to `_rolled` before it changes the segments, and
        # changes these before the end offset.
        point, last_offset = self.recovery_point, self._state.log_end_offset - 1
        segments = self._state.segments.ordered
        if rolled := tuple(self._rolled):
            point = min(point, *(segment.base_offset for segment in rolled))
        elif segments:  # a closed log has no segments, and its indexes are on disk
            point = min(point, max(segments[-1].base_offset, last_offset))
        self._saved_recovery_point = max(self._saved_recovery_point, point)
        return point

    @property
    def is_flushing(self) -> bool:
        """True if another thread is flushing."""
        return self._flushing.locked()

    def flush_due(self, now_ms: int) -> bool:
        """Return True if `flush.messages` or `flush.ms` requires a flush."""
        config = self._state.config
        unflushed = self._state.log_end_offset - self.recovery_point
        return unflushed > 0 and (unflushed >= config.flush_messages or now_ms - self._last_flush_ms >= config.flush_ms)

    def flush(self, now_ms: int | None = None, *, upto: int | None = None) -> None:
        """Write all records, or those before `upto`, to disk and advance the recovery point.

        Appends may run at the same time. Raises KafkaError(kafka_storage_error).
        """
        truncations = self._state.truncations  # before the end offset, which a truncation lowers
        end = self._state.log_end_offset
        if upto is not None:
            end = min(end, upto)
        if now_ms is not None:
            self._last_flush_ms = now_ms
        if end > self.recovery_point or self._rolled:
            with self._flushing:
                self._flush(end, truncations)

    def _flush(self, end: int, truncations: int) -> None:
        if self.flush_failure is not None:
            raise KafkaError(ErrorCode.kafka_storage_error, self.flush_failure)
        state = self._state
        segments = state.segments.ordered
        try:
            self.sync_switch()
            is_complete = True
            rolled = [segment for segment in self._rolled if segment.base_offset < end]
            for segment in rolled:
                is_dropped = segment not in state.segments.ordered
                if is_dropped or self._sync_segment(segment, truncations, active=False):
                    self._rolled.remove(segment)
                else:
                    is_complete = False
            for segment, next_segment in zip_longest(segments, segments[1:]):
                if segment.base_offset >= end:
                    break
                if next_segment is not None and (next_segment.base_offset <= self.recovery_point or segment in rolled):
                    continue
                is_complete &= self._sync_segment(segment, truncations, active=segment is segments[-1])
            self._leader_epochs.sync()
            if self._new_names:
                self._new_names = False
                try:
                    sync_directory(state.directory)
                except OSError:
                    self._new_names = True
                    raise
            with self._moving_point:
                if is_complete and truncations == state.truncations:
                    self.recovery_point = max(
                        self.recovery_point, end if self._limit is None else min(end, self._limit)
                    )
        except OSError as error:
            failed = state.storage_error("flush", error)
            if error.errno not in _RETRIABLE:
                self.flush_failure = str(failed)
            raise failed from error

    def _sync_segment(self, segment: Segment, truncations: int, *, active: bool) -> bool:
        """Sync a segment's files. Return False if the recovery point must not move past the segment.

        That is the case if a truncation or a move in progress has removed a file of a listed segment.
        """
        try:
            segment.file.sync()
            if active:
                self._sync_transactions(segment)
            else:
                segment.sync_indexes()
        except FileNotFoundError:
            is_listed = segment in self._state.segments.ordered
            if is_listed and self._limit is None and truncations == self._state.truncations:
                raise
            log.debug("%s was deleted during a flush", segment.path)
            return not is_listed
        return True

    def _sync_transactions(self, active: Segment) -> None:
        """Sync the active segment's transaction index. Raises OSError.

        Entries that cannot be written now stay in memory: recovery reads this segment until it is rolled, and a roll
        writes them or fails.
        """
        try:
            active.txn_index.write_tail()
        except OSError as error:
            if not may_pass(error):
                raise
        if active.txn_index.path.exists():
            sync_file(active.txn_index.path)

    def flush_rolled(self) -> None:
        """Flush every segment but the active one. Appends may run at the same time."""
        self.flush(upto=self._state.segments.active_base_offset)

    def sync_switch(self) -> None:
        """Make the last `Log.switch_to` survive a power failure. Raises OSError."""
        if self._moved_from is not None:
            sync_directory(self._moved_from)
            self._moved_from = None
