"""Kafka's checkpoint files: a version, a count and one line per entry.

`OffsetCheckpoint` maps partitions to offsets. A log directory has four: for recovery points, high watermarks, log start
offsets and the cleaner.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from headrace.storage.files.atomic_file import UnusableFileError, read_file, replace_file
from headrace.types import TopicPartition

VERSION: Final = 0

RECOVERY_POINT_FILE: Final = "recovery-point-offset-checkpoint"
HIGH_WATERMARK_FILE: Final = "replication-offset-checkpoint"
LOG_START_OFFSET_FILE: Final = "log-start-offset-checkpoint"
CLEANER_OFFSET_FILE: Final = "cleaner-offset-checkpoint"


class CorruptCheckpointError(Exception):
    """The file is malformed."""


def read_lines(path: Path) -> list[str]:
    """Return one line per entry; an empty list if the file is missing or empty (Kafka creates empty files).

    Raises CorruptCheckpointError and OSError.
    """
    try:
        lines = read_file(path).decode().splitlines()
    except FileNotFoundError:
        return []
    except UnusableFileError as error:
        raise CorruptCheckpointError(str(error)) from None
    except UnicodeDecodeError as error:
        raise CorruptCheckpointError(f"{path} is not UTF-8 text: {error}") from None
    if len(lines) < 2:
        if lines and lines[0] != str(VERSION):
            raise CorruptCheckpointError(f"{path} has version {lines[0]!r}; only version {VERSION} is supported")
        return []
    if lines[0] != str(VERSION):
        raise CorruptCheckpointError(f"{path} has version {lines[0]!r}; only version {VERSION} is supported")
    entries = lines[2:]
    if lines[1] != str(len(entries)):
        raise CorruptCheckpointError(f"{path} declares {lines[1]} entries but contains {len(entries)}")
    return entries


def write_lines(path: Path, entries: Iterable[str], *, sync: bool = True) -> None:
    lines = list(entries)
    replace_file(path, "\n".join([str(VERSION), str(len(lines)), *lines, ""]).encode(), sync=sync)


class OffsetCheckpoint:
    """A file of offsets by partition."""

    __slots__ = ("_stored", "path")

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stored: dict[TopicPartition, int] | None = None

    def read(self) -> dict[TopicPartition, int]:
        """Return the offsets in the file. Raises CorruptCheckpointError and OSError."""
        offsets: dict[TopicPartition, int] = {}
        for line in read_lines(self.path):
            try:
                topic, partition, offset = line.split(" ")
                offsets[TopicPartition(topic, int(partition))] = int(offset)
            except ValueError:
                raise CorruptCheckpointError(f"{self.path} has a malformed line: {line!r}") from None
        self._stored = dict(offsets)
        return offsets

    def stores(self, topic_partition: TopicPartition) -> bool:
        """Return True if the file, as last read or written, has an offset of the partition."""
        return self._stored is not None and topic_partition in self._stored

    def write(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Replace the file if the offsets have changed. Raises OSError."""
        snapshot = dict(offsets)
        if snapshot == self._stored:
            return
        write_lines(self.path, (f"{tp.topic} {tp.partition} {offset}" for tp, offset in snapshot.items()))
        self._stored = snapshot
