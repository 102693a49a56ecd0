"""The log directories of a broker and every log in them: opening, placing, deleting, checkpointing, closing."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, KeysView, Mapping
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

log = logging.getLogger(__name__)


class LogDirs:
    """Owns the directories from `open` to `close`, and the logs that were loaded or created in between.

    `owned` has the directories themselves; of one that fails, the logs are not in `logs`. What waits for the disk, and
    may run in a thread beside the rest, says so.
    """

    def __init__(self, owned: OwnedDirs, found: FoundPartitions) -> None:
        """Use `open`."""
        self.owned = owned
        self.found = found
        self.logs: dict[TopicPartition, Log] = {}
        self._places = found.partitions
        self._unsynced: set[Path] = set()
        self._doomed = DoomedDirs(found.doomed)
        self._unopened: dict[LogDir, set[TopicPartition]] = {directory: set() for directory in owned.working}
        for topic_partition, (directory, _) in found.partitions.items():
            self._unopened[directory].add(topic_partition)
        self._checkpoints = Lock()
        self._preferred: dict[TopicPartition, Path] = {}
        self.on_failure: Callable[[Path, str], None] = lambda _, __: None
        """Told of a directory that fails, and why, in whichever thread that shows."""
        self._closed = False

    @classmethod
    def open(
        cls, paths: Iterable[Path], *, broker_id: int, cluster_id: str | None = None, meta_version: int = 1
    ) -> "LogDirs":
        """`survey`, then `take_over`."""
        self = cls.survey(paths, broker_id=broker_id, cluster_id=cluster_id, meta_version=meta_version)
        self.take_over()
        return self

    @classmethod
    def survey(
        cls, paths: Iterable[Path], *, broker_id: int, cluster_id: str | None = None, meta_version: int = 1
    ) -> "LogDirs":
        """Lock `paths`, check that they belong to this broker and see which partitions they hold, changing nothing.

        Without `cluster_id` the directories' own is taken, or a new one made. `meta_version` 0 is for a cluster with
        ZooKeeper. Raises KafkaError: kafka_storage_error when another broker uses a directory, a partition is in two
        directories or no directory works; inconsistent_cluster_id for another broker's or cluster's directory.
        """
        owned = OwnedDirs.lock(paths, broker_id=broker_id, cluster_id=cluster_id, meta_version=meta_version)
        try:
            return cls(owned, find_partitions(owned.working))
        except BaseException:
            owned.unlock()
            raise

    def take_over(self) -> None:
        """Make the directories this broker's own, before any log of them is loaded.

        Raises KafkaError(kafka_storage_error) when none can be written to.
        """
        for unusable in self.owned.take_over():
            self.found.leave_out(unusable)
        try:
            self.found.promote()
        except OSError as error:
            raise KafkaError(ErrorCode.kafka_storage_error, f"cannot take up a moved partition: {error}") from error
        for directory in self.owned.working:
            self._opened(directory)

    @property
    def directories(self) -> tuple[Path, ...]:
        """Those that work; the parents of the logs' directories."""
        return self.owned.paths

    def partitions(self) -> KeysView[TopicPartition]:
        """Those that have a directory, loaded or not."""
        return self._places.keys()

    def place_of(self, topic_partition: TopicPartition) -> Path:
        """The log directory that the partition is in."""
        return self._places[topic_partition].parent.path

    def was_clean(self, topic_partition: TopicPartition) -> bool:
        """Whether the last owner of the partition's log directory closed every log in it."""
        return self._places[topic_partition].parent.clean_shutdown

    # -- partitions and their logs -------------------------------------------------------------------------------------

    def load(self, topic_partition: TopicPartition, config: LogConfig, *, now_ms: int) -> Log:
        """Open the log of a partition that has a directory, and recover it where the last shutdown was not clean.

        Several may be loaded at once, in threads. Raises KafkaError(kafka_storage_error).
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
            # from before the crash, which has perhaps taken something from behind it
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
        """Whether no compaction, which leaves gaps, can have come past the recovery point.

        Headrace's does not, but Kafka's may have; and where the recovery point of a compacted log is lost, who knows.
        """
        if not directory.known:
            return False
        return directory.recovery_points.get(topic_partition, 0) >= directory.cleaner_offsets.get(topic_partition, 0)

    def _opened(self, directory: LogDir, topic_partition: TopicPartition | None = None) -> None:
        """One log of the directory is open, or gone; was it the last that was still to be opened, the boot is noted."""
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
            log.warning("%s: %s; the next start after a crash takes longer", directory.path, error)

    def create(self, topic_partition: TopicPartition, topic_id: UUID, config: LogConfig, *, now_ms: int) -> Log:
        """Make a new partition's directory where there are fewest, and its log.

        It survives a power failure after `sync_names`. Raises KafkaError(kafka_storage_error), also for a partition
        that has a directory.
        """
        if topic_partition in self._places:
            raise KafkaError(
                ErrorCode.kafka_storage_error,
                f"{topic_partition} has a log already: {self._places[topic_partition][1]}",
            )
        self.check()
        directory = self.owned.working[0]
        preferred = self._preferred.pop(topic_partition, None)
        if preferred in self.directories:
            directory = self.owned.at(preferred)
        elif len(self.owned.working) > 1:
            count = Counter(directory.path for directory, _ in self._places.values())
            directory = min(self.owned.working, key=lambda each: count[each.path])
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
        """Make the partitions created and taken away since the last call stay so after a power failure.

        Once for all of a topic: an fsync for each would keep everybody waiting. Raises KafkaError(kafka_storage_error).
        """
        while self._unsynced:
            path = self._unsynced.pop()
            try:
                sync_directory(path)
            except OSError as error:
                self.note_failure(path, error)
                raise KafkaError(ErrorCode.kafka_storage_error, f"cannot sync {path}: {error}") from error

    def delete(self, topic_partition: TopicPartition, *, now_ms: int) -> None:
        """Take a partition away at once; its files go after `file.delete.delay.ms` (see `remove_deleted_files`).

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
        """Keep the files of a partition that no topic has, under a name that is not served; the new path.

        Raises KafkaError(kafka_storage_error).
        """
        return self._retire(topic_partition, STRAY_SUFFIX)

    def _retire(self, topic_partition: TopicPartition, suffix: str) -> Path:
        directory, path = self._places[topic_partition]
        retired = directory.path / retired_name(topic_partition, suffix)
        # also where the renaming fails: a later topic of that name must not get this log
        self.logs.pop(topic_partition, None)
        try:
            path.rename(retired)
        except OSError as error:
            if isinstance(error, FileNotFoundError) and self.owned.why_gone(directory.path) is None:
                log.warning("%s is gone already: somebody else has removed it", path)
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
        # with the lock: a writing of checkpoints that began before must not bring the offsets back
        with self._checkpoints:
            directory.forget(topic_partition)

    def remove_deleted_files(self, now_ms: int) -> None:
        """Remove what was deleted long enough ago. Slow for large files: call it in a thread.

        What an earlier process left behind waits for the default delay, counted from the first call. Nothing waits in
        a directory under its hard mark: readers keep the files that they have open.
        """
        full = {directory for directory, space in self.owned.disk_space.items() if space.room is Room.NONE}
        for deleted_log in tuple(self.logs.values()):
            if deleted_log.has_deleted_files:
                deleted_log.remove_deleted_files(_AT_ONCE if deleted_log.directory.parent in full else now_ms)
        self._doomed.remove_due(now_ms, full)

    # -- what moving a log to another directory needs: see `log_switch` ------------------------------------------------

    def prefer(self, topic_partition: TopicPartition, directory: Path) -> None:
        """Let a partition that is still to be created be made there."""
        self._preferred[topic_partition] = directory

    def is_here(self, moved: Log) -> bool:
        """Whether the log is in use: neither deleted nor offline nor closed."""
        return not self._closed and self.logs.get(moved.topic_partition) is moved

    def place(self, moved: Log) -> Place:
        return self._places[moved.topic_partition]

    def set_place(self, moved: Log, directory: Path, path: Path) -> None:
        """The files of `moved` are in `path` from now on, which is in the log directory `directory`."""
        self._places[moved.topic_partition] = Place(self.owned.at(directory), path)
        self._unsynced.add(directory)

    def doom(self, path: Path, due_ms: int) -> None:
        """Remove a directory that is no log's any more, when its time has come."""
        self._doomed.add(path, due_ms)

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def save_bounds(self, each: Log) -> None:
        """Write down where recovery of a log begins, and the log; waits for the disk. Raises OSError."""
        with self._checkpoints:
            if self.logs.get(each.topic_partition) is each:
                self._places[each.topic_partition][0].write_bounds(each)

    def update_checkpoints(self, directory: LogDir, change: Callable[[LogDir], None]) -> None:
        """Change what `directory` remembers of its logs, and write it down; waits for the disk. Raises OSError."""
        with self._checkpoints:
            change(directory)
            directory.write()

    def high_watermark(self, topic_partition: TopicPartition) -> int:
        """What was checkpointed last; 0 for a partition that was not."""
        directory, _ = self._places[topic_partition]
        return directory.high_watermarks.get(topic_partition, 0)

    def cleaned_upto(self, topic_partition: TopicPartition) -> int | None:
        """Where the compaction of the log goes on, as it was noted; None for a log that never was compacted."""
        directory, _ = self._places[topic_partition]
        return directory.cleaner_offsets.get(topic_partition)

    def note_cleaned(self, cleaned: Log, offset: int) -> None:
        """Write down that `cleaned` is compacted before `offset`; waits for the disk: call it in a thread.

        A log that has been deleted meanwhile is passed over. Raises OSError.
        """
        topic_partition = cleaned.topic_partition
        with self._checkpoints:
            if self.logs.get(topic_partition) is cleaned:
                self._places[topic_partition][0].write_cleaner_offset(topic_partition, offset)

    def flush_rolled(self) -> None:
        """Bring the segments that are not appended to any more to the disk; waits for it: call it in a thread.

        Raises KafkaError(kafka_storage_error).
        """
        failure = None
        for topic_partition, each in tuple(self.logs.items()):
            try:
                each.flusher.flush_rolled()
            except KafkaError as error:
                # a log that is deleted meanwhile has its files under other names
                if self.logs.get(topic_partition) is each:
                    failure = error
        if failure is not None:
            raise failure

    def checkpoint(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """Write down recovery points, log start offsets and `high_watermarks` where they have changed.

        Waits for the disk: call it in a thread. Raises KafkaError(kafka_storage_error), after the other directories.
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

    def _disk_error(self, met_by: LogState, error: OSError) -> None:
        known = self.logs.get(met_by.topic_partition)
        if known is not None and known.state is met_by:
            self.note_failure(met_by.directory.parent, error)

    def note_failure(self, directory: Path, error: BaseException | None) -> None:
        """Take `directory` offline where `error` is one of its disk, or it is gone. Any thread may call this."""
        if is_disk_failure(error):
            self.fail(directory, str(error))
        elif isinstance(error, OSError) and (why := self.owned.why_gone(directory)) is not None:
            self.fail(directory, why)

    def check(self) -> None:
        """Take directories offline that were renamed, removed or taken by another process. Any thread may call this.

        Raises KafkaError(kafka_storage_error) where none is left.
        """
        for path, why in self.owned.unusable():
            self.fail(path, why)
        if not self.owned.working:
            raise KafkaError(ErrorCode.kafka_storage_error, "every log directory is offline")

    def fail(self, directory: Path, reason: str) -> None:
        """Use `directory` no more: its logs are not in `logs` from here on, and `on_failure` is told once."""
        if self.owned.fail(directory, reason):
            for topic_partition, each in tuple(self.logs.items()):
                if each.directory.parent == directory:
                    del self.logs[topic_partition]
            self.on_failure(directory, reason)

    def abandon(self, topic_partition: TopicPartition) -> None:
        """Let go of a log whose disk has failed, as it is: the next start recovers it, and every other beside it."""
        if self.logs.pop(topic_partition, None) is not None:
            self.owned.distrust(self._places[topic_partition][0])

    # -- the end -------------------------------------------------------------------------------------------------------

    def close(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """Close every log, mark the directories where all went well as cleanly shut down, and unlock them.

        Those that were not taken over stay as they are.
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
                for each in logs:
                    each.close()
                directory.write_checkpoints(logs, high_watermarks)
                if len(logs) == sum(1 for owner, _ in self._places.values() if owner is directory):
                    directory.mark_clean_shutdown()
            except (KafkaError, OSError) as error:
                log.error("%s: %s; the next start will recover its logs", directory.path, error)
            finally:
                directory.unlock()
        self.logs.clear()

    def _logs_in(self, directory: LogDir) -> list[Log]:
        return [each for each in tuple(self.logs.values()) if each.directory.parent == directory.path]
