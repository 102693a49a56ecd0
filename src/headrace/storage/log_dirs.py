"""The log directories of a broker and every log in them: opening, placing, deleting, checkpointing, closing."""

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, KeysView, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Final
from uuid import UUID

from headrace.errors import ErrorCode, KafkaError
from headrace.storage.atomic_file import remove_tree, sync_directory
from headrace.storage.checkpoint import CorruptCheckpointError
from headrace.storage.disk_failures import is_disk_failure
from headrace.storage.disk_space import DiskSpace, Marks, Room
from headrace.storage.found_partitions import FoundPartitions, Place, find_partitions
from headrace.storage.leader_epochs import FILE_NAME as LEADER_EPOCHS_FILE
from headrace.storage.leader_epochs import UNDEFINED, read_entries
from headrace.storage.log import Log
from headrace.storage.log_config import LogConfig
from headrace.storage.log_dir import NEW_FILE, LogDir
from headrace.storage.meta_properties import id_to_text, new_id
from headrace.storage.partition_dir import (
    DELETE_SUFFIX,
    STRAY_SUFFIX,
    check_partition,
    retired_name,
)
from headrace.storage.partition_metadata import read_topic_id, write_topic_id
from headrace.types import TopicPartition

if TYPE_CHECKING:
    from headrace.storage.metadata_log import MetadataLog

_AT_ONCE: Final = 2**63

log = logging.getLogger(__name__)


class LogDirs:
    """Owns the directories from `open` to `close`, and the logs that were loaded or created in between.

    A directory that fails is in `offline` with the reason; its logs are not in `logs`. What waits for the disk, and may
    run in a thread beside the rest, says so.
    """

    def __init__(self, directories: Sequence[LogDir], cluster_id: str, offline: dict[Path, str]) -> None:
        """Use `open`."""
        self._directories = tuple(directories)
        self.cluster_id = cluster_id
        self.offline = offline
        self.logs: dict[TopicPartition, Log] = {}
        self.disk_space = {each.path: DiskSpace() for each in directories}
        self._unsynced: set[Path] = set()
        self._survey = FoundPartitions()
        self._found = self._survey.partitions
        self._topic_ids: dict[TopicPartition, UUID | None] = {}
        self._doomed: list[tuple[int | None, Path]] = []
        self._unopened: dict[LogDir, set[TopicPartition]] = {directory: set() for directory in directories}
        self._checkpoints = Lock()
        self._failing = Lock()
        self._failed: list[LogDir] = []
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
        directories: list[LogDir] = []
        offline: dict[Path, str] = {}
        try:
            for path in paths:
                try:
                    directories.append(LogDir(path))
                except OSError as error:
                    offline[path] = str(error)
                    log.error("log directory %s cannot be used (%s); its partitions are offline", path, error)
            if not directories:
                reasons = "; ".join(offline.values()) or "log.dirs is empty"
                raise KafkaError(ErrorCode.kafka_storage_error, f"no log directory can be used: {reasons}")
            known = [each.properties.cluster_id for each in directories if each.properties]
            cluster_id = cluster_id or next(filter(None, known), None) or id_to_text(new_id())
            for directory in directories:
                directory.identify(version=meta_version, cluster_id=cluster_id, broker_id=broker_id)
            self = cls(directories, cluster_id, offline)
            self._find_partitions()
        except BaseException:
            for directory in directories:
                directory.unlock()
            raise
        return self

    def take_over(self) -> None:
        """Make the directories this broker's own, before any log of them is loaded.

        Raises KafkaError(kafka_storage_error) when none can be written to.
        """
        for directory in self._directories:
            try:
                directory.take_over(joins_others=any(each.known for each in self._directories))
            except OSError as error:
                self.offline[directory.path] = str(error)
                log.error("log directory %s cannot be used (%s); its partitions are offline", directory.path, error)
                directory.unlock()
                for each in [each for each, place in self._found.items() if place.parent is directory]:
                    del self._found[each]
                    self._survey.promoted = [other for other in self._survey.promoted if other != each]
        self._directories = tuple(each for each in self._directories if each.taken_over)
        if not self._directories:
            reasons = "; ".join(self.offline.values())
            raise KafkaError(ErrorCode.kafka_storage_error, f"no log directory can be used: {reasons}")
        try:
            self._survey.promote()
        except OSError as error:
            raise KafkaError(ErrorCode.kafka_storage_error, f"cannot take up a moved partition: {error}") from error
        for directory in self._directories:
            self._opened(directory)

    def identify_as(self, version: int) -> None:
        """Write every `meta.properties` in another version, for an owner that takes no other. Raises OSError."""
        for directory in self._directories:
            directory.identify_as(version)

    def why_a_log_may_be_elsewhere(self) -> str | None:
        """Why a partition that had a log may have none in the directories that work; None where all are there."""
        if self.offline:
            return "offline is " + ", ".join(f"{path} ({why})" for path, why in self.offline.items())
        new = [str(each.path) for each in self._directories if each.may_be_unmounted]
        if not new:
            return None
        return (
            f"{', '.join(new)} was empty when it was first used: mount what belongs there and restart the broker, or,"
            f" if its disk was replaced and the records are lost, remove the file {NEW_FILE} in it and restart"
        )

    def trust_new_directories(self) -> None:
        """No partition misses its log: directories that were empty are so because they are new."""
        for directory in self._directories:
            try:
                directory.trust()
            except OSError as error:
                log.warning("%s: %s", directory.path, error)

    def why_metadata_may_be_elsewhere(self) -> str | None:
        """Which directory is not there that may have been, or None where all are."""
        if self.offline:
            return " and ".join(f"{path} cannot be used: {why}" for path, why in self.offline.items())
        fresh = [str(each.path) for each in self._directories if each.is_fresh]
        if fresh and any(each.known for each in self._directories):
            return f"{' and '.join(fresh)} is empty: perhaps its file system is not mounted"
        return None

    @property
    def identities(self) -> frozenset[UUID]:
        """The ids of the directories that have one (KIP-858)."""
        return frozenset(
            each.properties.directory_id
            for each in self._directories
            if each.properties and each.properties.directory_id
        )

    @property
    def directories(self) -> tuple[Path, ...]:
        """Those that work; the parents of the logs' directories."""
        return tuple(each.path for each in self._directories)

    def space(self, directory: Path) -> tuple[int, int]:
        """Bytes of the file system that `directory` is on, and bytes that can still be written; -1 when it fails."""
        try:
            system = os.statvfs(directory)
        except OSError as error:
            log.warning("%s does not tell its size: %s", directory, error)
            return -1, -1
        return system.f_blocks * system.f_frsize, system.f_bavail * system.f_frsize

    def observe_space(self, marks: Marks) -> Iterator[tuple[Path, Room, DiskSpace]]:
        """Look how full the directories are; each with the state from before and that of now."""
        for directory, space in self.disk_space.items():
            total, free = self.space(directory)
            if total >= 0:
                yield directory, space.observe(total, free, marks), space

    def _find_partitions(self) -> None:
        self._survey = find_partitions(self._directories)
        self._found = self._survey.partitions
        self._doomed = [(None, path) for path in self._survey.doomed]
        for topic_partition, (directory, _) in self._found.items():
            self._unopened[directory].add(topic_partition)

    def metadata_log(self, elsewhere: Path | None = None) -> "MetadataLog | None":
        """The metadata log that Kafka left in one of the directories, or in `elsewhere`.

        None where there is none, or it was adopted before. Raises KafkaError(kafka_storage_error) where it is damaged
        or cannot be read.
        """
        from headrace.storage.metadata_log import read_metadata_log

        if any(directory.was_adopted for directory in self._directories):
            return None
        is_clean = all(directory.clean_shutdown for directory in self._directories)
        for path in (*self.directories, *([elsewhere] if elsewhere else [])):
            try:
                found = read_metadata_log(path, clean_shutdown=is_clean)
            except OSError as error:
                raise KafkaError(ErrorCode.kafka_storage_error, f"cannot read {path}: {error}") from error
            if found is not None:
                return found
        return None

    def note_adopted(self) -> None:
        """Write down that the metadata log is of the past. Raises KafkaError(kafka_storage_error)."""
        for directory in self._directories:
            try:
                directory.note_adopted()
            except OSError as error:
                raise KafkaError(ErrorCode.kafka_storage_error, f"cannot write to {directory.path}: {error}") from error

    def check_readable(self) -> None:
        """See whether every partition is of a kind that can be served, for directories that somebody else wrote.

        Raises KafkaError for the first that is not: kafka_storage_error, unsupported_for_message_format.
        """
        for _, path in self._found.values():
            try:
                check_partition(path)
            except OSError as error:
                raise KafkaError(ErrorCode.kafka_storage_error, f"cannot read {path}: {error}") from error

    def partitions(self) -> KeysView[TopicPartition]:
        """Those that have a directory, loaded or not."""
        return self._found.keys()

    def topic_id(self, topic_partition: TopicPartition) -> UUID | None:
        """The id of the topic whose records are in the partition's directory; None where it is not written down.

        Raises KafkaError(inconsistent_topic_id) for a malformed `partition.metadata`.
        """
        if topic_partition not in self._topic_ids:
            self._topic_ids[topic_partition] = read_topic_id(self._found[topic_partition][1])
        return self._topic_ids[topic_partition]

    def note_topic_id(self, topic_partition: TopicPartition, topic_id: UUID) -> None:
        """Write down whose records are in a partition's directory, where a crash or an old Kafka left that out.

        Raises KafkaError(kafka_storage_error).
        """
        path = self._found[topic_partition][1]
        try:
            write_topic_id(path, topic_id)
            self._topic_ids[topic_partition] = topic_id
        except OSError as error:
            raise KafkaError(ErrorCode.kafka_storage_error, f"cannot write the topic id in {path}: {error}") from error

    def leader_epoch(self, topic_partition: TopicPartition) -> int:
        """The newest leader epoch that the partition's directory knows, before its log is loaded; -1 for none."""
        try:
            entries = read_entries(self._found[topic_partition][1] / LEADER_EPOCHS_FILE)
        except (CorruptCheckpointError, OSError):
            return UNDEFINED  # opening the log tells what is wrong
        return entries[-1].epoch if entries else UNDEFINED

    def load(self, topic_partition: TopicPartition, config: LogConfig, *, now_ms: int) -> Log:
        """Open the log of a partition that has a directory, and recover it where the last shutdown was not clean.

        Several may be loaded at once, in threads. Raises KafkaError(kafka_storage_error).
        """
        directory, path = self._found[topic_partition]
        if directory.path in self.offline:
            raise KafkaError(
                ErrorCode.kafka_storage_error,
                f"its log directory {directory.path} is offline: {self.offline[directory.path]}",
            )
        try:
            loaded = self._open_log(directory, topic_partition, path, config, now_ms)
        except KafkaError as error:
            self.note_failure(directory.path, error.__cause__)
            raise
        loaded.keep_bounds = self.keep_bounds
        loaded.on_disk_error = self._disk_error
        known = directory.recovery_points.get(topic_partition)
        if known is not None and not directory.clean_shutdown:
            # from before the crash, which has perhaps taken something from behind it
            directory.recovery_points[topic_partition] = min(known, loaded.recovery_point_to_keep)
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

    # -- directories that fail -----------------------------------------------------------------------------------------

    def _disk_error(self, met_by: Log, error: OSError) -> None:
        if self.logs.get(met_by.topic_partition) is met_by:
            self.note_failure(met_by.directory.parent, error)

    def note_failure(self, directory: Path, error: BaseException | None) -> None:
        """Take `directory` offline where `error` is one of its disk. Any thread may call this."""
        if is_disk_failure(error):
            self.fail(directory, str(error))

    def fail(self, directory: Path, reason: str) -> None:
        """Use `directory` no more: its logs are not in `logs` from here on, and `on_failure` is told once."""
        with self._failing:
            failed = [each for each in self._directories if each.path == directory]
            self._directories = tuple(each for each in self._directories if each.path != directory)
            self._failed += failed
            if failed:
                self.offline[directory] = reason
                self.disk_space = {each: space for each, space in self.disk_space.items() if each != directory}
        for gone in failed:
            self._distrust(gone)
        if failed:
            for topic_partition, each in tuple(self.logs.items()):
                if each.directory.parent == directory:
                    del self.logs[topic_partition]
            self.on_failure(directory, reason)

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

    def keep_bounds(self, each: Log) -> None:
        """Write down where recovery of a log begins, and the log; waits for the disk. Raises OSError."""
        with self._checkpoints:
            if self.logs.get(each.topic_partition) is each:
                self._found[each.topic_partition][0].write_bounds(each)

    # -- what moving a log to another directory needs: see `log_switch` ----------------------------------------------

    def prefer(self, topic_partition: TopicPartition, directory: Path) -> None:
        """Let a partition that is still to be created be made there."""
        self._preferred[topic_partition] = directory

    def is_here(self, moved: Log) -> bool:
        """Whether the log is in use: neither deleted nor offline nor closed."""
        return not self._closed and self.logs.get(moved.topic_partition) is moved

    def place(self, moved: Log) -> Place:
        return self._found[moved.topic_partition]

    def set_place(self, moved: Log, directory: Path, path: Path) -> None:
        """The files of `moved` are in `path` from now on, which is in the log directory `directory`."""
        self._found[moved.topic_partition] = Place(self.directory(directory), path)
        self._unsynced.add(directory)

    def doom(self, path: Path, due_ms: int) -> None:
        """Remove a directory that is no log's any more, when its time has come."""
        self._doomed.append((due_ms, path))

    def update_checkpoints(self, directory: LogDir, change: Callable[[LogDir], None]) -> None:
        """Change what `directory` remembers of its logs, and write it down; waits for the disk. Raises OSError."""
        with self._checkpoints:
            change(directory)
            directory.write()

    def directory(self, path: Path) -> LogDir:
        """The log directory of that path, one that has failed too. Raises KeyError."""
        for each in (*self._directories, *self._failed):
            if each.path == path:
                return each
        raise KeyError(path)

    def high_watermark(self, topic_partition: TopicPartition) -> int:
        """What was checkpointed last; 0 for a partition that was not."""
        directory, _ = self._found[topic_partition]
        return directory.high_watermarks.get(topic_partition, 0)

    def cleaned_upto(self, topic_partition: TopicPartition) -> int | None:
        """Where the compaction of the log goes on, as it was noted; None for a log that never was compacted."""
        directory, _ = self._found[topic_partition]
        return directory.cleaner_offsets.get(topic_partition)

    def note_cleaned(self, cleaned: Log, offset: int) -> None:
        """Write down that `cleaned` is compacted before `offset`; waits for the disk: call it in a thread.

        A log that has been deleted meanwhile is passed over. Raises OSError.
        """
        topic_partition = cleaned.topic_partition
        with self._checkpoints:
            if self.logs.get(topic_partition) is cleaned:
                self._found[topic_partition][0].write_cleaner_offset(topic_partition, offset)

    def create(self, topic_partition: TopicPartition, topic_id: UUID, config: LogConfig, *, now_ms: int) -> Log:
        """Make a new partition's directory where there are fewest, and its log.

        It survives a power failure after `sync_names`. Raises KafkaError(kafka_storage_error), also for a partition
        that has a directory.
        """
        if topic_partition in self._found:
            raise KafkaError(
                ErrorCode.kafka_storage_error, f"{topic_partition} has a log already: {self._found[topic_partition][1]}"
            )
        if not self._directories:
            raise KafkaError(ErrorCode.kafka_storage_error, "every log directory is offline")
        directory = self._directories[0]
        preferred = self._preferred.pop(topic_partition, None)
        if preferred in self.directories:
            directory = self.directory(preferred)
        elif len(self._directories) > 1:
            count = Counter(directory.path for directory, _ in self._found.values())
            directory = min(self._directories, key=lambda each: count[each.path])
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
        self._found[topic_partition] = Place(directory, path)
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
        self._doomed.append((now_ms + delay, doomed))

    def set_aside(self, topic_partition: TopicPartition) -> Path:
        """Keep the files of a partition that no topic has, under a name that is not served; the new path.

        Raises KafkaError(kafka_storage_error).
        """
        return self._retire(topic_partition, STRAY_SUFFIX)

    def _retire(self, topic_partition: TopicPartition, suffix: str) -> Path:
        directory, path = self._found[topic_partition]
        retired = directory.path / retired_name(topic_partition, suffix)
        log_of_it = self.logs.pop(topic_partition, None)
        try:
            path.rename(retired)
        except OSError as error:
            if log_of_it is not None:
                self.logs[topic_partition] = log_of_it
            self.note_failure(directory.path, error)
            raise KafkaError(ErrorCode.kafka_storage_error, f"cannot rename {path} to {retired}: {error}") from error
        self._unsynced.add(directory.path)
        del self._found[topic_partition]
        self._topic_ids.pop(topic_partition, None)
        self._opened(directory, topic_partition)
        # with the lock: a writing of checkpoints that began before must not bring the offsets back
        with self._checkpoints:
            directory.forget(topic_partition)
        return retired

    def remove_deleted_files(self, now_ms: int) -> None:
        """Remove what was deleted long enough ago. Slow for large files: call it in a thread.

        What an earlier process left behind waits for the default delay, counted from the first call. Nothing waits in
        a directory under its hard mark: readers keep the files that they have open.
        """
        full = {directory for directory, space in self.disk_space.items() if space.room is Room.NONE}
        for deleted_log in tuple(self.logs.values()):
            if deleted_log.has_deleted_files:
                deleted_log.remove_deleted_files(_AT_ONCE if deleted_log.directory.parent in full else now_ms)
        waiting: list[tuple[int | None, Path]] = []
        # Taken as a whole, because deletions are added from another thread meanwhile.
        doomed, self._doomed = self._doomed, []
        for due, path in doomed:
            if due is None and path.parent not in full:
                waiting.append((now_ms + LogConfig().file_delete_delay_ms, path))
            elif due is not None and due > now_ms and path.parent not in full:
                waiting.append((due, path))
            else:
                remove_tree(path)
                log.info("removed %s", path)
        self._doomed += waiting

    def flush_rolled(self) -> None:
        """Bring the segments that are not appended to any more to the disk; waits for it: call it in a thread.

        Raises KafkaError(kafka_storage_error).
        """
        failure = None
        for topic_partition, each in tuple(self.logs.items()):
            try:
                each.flush_rolled()
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
        for directory in self._directories:
            try:
                with self._checkpoints:
                    if not self._closed:
                        directory.write_checkpoints(self._logs_in(directory), high_watermarks)
            except OSError as error:
                self.note_failure(directory.path, error)
                failure = error
        if failure is not None:
            raise KafkaError(ErrorCode.kafka_storage_error, f"cannot write checkpoints: {failure}") from failure

    def close(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """Close every log, mark the directories where all went well as cleanly shut down, and unlock them.

        Those that were not taken over stay as they are.
        """
        with self._checkpoints:
            self._closed = True
        for directory in self._failed:
            directory.unlock()
        for directory in self._directories:
            if not directory.taken_over:
                directory.unlock()
                continue
            try:
                logs = self._logs_in(directory)
                for each in logs:
                    each.close()
                directory.write_checkpoints(logs, high_watermarks)
                if len(logs) == sum(1 for owner, _ in self._found.values() if owner is directory):
                    directory.mark_clean_shutdown()
            except (KafkaError, OSError) as error:
                log.error("%s: %s; the next start will recover its logs", directory.path, error)
            finally:
                directory.unlock()
        self.logs.clear()

    def abandon(self, topic_partition: TopicPartition) -> None:
        """Let go of a log whose disk has failed, as it is: the next start recovers it, and every other beside it."""
        if self.logs.pop(topic_partition, None) is not None:
            self._distrust(self._found[topic_partition][0])

    def _distrust(self, directory: LogDir) -> None:
        try:
            directory.distrust()
        except OSError as error:
            log.error("%s cannot be marked for a full recovery: %s", directory.path, error)

    def _logs_in(self, directory: LogDir) -> list[Log]:
        return [each for each in tuple(self.logs.values()) if each.directory.parent == directory.path]
