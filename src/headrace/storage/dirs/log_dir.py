"""One log directory: its lock, identity, checkpoints and clean-shutdown file."""

import errno
import fcntl
import logging
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Final

from headrace.errors import ErrorCode, KafkaError
from headrace.storage.dirs.meta_properties import MetaProperties, read_meta_properties, write_meta_properties
from headrace.storage.files.atomic_file import read_file, replace_file, sync_directory
from headrace.storage.files.checkpoint import (
    CLEANER_OFFSET_FILE,
    HIGH_WATERMARK_FILE,
    LOG_START_OFFSET_FILE,
    RECOVERY_POINT_FILE,
    CorruptCheckpointError,
    OffsetCheckpoint,
)
from headrace.storage.log.log import Log
from headrace.types import TopicPartition
from headrace.wire.ids import new_id

LOCK_FILE: Final = ".lock"
CLEAN_SHUTDOWN_FILE: Final = ".kafka_cleanshutdown"
BOOT_FILE: Final = ".headrace_boot"
NEW_FILE: Final = ".headrace_new_directory"
"""Marks a directory that was empty when it was added to others: its file system may not have been mounted."""
ADOPTED_FILE: Final = ".headrace_adopted"
"""Marks Kafka's metadata log as outdated: Headrace has read it, and has maintained its own metadata since then."""
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")

log = logging.getLogger(__name__)


class LogDir:
    """A directory whose lock this process holds; apart from `.lock`, nothing in it changes before `take_over`.

    `clean_shutdown` is True if the last owner closed all logs, `known` if Headrace has owned the directory before,
    `kernel_survived` if the machine has not restarted since Headrace opened all logs: then no write is lost, even if
    the owner was killed.
    """

    _locked_here: ClassVar[set[Path]] = set()
    """The paths that this process has locked: an fcntl lock does not exclude its own process."""

    __slots__ = (
        "_boot",
        "_cleaner_file",
        "_created",
        "_guard",
        "_high_watermark_file",
        "_lock",
        "_lock_is_new",
        "_log_start_file",
        "_properties_are_new",
        "_recovery_point_file",
        "clean_shutdown",
        "cleaner_offsets",
        "high_watermarks",
        "kernel_survived",
        "known",
        "log_start_offsets",
        "path",
        "properties",
        "recovery_points",
        "taken_over",
    )

    def __init__(self, path: Path) -> None:
        """Create `path` if it is missing, and lock it.

        Raises KafkaError: kafka_storage_error if another broker uses it, and as `read_meta_properties` does; OSError
        if the disk fails.
        """
        self._created = make_directories(path)
        self._guard = self._lock = -1
        self._lock_is_new = self._properties_are_new = self.taken_over = False
        self.path = path
        try:
            self.path = path.resolve()
            self._take_locks()
        except BaseException:
            self._remove_created()
            raise
        try:
            self.properties = read_meta_properties(self.path)
            self.clean_shutdown = (self.path / CLEAN_SHUTDOWN_FILE).exists()
            self._boot = _boot_id()
            noted = self._noted_boot()
            self.known = noted is not None
            self.kernel_survived = bool(self._boot) and noted == self._boot
            self._recovery_point_file = OffsetCheckpoint(self.path / RECOVERY_POINT_FILE)
            self._log_start_file = OffsetCheckpoint(self.path / LOG_START_OFFSET_FILE)
            self._high_watermark_file = OffsetCheckpoint(self.path / HIGH_WATERMARK_FILE)
            self._cleaner_file = OffsetCheckpoint(self.path / CLEANER_OFFSET_FILE)
            self.recovery_points = _read(self._recovery_point_file, "every log is recovered from its beginning")
            self.log_start_offsets = _read(self._log_start_file, "logs start at their first segments")
            self.high_watermarks = _read(self._high_watermark_file, "high watermarks start at 0")
            self.cleaner_offsets = _read(self._cleaner_file, "compacted logs are compacted from their beginning")
        except BaseException:
            self.unlock()
            raise

    def _take_locks(self) -> None:
        """Lock `.lock` against Kafka, and the directory itself against Headrace, even if `.lock` is deleted."""
        in_use = KafkaError(
            ErrorCode.kafka_storage_error,
            f"{self.path} is in use by another broker (it holds the lock {self.path / LOCK_FILE}): "
            "stop that broker, or choose another log.dirs",
        )
        # before opening the file, because closing any descriptor of it would release this process's fcntl lock
        if self.path in self._locked_here:
            raise in_use
        guard = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            try:
                fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise in_use from None
            except OSError as error:  # NFS does not lock directories
                log.debug("Cannot lock the directory %s: %s. Its file %s is the only lock", self.path, error, LOCK_FILE)
            self._lock_is_new = not (self.path / LOCK_FILE).exists()
            lock = self._lock_file()
            if lock is None:
                raise in_use
        except BaseException:
            os.close(guard)
            raise
        self._guard, self._lock = guard, lock
        self._locked_here.add(self.path)

    def _lock_file(self) -> int | None:
        """Lock `.lock` and return its descriptor; None if another process holds the lock. Raises OSError."""
        descriptor = os.open(self.path / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return None
            raise
        return descriptor

    def why_gone(self) -> str | None:
        """Return the reason if the path no longer refers to this directory; None if it does.

        Open files keep working after a directory is renamed or removed, so only a check detects it.
        """
        try:
            found = self.path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return "it was removed or renamed while the broker was running"
        except OSError as error:
            return str(error)
        own = os.fstat(self._guard)
        if (found.st_dev, found.st_ino) != (own.st_dev, own.st_ino):
            return "it was replaced by another directory while the broker was running"
        return None

    def keep_lock(self) -> str | None:
        """Create and lock `.lock` again if it was deleted; return the reason if that fails. Raises OSError."""
        own = os.fstat(self._lock)
        try:
            found = (self.path / LOCK_FILE).stat()
        except FileNotFoundError:
            found = None
        if found is not None and (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino):
            return None
        lock = self._lock_file()
        if lock is None:
            return f"its {LOCK_FILE} was deleted, and another process has created and locked it again"
        os.close(self._lock)
        self._lock = lock
        log.warning("%s was deleted: created and locked it again", self.path / LOCK_FILE)
        return None

    @property
    def is_fresh(self) -> bool:
        """True if no broker has used the directory before."""
        return self._properties_are_new

    def _noted_boot(self) -> bytes | None:
        try:
            return read_file(self.path / BOOT_FILE)
        except FileNotFoundError:
            return None

    @property
    def may_be_unmounted(self) -> bool:
        """True if the directory was empty when it was added to others, and `trust` has not been called since."""
        return (self.path / NEW_FILE).exists()

    def trust(self) -> None:
        """Confirm that the directory was empty because it was new. Raises OSError."""
        (self.path / NEW_FILE).unlink(missing_ok=True)

    def take_over(self, *, joins_others: bool = False) -> None:
        """Claim the directory for this broker; a crash from now on causes a recovery. Raises OSError."""
        if joins_others and self.is_fresh:
            replace_file(self.path / NEW_FILE, b"")
        if self.clean_shutdown:
            (self.path / CLEAN_SHUTDOWN_FILE).unlink()
        # a power failure must not bring the clean-shutdown file back; this also syncs partition directories that
        # a killed process created
        sync_directory(self.path)
        if self._properties_are_new and self.properties is not None:
            with suppress(PermissionError):
                sync_directory(self.path.parent)  # the directory itself may be new
            write_meta_properties(self.path, self.properties)
        self.taken_over = True

    def note_recovered(self) -> None:
        """Store the boot id once every log is open and recovered. Raises OSError.

        If it were stored earlier, a start after a crash during recovery would skip the recovery.
        """
        if not self.kernel_survived:
            replace_file(self.path / BOOT_FILE, self._boot)

    def identify(self, *, version: int, cluster_id: str, broker_id: int) -> None:
        """Check `meta.properties`; if it is missing, prepare one for `take_over` to write.

        Raises KafkaError(inconsistent_cluster_id) for another cluster's or broker's directory.
        """
        found = self.properties
        path = self.path / "meta.properties"
        if found is None:
            self.properties = MetaProperties(
                version=version, cluster_id=cluster_id, broker_id=broker_id, directory_id=new_id()
            )
            self._properties_are_new = True
            return
        if found.cluster_id not in (None, cluster_id):
            raise KafkaError(
                ErrorCode.inconsistent_cluster_id,
                f"{path} belongs to cluster {found.cluster_id}, not {cluster_id}: set log.dirs to directories of this"
                " cluster or to empty ones",
            )
        if found.broker_id not in (None, broker_id):
            raise KafkaError(
                ErrorCode.inconsistent_cluster_id,
                f"{path} belongs to broker {found.broker_id}, not {broker_id}: set broker.id={found.broker_id}"
                " or other log.dirs",
            )

    @property
    def was_adopted(self) -> bool:
        return (self.path / ADOPTED_FILE).exists()

    def note_adopted(self) -> None:
        """Mark Kafka's metadata log in the directory as outdated. Raises OSError."""
        replace_file(self.path / ADOPTED_FILE, b"")

    def identify_as(self, version: int) -> None:
        """Rewrite `meta.properties` as this version: a Kafka with ZooKeeper requires 0. Raises OSError."""
        if self.properties is not None:
            write_meta_properties(self.path, replace(self.properties, version=version))

    def write_checkpoints(self, logs: Iterable[Log], high_watermarks: Mapping[TopicPartition, int]) -> None:
        """Write the recovery points, log start offsets and high watermarks of `logs`, which are in this directory.

        Offsets of partitions whose logs could not be loaded are kept. Raises OSError.
        """
        for partition_log in logs:
            topic_partition = partition_log.topic_partition
            self.recovery_points[topic_partition] = partition_log.flusher.recovery_point_to_save
            self.log_start_offsets[topic_partition] = partition_log.log_start_offset
            if topic_partition in high_watermarks:
                self.high_watermarks[topic_partition] = high_watermarks[topic_partition]
        self.write()

    def write(self) -> None:
        """Write the checkpoints that have changed. Raises OSError."""
        self._recovery_point_file.write(self.recovery_points)
        starts = {topic_partition: offset for topic_partition, offset in self.log_start_offsets.items() if offset}
        self._log_start_file.write(starts)
        self._high_watermark_file.write(self.high_watermarks)
        self._cleaner_file.write(self.cleaner_offsets)

    def distrust(self) -> None:
        """Make the next start recover every log: after a failed fsync, writes may be lost although the kernel survived.

        Raises OSError.
        """
        replace_file(self.path / BOOT_FILE, b"an fsync failed\n")

    def write_bounds(self, partition_log: Log) -> None:
        """Write the recovery point and the log start offset of one log now. Raises OSError."""
        self.recovery_points[partition_log.topic_partition] = partition_log.flusher.recovery_point_to_save
        self.log_start_offsets[partition_log.topic_partition] = partition_log.log_start_offset
        self.write()

    def write_cleaner_offset(self, topic_partition: TopicPartition, offset: int) -> None:
        """Record that the log is compacted before `offset`. Raises OSError."""
        self.cleaner_offsets[topic_partition] = offset
        self._cleaner_file.write(self.cleaner_offsets)

    def forget(self, topic_partition: TopicPartition) -> None:
        """Drop the offsets of a deleted partition; the next `write` removes them from the checkpoints."""
        for offsets in (self.recovery_points, self.log_start_offsets, self.high_watermarks, self.cleaner_offsets):
            offsets.pop(topic_partition, None)

    def expect_new(self, topic_partition: TopicPartition) -> None:
        """Remove the offsets of an earlier partition with this name from the checkpoints. Raises OSError.

        After a crash, they would hide records of the new partition or skip their recovery.
        """
        self.forget(topic_partition)
        files = (self._recovery_point_file, self._log_start_file, self._high_watermark_file, self._cleaner_file)
        if any(file.stores(topic_partition) for file in files):
            self.write()

    def mark_clean_shutdown(self) -> None:
        """Record that every log in the directory was closed. Raises OSError."""
        replace_file(self.path / CLEAN_SHUTDOWN_FILE, b'{"version":0,"brokerEpoch":-1}')

    def unlock(self) -> None:
        """Release the directory; if it was not taken over, also remove what `__init__` created."""
        if self._lock_is_new and not self.taken_over:
            with suppress(OSError):  # its disk has failed
                (self.path / LOCK_FILE).unlink()
        self._locked_here.discard(self.path)
        os.close(self._lock)
        os.close(self._guard)
        if not self.taken_over:
            self._remove_created()

    def _remove_created(self) -> None:
        for created in reversed(self._created):
            with suppress(OSError):  # no longer empty
                created.rmdir()


def make_directories(path: Path) -> list[Path]:
    """Create `path` and its missing parents, and return the created ones, parents first. Raises OSError."""
    missing = []
    for directory in (path, *path.parents):
        if os.path.lexists(directory):
            break
        missing.append(directory)
    made: list[Path] = []
    try:
        for directory in reversed(missing):
            with suppress(FileExistsError):  # another process was faster
                directory.mkdir()
                made.append(directory)
        if not path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "is not a directory", str(path))
    except BaseException:
        for directory in reversed(made):
            with suppress(OSError):
                directory.rmdir()
        raise
    return made


def _boot_id() -> bytes:
    """Return the machine's current boot id; empty except on Linux."""
    try:
        return _BOOT_ID.read_bytes()
    except OSError:
        return b""


def _read(checkpoint: OffsetCheckpoint, consequence: str) -> dict[TopicPartition, int]:
    try:
        return checkpoint.read()
    except CorruptCheckpointError as error:
        log.warning("%s; %s", error, consequence)
        return {}
