"""The log directories of a broker: whose they are, which of them work, how full they are. Nothing here opens a log."""

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from threading import Lock
from uuid import UUID

from headrace.errors import ErrorCode, KafkaError
from headrace.storage.dirs.disk_space import DiskSpace, Marks, Room
from headrace.storage.dirs.log_dir import NEW_FILE, LogDir
from headrace.storage.files.disk_failures import is_disk_failure, reason_of
from headrace.wire.ids import id_to_text, new_id

log = logging.getLogger(__name__)


class OwnedDirs:
    """Directories that this process holds the locks of; `offline` has those that do not work, with the reason."""

    def __init__(self, directories: Sequence[LogDir], cluster_id: str, offline: dict[Path, str]) -> None:
        """Use `lock`."""
        self.working = tuple(directories)
        self.failed: list[LogDir] = []
        """Those that have failed since they were locked."""
        self.cluster_id = cluster_id
        self.offline = offline
        self.disk_space = {each.path: DiskSpace() for each in directories}
        self._failing = Lock()

    @classmethod
    def lock(cls, paths: Iterable[Path], *, broker_id: int, cluster_id: str | None, meta_version: int) -> "OwnedDirs":
        """Lock `paths` and check that they belong to this broker: see `LogDirs.survey`, of which this is a part.

        Raises KafkaError: kafka_storage_error when another broker uses a directory, one is named twice or none works;
        inconsistent_cluster_id for another broker's or cluster's directory.
        """
        directories: list[LogDir] = []
        offline: dict[Path, str] = {}
        try:
            for path in paths:
                if any(each.path == path.resolve() for each in directories):
                    raise KafkaError(ErrorCode.kafka_storage_error, f"log.dirs names {path.resolve()} twice")
                try:
                    directories.append(LogDir(path))
                except OSError as error:
                    offline[path] = reason_of(error, path)
            if not directories:
                raise _none_works(offline)
            for path, why in offline.items():
                log.error("Log directory %s cannot be used (%s); its partitions are offline", path, why)
            known = [each.properties.cluster_id for each in directories if each.properties]
            cluster_id = cluster_id or next(filter(None, known), None) or id_to_text(new_id())
            for directory in directories:
                directory.identify(version=meta_version, cluster_id=cluster_id, broker_id=broker_id)
        except BaseException:
            for directory in directories:
                directory.unlock()
            raise
        return cls(directories, cluster_id, offline)

    def take_over(self) -> list[LogDir]:
        """Make the directories this broker's own; those that cannot be written to.

        Raises KafkaError(kafka_storage_error) when that is all of them.
        """
        unusable: list[LogDir] = []
        for directory in self.working:
            try:
                directory.take_over(joins_others=any(each.known for each in self.working))
            except OSError as error:
                self.offline[directory.path] = reason_of(error, directory.path)
                directory.unlock()
                unusable.append(directory)
        self.working = tuple(each for each in self.working if each.taken_over)
        if not self.working:
            raise _none_works(self.offline)
        for each in unusable:
            log.error(
                "Log directory %s cannot be used (%s); its partitions are offline", each.path, self.offline[each.path]
            )
        return unusable

    def unlock(self) -> None:
        """Let go of all, with nothing in them changed."""
        for directory in self.working:
            directory.unlock()

    # -- what they are and where -----------------------------------------------------------------------------------

    @property
    def paths(self) -> tuple[Path, ...]:
        """Of those that work; the parents of the logs' directories."""
        return tuple(each.path for each in self.working)

    def at(self, path: Path) -> LogDir:
        """The log directory of that path, one that has failed too. Raises KeyError."""
        for each in (*self.working, *self.failed):
            if each.path == path:
                return each
        raise KeyError(path)

    @property
    def identities(self) -> frozenset[UUID]:
        """The ids of the directories that have one (KIP-858)."""
        return frozenset(
            each.properties.directory_id for each in self.working if each.properties and each.properties.directory_id
        )

    def identify_as(self, version: int) -> None:
        """Write every `meta.properties` in another version, for an owner that takes no other. Raises OSError."""
        for directory in self.working:
            directory.identify_as(version)

    # -- directories that are not there, or fail -------------------------------------------------------------------

    def why_a_log_may_be_elsewhere(self) -> str | None:
        """Why a partition that had a log may have none in the directories that work; None where all are there."""
        if self.offline:
            return "offline is " + ", ".join(f"{path} ({why})" for path, why in self.offline.items())
        new = [str(each.path) for each in self.working if each.may_be_unmounted]
        if not new:
            return None
        return (
            f"{', '.join(new)} was empty when it was first used: mount what belongs there and restart the broker, or,"
            f" if its disk was replaced and the records are lost, remove the file {NEW_FILE} in it and restart"
        )

    def why_metadata_may_be_elsewhere(self) -> str | None:
        """Which directory is not there that may have been, or None where all are."""
        if self.offline:
            return " and ".join(f"{path} cannot be used: {why}" for path, why in self.offline.items())
        fresh = [str(each.path) for each in self.working if each.is_fresh]
        if fresh and any(each.known for each in self.working):
            return f"{' and '.join(fresh)} is empty: perhaps its file system is not mounted"
        return None

    def trust_new(self) -> None:
        """No partition misses its log: directories that were empty are so because they are new."""
        for directory in self.working:
            try:
                directory.trust()
            except OSError as error:
                log.warning("%s: %s", directory.path, error)

    def unusable(self) -> Iterator[tuple[Path, str]]:
        """The directories that worked until now and must not be used any more, with the reason.

        One that was renamed or removed, or that another process has locked since its lock file was deleted. A lock file
        that was only deleted is made and locked again.
        """
        for directory in self.working:
            try:
                why = directory.why_gone() or directory.keep_lock()
            except OSError as error:
                why = reason_of(error, directory.path) if is_disk_failure(error) else None
            if why is not None:
                yield directory.path, why

    def why_gone(self, path: Path) -> str | None:
        """Why the directory of that path is not there any more, where it worked until now; None where it is."""
        return next((each.why_gone() for each in self.working if each.path == path), None)

    def fail(self, path: Path, reason: str) -> bool:
        """Take a directory offline; whether it worked until now. Any thread may call this."""
        with self._failing:
            failed = [each for each in self.working if each.path == path]
            self.working = tuple(each for each in self.working if each.path != path)
            self.failed += failed
            if failed:
                self.offline[path] = reason
                self.disk_space = {each: space for each, space in self.disk_space.items() if each != path}
        for each in failed:
            if each.why_gone() is None:  # else the mark would be written to where it belongs no more
                self.distrust(each)
        return bool(failed)

    def distrust(self, directory: LogDir) -> None:
        """The next start is to recover everything in `directory`."""
        try:
            with self._failing:  # two flushes may fail at once
                directory.distrust()
        except OSError as error:
            log.error("%s cannot be marked for a full recovery: %s", directory.path, error)

    # -- space -----------------------------------------------------------------------------------------------------

    def space(self, path: Path) -> tuple[int, int]:
        """Bytes of the file system that `path` is on, and bytes that can still be written; -1 when it fails."""
        try:
            system = os.statvfs(path)
        except OSError as error:
            log.warning("%s does not tell its size: %s", path, error)
            return -1, -1
        return system.f_blocks * system.f_frsize, system.f_bavail * system.f_frsize

    def observe_space(self, marks: Marks) -> Iterator[tuple[Path, Room, DiskSpace]]:
        """Look how full the directories are; each with the state from before and that of now."""
        for path, space in self.disk_space.items():
            total, free = self.space(path)
            if total >= 0:
                yield path, space.observe(total, free, marks), space

    # -- what Kafka left in them -----------------------------------------------------------------------------------

    def note_adopted(self) -> None:
        """Write down that the metadata log is of the past. Raises KafkaError(kafka_storage_error)."""
        for directory in self.working:
            try:
                directory.note_adopted()
            except OSError as error:
                raise KafkaError(ErrorCode.kafka_storage_error, f"cannot write to {directory.path}: {error}") from error


def _none_works(reasons: dict[Path, str]) -> KafkaError:
    why = "; ".join(f"{path}: {why}" for path, why in reasons.items()) or "log.dirs is empty"
    return KafkaError(ErrorCode.kafka_storage_error, f"no log directory can be used: {why}")
