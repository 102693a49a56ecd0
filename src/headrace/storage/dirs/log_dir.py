"""One log directory: its lock, its identity, its checkpoints and the mark of a clean shutdown."""

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
"""In a directory that joined others while the logs of some partitions were nowhere: perhaps it only was not mounted."""
ADOPTED_FILE: Final = ".headrace_adopted"
"""Beside a metadata log that Kafka left: Headrace has taken up what it says, and knows better since."""
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")

log = logging.getLogger(__name__)


class LogDir:
    """A directory that this process holds the lock of.

    Nothing in it changes before `take_over`. `clean_shutdown` tells whether the last owner closed every log in it.
    `known` tells whether that was Headrace, and `kernel_survived` whether the machine has been up since it had every
    log open: then all that it wrote is there, even if it was killed.
    """

    _locked_here: ClassVar[set[Path]] = set()
    """A lock of fcntl does not keep the process that has it from locking again."""

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
        """Make `path` where it is missing, and lock it.

        Raises KafkaError(kafka_storage_error) when another broker has it; OSError when the disk fails.
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
        """Lock the directory itself, which nobody can delete meanwhile, and `.lock`, as Kafka does.

        The one keeps other brokers of Headrace out whatever becomes of `.lock`, the other keeps Kafka out.
        """
        in_use = KafkaError(
            ErrorCode.kafka_storage_error,
            f"{self.path} is in use by another broker (it holds the lock {self.path / LOCK_FILE}): "
            "stop that broker, or choose another log.dirs",
        )
        # asked before the file is opened: closing any descriptor of it would give up the lock that this process has
        if self.path in self._locked_here:
            raise in_use
        guard = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            try:
                fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise in_use from None
            except OSError as error:  # as NFS, which locks no directory
                log.debug("%s cannot be locked itself (%s), only %s in it", self.path, error, LOCK_FILE)
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
        """A descriptor of `.lock`, which is locked now; None where another process has it. Raises OSError."""
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
        """Why files made under the directory's name would not be in this directory; None where they would be.

        What is open stays open when a directory is renamed or removed, and works on as if nothing had happened.
        """
        try:
            found = self.path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return "it was removed or renamed while the broker runs"
        except OSError as error:
            return str(error)
        own = os.fstat(self._guard)
        if (found.st_dev, found.st_ino) != (own.st_dev, own.st_ino):
            return "another directory has taken its place while the broker runs"
        return None

    def keep_lock(self) -> str | None:
        """Make and lock `.lock` again where it was deleted; why that cannot be done, or None. Raises OSError."""
        own = os.fstat(self._lock)
        try:
            found = (self.path / LOCK_FILE).stat()
        except FileNotFoundError:
            found = None
        if found is not None and (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino):
            return None
        lock = self._lock_file()
        if lock is None:
            return f"{LOCK_FILE} in it was deleted, and another process has made and locked it since"
        os.close(self._lock)
        self._lock = lock
        log.warning("%s was deleted: made and locked it again", self.path / LOCK_FILE)
        return None

    @property
    def is_fresh(self) -> bool:
        """Whether no broker has had the directory before."""
        return self._properties_are_new

    def _noted_boot(self) -> bytes | None:
        try:
            return read_file(self.path / BOOT_FILE)
        except FileNotFoundError:
            return None

    @property
    def may_be_unmounted(self) -> bool:
        """Whether the directory was empty when it joined others, and perhaps should not have been."""
        return (self.path / NEW_FILE).exists()

    def trust(self) -> None:
        """The directory was empty because it is new. Raises OSError."""
        (self.path / NEW_FILE).unlink(missing_ok=True)

    def take_over(self, *, joins_others: bool = False) -> None:
        """Make the directory this broker's: from here on a crash is seen as one. Raises OSError."""
        if joins_others and self.is_fresh:
            replace_file(self.path / NEW_FILE, b"")
        if self.clean_shutdown:
            (self.path / CLEAN_SHUTDOWN_FILE).unlink()
        # a mark that a power failure brings back would hide what it tore, and a partition's directory that a process
        # made just before it died is not on the disk yet
        sync_directory(self.path)
        if self._properties_are_new and self.properties is not None:
            with suppress(PermissionError):
                sync_directory(self.path.parent)  # which has a name for it now
            write_meta_properties(self.path, self.properties)
        self.taken_over = True

    def note_recovered(self) -> None:
        """Every log in here is open, and what a power failure tore is mended. Raises OSError.

        Not before: a process that dies while it recovers logs must not keep the next one from recovering them.
        """
        if not self.kernel_survived:
            replace_file(self.path / BOOT_FILE, self._boot)

    def identify(self, *, version: int, cluster_id: str, broker_id: int) -> None:
        """Check what `meta.properties` says; where there is none, prepare what `take_over` writes.

        Raises KafkaError: inconsistent_cluster_id for another cluster's or broker's directory.
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
                f"{path} belongs to cluster {found.cluster_id}, not {cluster_id}: choose that cluster's log.dirs, "
                "or empty directories",
            )
        if found.broker_id not in (None, broker_id):
            raise KafkaError(
                ErrorCode.inconsistent_cluster_id,
                f"{path} belongs to broker {found.broker_id}, not {broker_id}: set broker.id={found.broker_id}, "
                "or choose another log.dirs",
            )

    @property
    def was_adopted(self) -> bool:
        return (self.path / ADOPTED_FILE).exists()

    def note_adopted(self) -> None:
        """Write down that Headrace has the directory's metadata now. Raises OSError."""
        replace_file(self.path / ADOPTED_FILE, b"")

    def identify_as(self, version: int) -> None:
        """Write `meta.properties` in another version, for an owner that takes no other. Raises OSError."""
        if self.properties is not None:
            write_meta_properties(self.path, replace(self.properties, version=version))

    def write_checkpoints(self, logs: Iterable[Log], high_watermarks: Mapping[TopicPartition, int]) -> None:
        """Write the recovery points, log start offsets and high watermarks of `logs`, which are in this directory.

        What is known of partitions without a log (one that could not be loaded) stays. Raises OSError.
        """
        for each in logs:
            topic_partition = each.topic_partition
            self.recovery_points[topic_partition] = each.flusher.recovery_point_to_save
            self.log_start_offsets[topic_partition] = each.log_start_offset
            if topic_partition in high_watermarks:
                self.high_watermarks[topic_partition] = high_watermarks[topic_partition]
        self.write()

    def write(self) -> None:
        """Write the checkpoints where they have changed. Raises OSError."""
        self._recovery_point_file.write(self.recovery_points)
        self._log_start_file.write({each: offset for each, offset in self.log_start_offsets.items() if offset})
        self._high_watermark_file.write(self.high_watermarks)
        self._cleaner_file.write(self.cleaner_offsets)

    def distrust(self) -> None:
        """What was written here may never get to the disk, though the machine goes on: recover all. Raises OSError."""
        replace_file(self.path / BOOT_FILE, b"an fsync failed\n")

    def write_bounds(self, each: Log) -> None:
        """Write the recovery point and the log start offset of one log now. Raises OSError."""
        self.recovery_points[each.topic_partition] = each.flusher.recovery_point_to_save
        self.log_start_offsets[each.topic_partition] = each.log_start_offset
        self.write()

    def write_cleaner_offset(self, topic_partition: TopicPartition, offset: int) -> None:
        """Note that the log is compacted before `offset`. Raises OSError."""
        self.cleaner_offsets[topic_partition] = offset
        self._cleaner_file.write(self.cleaner_offsets)

    def forget(self, topic_partition: TopicPartition) -> None:
        """Drop what is known of a deleted partition; the next writing of the checkpoints leaves it out."""
        for offsets in (self.recovery_points, self.log_start_offsets, self.high_watermarks, self.cleaner_offsets):
            offsets.pop(topic_partition, None)

    def expect_new(self, topic_partition: TopicPartition) -> None:
        """See to it that no checkpoint file has an offset of an earlier partition of this name. Raises OSError.

        After a crash it would be taken for the new one's, whose records would then be hidden or not be recovered.
        """
        self.forget(topic_partition)
        files = (self._recovery_point_file, self._log_start_file, self._high_watermark_file, self._cleaner_file)
        if any(file.stores(topic_partition) for file in files):
            self.write()

    def mark_clean_shutdown(self) -> None:
        """Say that every log in here was closed. Raises OSError."""
        replace_file(self.path / CLEAN_SHUTDOWN_FILE, b'{"version":0,"brokerEpoch":-1}')

    def unlock(self) -> None:
        """Let go of the directory; what was made to lock it goes too, where it was not taken over."""
        if self._lock_is_new and not self.taken_over:
            (self.path / LOCK_FILE).unlink(missing_ok=True)
        self._locked_here.discard(self.path)
        os.close(self._lock)
        os.close(self._guard)
        if not self.taken_over:
            self._remove_created()

    def _remove_created(self) -> None:
        for each in reversed(self._created):
            with suppress(OSError):  # it is not empty any more
                each.rmdir()


def make_directories(path: Path) -> list[Path]:
    """Make `path` and its parents where they are missing; those that were made, parents first. Raises OSError."""
    missing = []
    for each in (path, *path.parents):
        if os.path.lexists(each):
            break
        missing.append(each)
    made: list[Path] = []
    try:
        for each in reversed(missing):
            with suppress(FileExistsError):  # somebody was faster
                each.mkdir()
                made.append(each)
        if not path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "is not a directory", str(path))
    except BaseException:
        for each in reversed(made):
            with suppress(OSError):
                each.rmdir()
        raise
    return made


def _boot_id() -> bytes:
    """What tells this life of the machine from others; nothing where that is not told, as only Linux does."""
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
