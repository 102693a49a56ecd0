"""The log directories of a broker: ownership, failures and disk space. Nothing here opens a log."""

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Final
from uuid import UUID

from headrace.errors import ErrorCode, KafkaError
from headrace.storage.dirs.disk_space import DiskSpace, Marks, Room
from headrace.storage.dirs.log_dir import BOOT_FILE, NEW_FILE, LogDir
from headrace.storage.files.disk_failures import is_disk_failure, reason_of
from headrace.wire.ids import id_to_text, new_id

_UNUSABLE: Final = "Log directory %s cannot be used (%s); its partitions are offline"

log = logging.getLogger(__name__)


class OwnedDirs:
    """Directories locked by this process; `offline` has those that do not work, with the reason."""

    def __init__(self, directories: Sequence[LogDir], cluster_id: str, offline: dict[Path, str]) -> None:
        """Use `lock`."""
        self.working = tuple(directories)
        self.failed: list[LogDir] = []
        """Directories that have failed since they were locked."""
        self.cluster_id = cluster_id
        self.offline = offline
        self.disk_space = {directory.path: DiskSpace() for directory in directories}
        self._failing = Lock()

    @classmethod
    def lock(cls, paths: Iterable[Path], *, broker_id: int, cluster_id: str | None, meta_version: int) -> "OwnedDirs":
        """Lock `paths` and check that they belong to this broker: a part of `LogDirs.survey`.

        Raises KafkaError: kafka_storage_error if another broker uses a directory, one is given twice or none works;
        inconsistent_cluster_id for another broker's or cluster's directory.
        """
        directories: list[LogDir] = []
        offline: dict[Path, str] = {}
        try:
            for path in paths:
                same = os.path.realpath(path)
                if any(str(directory.path) == same for directory in directories):
                    raise KafkaError(ErrorCode.kafka_storage_error, f"log.dirs contains {same} twice")
                try:
                    directories.append(LogDir(path))
                except OSError as error:
                    offline[path] = reason_of(error, path)
            if not directories:
                raise _none_works(offline)
            for path, why in offline.items():
                log.error(_UNUSABLE, path, why)
            known = [directory.properties.cluster_id for directory in directories if directory.properties]
            cluster_id = cluster_id or next(filter(None, known), None) or id_to_text(new_id())
            for directory in directories:
                directory.identify(version=meta_version, cluster_id=cluster_id, broker_id=broker_id)
        except BaseException:
            for directory in directories:
                directory.unlock()
            raise
        return cls(directories, cluster_id, offline)

    def take_over(self) -> list[LogDir]:
        """Claim the directories for this broker, and return those that are not writable.

        Raises KafkaError(kafka_storage_error) if none is writable.
        """
        unusable: dict[LogDir, OSError] = {}
        for directory in self.working:
            try:
                directory.take_over(joins_others=any(other.known for other in self.working))
            except OSError as error:
                unusable[directory] = error
        self.leave_out(unusable)
        return list(unusable)

    def leave_out(self, unusable: Mapping[LogDir, OSError]) -> None:
        """Unlock directories that failed before a log in them was opened, and take them offline.

        Raises KafkaError(kafka_storage_error) if no other is left.
        """
        for directory, error in unusable.items():
            self.offline[directory.path] = reason_of(error, directory.path)
            if directory.taken_over and is_disk_failure(error):
                self.distrust(directory)
            directory.unlock()
        self.working = tuple(directory for directory in self.working if directory not in unusable)
        self.disk_space = {directory.path: self.disk_space[directory.path] for directory in self.working}
        if not self.working:
            raise _none_works(self.offline)
        for directory in unusable:
            log.error(_UNUSABLE, directory.path, self.offline[directory.path])

    def unlock(self) -> None:
        """Release the working directories. Call it only before `take_over`."""
        for directory in self.working:
            directory.unlock()

    # -- paths and identities --------------------------------------------------------------------------------------

    @property
    def paths(self) -> tuple[Path, ...]:
        """The working log directories."""
        return tuple(directory.path for directory in self.working)

    def at(self, path: Path) -> LogDir:
        """Return the working or failed log directory with that path. Raises KeyError."""
        for directory in (*self.working, *self.failed):
            if directory.path == path:
                return directory
        raise KeyError(path)

    @property
    def identities(self) -> frozenset[UUID]:
        """The ids of the directories that have one (KIP-858)."""
        known = (directory.properties for directory in self.working)
        return frozenset(properties.directory_id for properties in known if properties and properties.directory_id)

    def identify_as(self, version: int) -> None:
        """Rewrite every `meta.properties` as this version: a Kafka with ZooKeeper requires 0. Raises OSError."""
        for directory in self.working:
            directory.identify_as(version)

    # -- missing and failed directories ----------------------------------------------------------------------------

    def why_a_log_may_be_elsewhere(self) -> str | None:
        """Return why a partition's log may be missing from the working directories, or None."""
        if self.offline:
            return "these are offline: " + ", ".join(f"{path} ({why})" for path, why in self.offline.items())
        new = [directory.path for directory in self.working if directory.may_be_unmounted]
        if not new:
            return None
        return " and ".join(f"{path} was empty when it was first used" for path in new) + (
            ": mount the file system and restart the broker, or, if the disk was replaced and the records are lost,"
            f" remove the file {NEW_FILE} from the directory and restart"
        )

    def why_metadata_may_be_elsewhere(self) -> str | None:
        """Return why the metadata may be in a missing directory, or None."""
        if self.offline:
            return " and ".join(f"{path} cannot be used: {why}" for path, why in self.offline.items())
        fresh = [f"{directory.path} is empty" for directory in self.working if directory.is_fresh]
        if fresh and any(directory.known for directory in self.working):
            return f"{' and '.join(fresh)}: perhaps a file system is not mounted"
        return None

    def trust_new(self) -> None:
        """Confirm that all empty directories are new; call this if every partition has its log."""
        for directory in self.working:
            try:
                directory.trust()
            except OSError as error:
                log.warning(
                    "Cannot delete %s, which marks a new log directory: %s. Delete it yourself: while it exists,"
                    " a partition whose log is missing goes offline",
                    directory.path / NEW_FILE,
                    error,
                )

    def unusable(self) -> Iterator[tuple[Path, str]]:
        """Yield working directories that must no longer be used, with the reason.

        A directory was renamed, removed or replaced, its disk failed, or another process locked it after its lock file
        was deleted. Otherwise, a deleted lock file is created and locked again.
        """
        for directory in self.working:
            try:
                why = directory.why_gone() or directory.keep_lock()
            except OSError as error:
                why = reason_of(error, directory.path) if is_disk_failure(error) else None
            if why is not None:
                yield directory.path, why

    def why_gone(self, path: Path) -> str | None:
        """Return `LogDir.why_gone` of the working directory with that path; None for others."""
        return next((directory.why_gone() for directory in self.working if directory.path == path), None)

    def fail(self, path: Path, reason: str) -> bool:
        """Take a directory offline, and return True if it worked until now. Thread-safe."""
        with self._failing:
            failed = [directory for directory in self.working if directory.path == path]
            self.working = tuple(directory for directory in self.working if directory.path != path)
            self.failed += failed
            if failed:
                self.offline[path] = reason
                self.disk_space = {other: space for other, space in self.disk_space.items() if other != path}
        for directory in failed:
            if directory.why_gone() is None:  # otherwise the path is no longer this directory
                self.distrust(directory)
        return bool(failed)

    def distrust(self, directory: LogDir) -> None:
        """Make the next start recover all logs in `directory`."""
        try:
            with self._failing:  # two flushes may fail at once
                directory.distrust()
        except OSError as error:
            log.error(
                "Cannot mark %s for a full recovery: %s. Delete %s before the next start; otherwise that start trusts"
                " records that the disk may have lost",
                directory.path,
                error,
                directory.path / BOOT_FILE,
            )

    # -- space -----------------------------------------------------------------------------------------------------

    def space(self, path: Path) -> tuple[int, int]:
        """Return the total and the available bytes in `path`'s file system; -1 on errors."""
        try:
            system = os.statvfs(path)
        except OSError as error:
            log.warning("Cannot read the free space of %s, so its disk space marks have no effect: %s", path, error)
            return -1, -1
        return system.f_blocks * system.f_frsize, system.f_bavail * system.f_frsize

    def observe_space(self, marks: Marks) -> Iterator[tuple[Path, Room, DiskSpace]]:
        """Update the disk space of all directories, and yield their previous and current states."""
        for path, space in self.disk_space.items():
            total, free = self.space(path)
            if total >= 0:
                yield path, space.observe(total, free, marks), space

    def note_adopted(self) -> None:
        """Mark Kafka's metadata log as outdated. Raises KafkaError(kafka_storage_error)."""
        for directory in self.working:
            try:
                directory.note_adopted()
            except OSError as error:
                raise KafkaError(ErrorCode.kafka_storage_error, f"cannot write to {directory.path}: {error}") from error


def _none_works(reasons: dict[Path, str]) -> KafkaError:
    why = "; ".join(f"{path}: {why}" for path, why in reasons.items()) or "log.dirs is empty"
    return KafkaError(ErrorCode.kafka_storage_error, f"no log directory can be used: {why}")
