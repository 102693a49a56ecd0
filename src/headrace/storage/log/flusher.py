"""Brings the log of one partition to the disk, and knows how far it is there: the recovery point.

A flush waits for the disk, and may run in another thread beside the one that appends.
"""

import errno
import logging
from itertools import zip_longest
from pathlib import Path
from threading import Lock
from typing import Final

from headrace.errors import ErrorCode, KafkaError
from headrace.storage.files.atomic_file import sync_directory, sync_file
from headrace.storage.log.leader_epochs import LeaderEpochs
from headrace.storage.log.segment import Segment
from headrace.storage.log.state import LogState

_NOT_THE_DISK: Final = (errno.ENOENT, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""A flush that fails so may be tried again: the log is just being deleted, or a file could not be opened."""

log = logging.getLogger(__name__)


class LogFlusher:
    """Flushes a log; everything before `recovery_point` is on the disk. Only the flusher moves that."""

    __slots__ = (
        "_flushing",
        "_kept_recovery_point",
        "_last_flush_ms",
        "_leader_epochs",
        "_moved_from",
        "_new_names",
        "_rolled",
        "_state",
        "flush_failure",
        "recovery_point",
    )

    def __init__(self, state: LogState, leader_epochs: LeaderEpochs, now_ms: int) -> None:
        self._state = state
        self._leader_epochs = leader_epochs
        self._last_flush_ms = now_ms
        self._flushing = Lock()
        self._new_names = True
        self._rolled: list[Segment] = []
        self._kept_recovery_point = 0
        self._moved_from: Path | None = None
        self.recovery_point = 0
        self.flush_failure: str | None = None
        """Why the log cannot be used any more: a second fsync would not write what the first one failed to write."""

    # -- what the log does, which moves the recovery point or leaves something to flush --------------------------------

    def start_at(self, recovery_point: int, kept: int) -> None:
        """The log has been opened: it is on the disk before `recovery_point`; a checkpoint said `kept`."""
        self.recovery_point = recovery_point
        self._kept_recovery_point = max(kept, recovery_point)

    def truncated_to(self, offset: int) -> None:
        """The log has nothing from `offset` on any more."""
        self.recovery_point = min(self.recovery_point, offset)

    def rolled(self, active: Segment) -> None:
        """`active` is appended to no more: it waits for the next flush if a recovery would look into it anyway.

        Raises OSError.
        """
        end_offset = self._state.log_end_offset
        if self.recovery_point >= end_offset:
            # no flush will come to this segment by itself any more
            if self._kept_recovery_point < end_offset:
                self._rolled.append(active)
            else:  # and recovery would not look into it
                active.file.sync()
                active.sync_indexes()

    def files_created(self) -> None:
        """The directory has names that are not on the disk yet."""
        self._new_names = True

    def switched(self, from_parent: Path) -> None:
        """The log goes on in another directory; the old one was in `from_parent`."""
        self._moved_from = from_parent
        self._new_names = True

    # -- flushing ------------------------------------------------------------------------------------------------------

    @property
    def recovery_point_to_keep(self) -> int:
        """What a checkpoint may say: everything before it is on the disk, with the indexes that recovery leaves alone.

        Those of the active segment are not, so it must not be passed over even if it is rolled right now.
        """
        kept = self.recovery_point
        if self._rolled:
            kept = min(kept, self._rolled[0].base_offset)
        elif self._state.segments.ordered:  # otherwise it is closed, with its indexes
            kept = min(kept, max(self._state.segments.active_base_offset, self._state.log_end_offset - 1))
        self._kept_recovery_point = max(self._kept_recovery_point, kept)
        return kept

    @property
    def is_flushing(self) -> bool:
        """Whether a flush is under way in another thread."""
        return self._flushing.locked()

    def flush_due(self, now_ms: int) -> bool:
        """Whether `flush.messages` or `flush.ms` asks for a flush."""
        config = self._state.config
        unflushed = self._state.log_end_offset - self.recovery_point
        return unflushed > 0 and (unflushed >= config.flush_messages or now_ms - self._last_flush_ms >= config.flush_ms)

    def flush(self, now_ms: int | None = None, *, upto: int | None = None) -> None:
        """Bring records to the disk, all or those before `upto`, and move the recovery point there.

        May run beside appends. Raises KafkaError(kafka_storage_error).
        """
        end = self._state.log_end_offset if upto is None else upto
        if now_ms is not None:
            self._last_flush_ms = now_ms
        if end > self.recovery_point or self._rolled:
            with self._flushing:
                self._flush(end)

    def _flush(self, end: int) -> None:
        if self.flush_failure is not None:
            raise KafkaError(ErrorCode.kafka_storage_error, self.flush_failure)
        state = self._state
        truncations = state.truncations
        segments = state.segments.ordered
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
            self._leader_epochs.sync()
            if self._new_names:
                self._new_names = False
                try:
                    sync_directory(state.directory)
                except OSError:
                    self._new_names = True
                    raise
            if truncations == state.truncations:
                self.recovery_point = max(self.recovery_point, end)
            if segments[-1] is not state.segments.active:
                self._sync_segment(segments[-1], active=False)  # it was rolled meanwhile, when this flush was not over
        except OSError as error:
            failed = state.storage_error("flush", error)
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
            if segment in self._state.segments.ordered:
                raise
            log.debug("%s was dropped while it was being flushed", segment.path)

    def flush_rolled(self) -> None:
        """Bring the segments that are not appended to any more to the disk. May run beside appends."""
        self.flush(upto=self._state.segments.active_base_offset)

    def keep_switch(self) -> None:
        """Let no power failure bring the log back to where it was before `switch_to`. Raises OSError."""
        if self._moved_from is not None:
            sync_directory(self._moved_from)
            self._moved_from = None
