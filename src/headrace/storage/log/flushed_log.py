"""What of the log of one partition is on the disk: the recovery point, and the flushes that move it.

A flush waits for the disk, and may run in another thread beside the one that appends.
"""

import errno
import logging
import weakref
from itertools import zip_longest
from pathlib import Path
from threading import Lock
from typing import Final

from headrace.errors import ErrorCode, KafkaError
from headrace.storage.files.atomic_file import sync_directory, sync_file
from headrace.storage.log.config import LogConfig
from headrace.storage.log.leader_epochs import FILE_NAME as LEADER_EPOCHS_FILE
from headrace.storage.log.leader_epochs import EpochEntry, LeaderEpochs
from headrace.storage.log.readable_log import ReadableLog
from headrace.storage.log.segment import Segment
from headrace.types import TopicPartition

_NOT_THE_DISK: Final = (errno.ENOENT, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""A flush that fails so may be tried again: the log is just being deleted, or a file could not be opened."""

log = logging.getLogger(__name__)


class FlushedLog(ReadableLog):
    """A log that is brought to the disk: everything before its recovery point is there.

    `config` may be replaced at any time.
    """

    __slots__ = (
        "_flushing",
        "_kept_recovery_point",
        "_last_flush_ms",
        "_moved_from",
        "_new_names",
        "_rolled",
        "_truncations",
        "config",
        "flush_failure",
        "leader_epochs",
        "recovery_point",
    )

    def __init__(
        self, directory: Path, topic_partition: TopicPartition, config: LogConfig, epochs: list[EpochEntry], now_ms: int
    ) -> None:
        super().__init__(directory, topic_partition)
        self.config = config
        self.recovery_point = 0
        # a weak reference, because a cycle would keep the files of a deleted log open until the next collection
        self.leader_epochs = LeaderEpochs(directory / LEADER_EPOCHS_FILE, epochs, weakref.proxy(self))
        self._last_flush_ms = now_ms
        self._truncations = 0
        self._flushing = Lock()
        self._new_names = True
        self._rolled: list[Segment] = []
        self._kept_recovery_point = 0
        self.flush_failure: str | None = None
        """Why the log cannot be used any more: what an fsync failed to write, the next one does not try again."""
        self._moved_from: Path | None = None

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

    def _note_rolled(self, active: Segment) -> None:
        """`active` is appended to no more: it waits for the next flush where a recovery would look into it anyway."""
        if self.recovery_point >= self.log_end_offset:
            # no flush will come to this segment by itself any more
            if self._kept_recovery_point < self.log_end_offset:
                self._rolled.append(active)
            else:  # and recovery would not look into it
                active.file.sync()
                active.sync_indexes()

    def keep_switch(self) -> None:
        """Let no power failure bring the log back to where it was before `switch_to`. Raises OSError."""
        if self._moved_from is not None:
            sync_directory(self._moved_from)
            self._moved_from = None
