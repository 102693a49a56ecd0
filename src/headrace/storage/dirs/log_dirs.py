"""The log directories of a broker and every log in them: opening, placing, deleting, checkpointing, closing."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, KeysView, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Final
from uuid import UUID

from headrace.errors import ErrorCode, KafkaError
from headrace.storage.dirs.disk_space import Room
from headrace.storage.dirs.doomed_dirs import DoomedDirs
from headrace.storage.dirs.found_partitions import FoundPartitions, Place, find_partitions
from headrace.storage.dirs.log_dir import LogDir
from headrace.storage.dirs.owned_dirs import OwnedDirs
from headrace.storage.dirs.partition_dir import DELETE_SUFFIX, STRAY_SUFFIX, retired_name
from headrace.storage.dirs.partition_metadata import write_topic_id
from headrace.storage.files.atomic_file import remove_tree, sync_directory
from headrace.storage.files.disk_failures import is_disk_failure
from headrace.storage.log.config import LogConfig
from headrace.storage.log.log import Log
from headrace.storage.log.state import LogState
from headrace.types import TopicPartition

_AT_ONCE: Final = 2**63
_CLOSING_THREADS: Final = 16
"""Logs of a directory that are closed at the same time: each waits for the disk several times."""

log = logging.getLogger(__name__)


class LogDirs:
    """Owns the directories from `open` to `close`, and the logs that are loaded or created in between.

    `owned` has the directories; logs of failed ones are not in `logs`. Methods that block on the disk say so; they may
    run in a thread.
    """

    def __init__(self, owned: OwnedDirs, found: FoundPartitions) -> None:
        """Use `open`."""
        self.owned = owned
        self.found = found
        self.logs: dict[TopicPartition, Log] = {}
        self._places = found.partitions
        self._unsynced: set[Path] = set()
        self._doomed = DoomedDirs()
        self._unopened: dict[LogDir, set[TopicPartition]] = {directory: set() for directory in owned.working}
        for topic_partition, (directory, _) in found.partitions.items():
            self._unopened[directory].add(topic_partition)
        self._checkpoints = Lock()
        self._preferred: dict[TopicPartition, Path] = {}
        self.on_failure: Callable[[Path, str], None] = lambda _, __: None
        """Called with a failed directory and the reason, in any thread."""
        self._closed = False

    @classmethod
    def open(
        cls, paths: Iterable[Path], *, broker_id: int, cluster_id: str | None = None, meta_version: int = 1
    ) -> "LogDirs":
        """Call `survey`, then `take_over`."""
        self = cls.survey(paths, broker_id=broker_id, cluster_id=cluster_id, meta_version=meta_version)
        self.take_over()
        return self

    @classmethod
    def survey(
        cls, paths: Iterable[Path], *, broker_id: int, cluster_id: str | None = None, meta_version: int = 1
    ) -> "LogDirs":
        """Lock `paths`, check that they belong to this broker and list their partitions, without changing anything.

        `cluster_id` defaults to that of the directories or a new one. `meta_version` is 0 for a cluster with ZooKeeper.
        Raises KafkaError: kafka_storage_error if another broker uses a directory, a partition is in two directories or
        no directory works; inconsistent_cluster_id for another broker's or cluster's directory.
        """
        owned = OwnedDirs.lock(paths, broker_id=broker_id, cluster_id=cluster_id, meta_version=meta_version)
        try:
            found = find_partitions(owned.working)
            owned.leave_out(found.unreadable)
            return cls(owned, found)
        except BaseException:
            owned.unlock()
            raise

    def take_over(self) -> None:
        """Claim the directories for this broker; call this before loading logs.

        Raises KafkaError(kafka_storage_error) if none is writable, or an interrupted move cannot be completed.
        """
        self.found.leave_out(self.owned.take_over())
        self.leave_out(self.found.promote())
        self._doomed = DoomedDirs(self.found.doomed)
        for directory in self.owned.working:
            self._opened(directory)

    def leave_out(self, failed: Mapping[LogDir, OSError]) -> None:
        """Take directories offline before a log is opened. Raises KafkaError(kafka_storage_error) if none is left."""
        self.owned.leave_out(failed)
        self.found.leave_out(failed)

    @property
    def directories(self) -> tuple[Path, ...]:
        """The working log directories."""
        return self.owned.paths

    def partitions(self) -> KeysView[TopicPartition]:
        """Return all partitions that have a directory, loaded or not."""
        return self._places.keys()

    def place_of(self, topic_partition: TopicPartition) -> Path:
        return self._places[topic_partition].parent.path

    def has_failed(self, topic_partition: TopicPartition) -> bool:
        return topic_partition in self._places and self.place_of(topic_partition) not in self.directories

    def was_clean(self, topic_partition: TopicPartition) -> bool:
        """Return True if the last owner of the partition's log directory closed all logs in it."""
        return self._places[topic_partition].parent.clean_shutdown

    # -- partitions and their logs -------------------------------------------------------------------------------------

    def load(self, topic_partition: TopicPartition, config: LogConfig, *, now_ms: int) -> Log:
        """Open the log of an existing partition, and recover it after an unclean shutdown.

        Thread-safe. Raises KafkaError: kafka_storage_error, and the errors of `Log.open`.
        """
        directory, path = self._places[topic_partition]
        if directory.path in self.owned.offline:
            raise KafkaError(
                ErrorCode.kafka_storage_error,
                f"its log directory {directory.path} is offline: {self.owned.offline[directory.path]}",
            )
        try:
            loaded = self._open_log(directory, topic_partition, path, config, now_ms)
        except KafkaError as error:
            self.note_failure(directory.path, error.__cause__)
            raise
        loaded.save_bounds = self.save_bounds
        loaded.state.on_disk_error = self._disk_error
        known = directory.recovery_points.get(topic_partition)
        if known is not None and not directory.clean_shutdown:
            # records before the old recovery point may be lost
            directory.recovery_points[topic_partition] = min(known, loaded.flusher.recovery_point_to_save)
        self.logs[topic_partition] = loaded
        self._opened(directory, topic_partition)
        return loaded

    def _open_log(
        self, directory: LogDir, topic_partition: TopicPartition, path: Path, config: LogConfig, now_ms: int
    ) -> Log:
        return Log.open(
            path,
            topic_partition,
            config,
            recovery_point=directory.recovery_points.get(topic_partition, 0),
            clean_shutdown=directory.clean_shutdown,
            log_start_offset=directory.log_start_offsets.get(topic_partition, 0),
            now_ms=now_ms,
            kernel_survived=directory.kernel_survived,
            gapless=self._is_gapless(directory, topic_partition),
        )

    @staticmethod
    def _is_gapless(directory: LogDir, topic_partition: TopicPartition) -> bool:
        """Return True if no compaction can have left gaps after the recovery point.

        Headrace compacts only offsets before it. Kafka may have compacted later ones; a recovery point may be lost.
        """
        if not directory.known:
            return False
        return directory.recovery_points.get(topic_partition, 0) >= directory.cleaner_offsets.get(topic_partition, 0)

    def _opened(self, directory: LogDir, topic_partition: TopicPartition | None = None) -> None:
        """Record that a log was opened or deleted; after the last one, mark `directory` as recovered."""
        with self._checkpoints:
            unopened = self._unopened.get(directory)
            if unopened is None:
                return
            if topic_partition is not None:
                unopened.discard(topic_partition)
            if unopened:
                return
            del self._unopened[directory]
        try:
            if not directory.clean_shutdown:
                directory.write()
            directory.note_recovered()
        except OSError as error:
            log.warning(
                "Cannot mark %s as recovered: %s. A start after a crash will take longer", directory.path, error
            )

    def create(self, topic_partition: TopicPartition, topic_id: UUID, config: LogConfig, *, now_ms: int) -> Log:
        """Create a partition and its log, in the preferred log directory or the one with the fewest partitions.

        The partition survives a power failure after `sync_names`. Raises KafkaError(kafka_storage_error) on failure,
        and if the log already exists.
        """
        if topic_partition in self._places:
            raise KafkaError(
                ErrorCode.kafka_storage_error,
                f"{topic_partition} already has a log: {self._places[topic_partition][1]}",
            )
        self.check()
        directory = self.owned.working[0]
        preferred = self._preferred.pop(topic_partition, None)
        if preferred in self.directories:
            directory = self.owned.at(preferred)
        elif len(self.owned.working) > 1:
            count = Counter(directory.path for directory, _ in self._places.values())
            directory = min(self.owned.working, key=lambda working: count[working.path])
        path = directory.path / str(topic_partition)
        try:
            with self._checkpoints:
                directory.expect_new(topic_partition)
            path.mkdir()
            write_topic_id(path, topic_id, sync=False)
        except OSError as error:
            remove_tree(path)
            self.note_failure(directory.path, error)
            raise KafkaError(ErrorCode.kafka_storage_error, f"cannot create {path}: {error}") from error
        self._unsynced.add(directory.path)
        self._places[topic_partition] = Place(directory, path)
        return self.load(topic_partition, config, now_ms=now_ms)

    def sync_names(self) -> None:
        """Make all creations and deletions since the last call survive a power failure.

        Call it once per topic: an fsync per partition would be slow. Raises KafkaError(kafka_storage_error).
        """
        while self._unsynced:
            path = self._unsynced.pop()
            try:
                sync_directory(path)
            except OSError as error:
                self.note_failure(path, error)
                raise KafkaError(ErrorCode.kafka_storage_error, f"cannot sync {path}: {error}") from error

    def delete(self, topic_partition: TopicPartition, *, now_ms: int) -> None:
        """Delete a partition; `remove_deleted_files` removes its files after `file.delete.delay.ms`.

        Raises KafkaError(kafka_storage_error).
        """
        deleted = self.logs.get(topic_partition)
        doomed = self._retire(topic_partition, DELETE_SUFFIX)
        delay = LogConfig().file_delete_delay_ms
        if deleted is not None:
            deleted.move(doomed)
            delay = deleted.config.file_delete_delay_ms
        self._doomed.add(doomed, now_ms + delay)

    def set_aside(self, topic_partition: TopicPartition) -> Path:
        """Rename the directory of an unknown partition to a name that ends in `-stray`, and return the new path.

        Raises KafkaError(kafka_storage_error).
        """
        return self._retire(topic_partition, STRAY_SUFFIX)

    def _retire(self, topic_partition: TopicPartition, suffix: str) -> Path:
        directory, path = self._places[topic_partition]
        retired = directory.path / retired_name(topic_partition, suffix)
        # even if the rename fails: a later topic of that name must not get this log
        self.logs.pop(topic_partition, None)
        try:
            path.rename(retired)
        except OSError as error:
            if isinstance(error, FileNotFoundError) and self.owned.why_gone(directory.path) is None:
                log.warning("%s is already gone: another program has removed it", path)
                self._forget(topic_partition)
                return retired
            self.note_failure(directory.path, error)
            raise KafkaError(ErrorCode.kafka_storage_error, f"cannot rename {path} to {retired}: {error}") from error
        self._unsynced.add(directory.path)
        self._forget(topic_partition)
        return retired

    def _forget(self, topic_partition: TopicPartition) -> None:
        directory, _ = self._places[topic_partition]
        self.found.forget(topic_partition)
        self._opened(directory, topic_partition)
        # under the lock, so that a checkpoint write in another thread does not bring the offsets back
        with self._checkpoints:
            directory.forget(topic_partition)

    def remove_deleted_files(self, now_ms: int) -> None:
        """Remove deleted files that are due. Slow for large files: call it in a thread.

        See `DoomedDirs.remove_due` for files of an earlier process. In a directory below its hard mark, all deleted
        files are due; readers keep the files that they have open.
        """
        full = {directory for directory, space in self.owned.disk_space.items() if space.room is Room.NONE}
        for deleted_log in tuple(self.logs.values()):
            if deleted_log.deleted_files:
                deleted_log.deleted_files.remove_due(_AT_ONCE if deleted_log.directory.parent in full else now_ms)
        self._doomed.remove_due(now_ms, full)

    # -- moving a log to another directory: see `log_switch` -----------------------------------------------------------

    def prefer(self, topic_partition: TopicPartition, directory: Path) -> None:
        """If this partition is created later, create it in this log directory."""
        self._preferred[topic_partition] = directory

    def is_here(self, moved: Log) -> bool:
        """Return False if the log was deleted, taken offline or closed, otherwise True."""
        return not self._closed and self.logs.get(moved.topic_partition) is moved

    def place(self, moved: Log) -> Place:
        return self._places[moved.topic_partition]

    def set_place(self, moved: Log, directory: Path, path: Path) -> None:
        """Record that the files of `moved` are now in `path`, in the log directory `directory`."""
        self._places[moved.topic_partition] = Place(self.owned.at(directory), path)
        self._unsynced.add(directory)

    def doom(self, path: Path, due_ms: int) -> None:
        """Schedule a directory that no log uses for removal at `due_ms`."""
        self._doomed.add(path, due_ms)

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def save_bounds(self, changed: Log) -> None:
        """Write the recovery point and the log start offset of one log; blocks on the disk. Raises OSError."""
        with self._checkpoints:
            if self.logs.get(changed.topic_partition) is changed:
                self._places[changed.topic_partition][0].write_bounds(changed)

    def update_checkpoints(self, directory: LogDir, change: Callable[[LogDir], None]) -> None:
        """Change the offsets of `directory` and write its checkpoints; blocks on the disk. Raises OSError."""
        with self._checkpoints:
            change(directory)
            directory.write()

    def high_watermark(self, topic_partition: TopicPartition) -> int:
        """Return the last checkpointed high watermark; 0 if there is none."""
        directory, _ = self._places[topic_partition]
        return directory.high_watermarks.get(topic_partition, 0)

    def cleaned_upto(self, topic_partition: TopicPartition) -> int | None:
        """Return the offset before which the log is compacted; None if it never was."""
        directory, _ = self._places[topic_partition]
        return directory.cleaner_offsets.get(topic_partition)

    def note_cleaned(self, cleaned: Log, offset: int) -> None:
        """Record that `cleaned` is compacted before `offset`, unless it was deleted. Call it in a thread.

        Raises OSError.
        """
        topic_partition = cleaned.topic_partition
        with self._checkpoints:
            if self.logs.get(topic_partition) is cleaned:
                self._places[topic_partition][0].write_cleaner_offset(topic_partition, offset)

    def flush_rolled(self) -> None:
        """Flush every inactive segment. Call it in a thread. Raises KafkaError(kafka_storage_error)."""
        failure = None
        for topic_partition, loaded in tuple(self.logs.items()):
            try:
                loaded.flusher.flush_rolled()
            except KafkaError as error:
                # ignore a log that was deleted in the meantime: its files have been renamed
                if self.logs.get(topic_partition) is loaded:
                    failure = error
        if failure is not None:
            raise failure

    def checkpoint(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """Write the recovery points, log start offsets and `high_watermarks` that have changed. Call it in a thread.

        If one directory fails, write the others and raise KafkaError(kafka_storage_error).
        """
        failure: OSError | None = None
        for directory in self.owned.working:
            try:
                with self._checkpoints:
                    if not self._closed:
                        directory.write_checkpoints(self._logs_in(directory), high_watermarks)
            except OSError as error:
                self.note_failure(directory.path, error)
                failure = error
        if failure is not None:
            raise KafkaError(ErrorCode.kafka_storage_error, f"cannot write checkpoints: {failure}") from failure

    # -- directories that fail -----------------------------------------------------------------------------------------

    def _disk_error(self, state: LogState, error: OSError) -> None:
        known = self.logs.get(state.topic_partition)
        if known is not None and known.state is state:
            self.note_failure(state.directory.parent, error)

    def note_failure(self, directory: Path, error: BaseException | None) -> None:
        """Take `directory` offline if `error` is a disk failure or the directory is gone. Thread-safe."""
        if is_disk_failure(error):
            self.fail(directory, str(error))
        elif isinstance(error, OSError) and (why := self.owned.why_gone(directory)) is not None:
            self.fail(directory, why)

    def check(self) -> None:
        """Take offline all directories that were renamed, removed or locked by another process. Thread-safe.

        Raises KafkaError(kafka_storage_error) if none is left.
        """
        for path, why in self.owned.unusable():
            self.fail(path, why)
        if not self.owned.working:
            raise KafkaError(ErrorCode.kafka_storage_error, "every log directory is offline")

    def fail(self, directory: Path, reason: str) -> None:
        """Take `directory` offline: remove its logs from `logs` and call `on_failure` once."""
        if self.owned.fail(directory, reason):
            for topic_partition, loaded in tuple(self.logs.items()):
                if loaded.directory.parent == directory:
                    self.logs.pop(topic_partition, None)
            self.on_failure(directory, reason)

    def abandon(self, topic_partition: TopicPartition) -> None:
        """Drop a log after a disk failure; the next start recovers all logs of its directory."""
        if self.logs.pop(topic_partition, None) is not None:
            self.owned.distrust(self._places[topic_partition][0])

    # -- closing -------------------------------------------------------------------------------------------------------

    def close(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """Close every log, mark directories whose logs have all been closed as cleanly shut down, and unlock all.

        Directories that were not taken over stay unchanged.
        """
        with self._checkpoints:
            self._closed = True
        for directory in self.owned.failed:
            directory.unlock()
        for directory in self.owned.working:
            if not directory.taken_over:
                directory.unlock()
                continue
            try:
                logs = self._logs_in(directory)
                with ThreadPoolExecutor(_CLOSING_THREADS) as threads:
                    list(threads.map(Log.close, logs))
                directory.write_checkpoints(logs, high_watermarks)
                if len(logs) == sum(1 for owner, _ in self._places.values() if owner is directory):
                    directory.mark_clean_shutdown()
            except (KafkaError, OSError) as error:
                log.error("Cannot close %s cleanly: %s. The next start recovers its logs", directory.path, error)
            finally:
                directory.unlock()
        self.logs.clear()

    def _logs_in(self, directory: LogDir) -> list[Log]:
        return [loaded for loaded in tuple(self.logs.values()) if loaded.directory.parent == directory.path]
