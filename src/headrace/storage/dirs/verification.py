"""Reads all logs in a directory and reports damage, without changing anything.

Checks every batch's checksum, the order of offsets, indexes, producer snapshots and checkpoints. If a broker is writing
a log at the same time, its last batch may appear incomplete.
"""

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from stat import S_ISREG
from typing import Final, NamedTuple
from uuid import UUID

from headrace.errors import KafkaError
from headrace.storage.dirs.meta_properties import FILE_NAME as META_PROPERTIES
from headrace.storage.dirs.partition_dir import STRAY_SUFFIX, parse_name, stray_advice
from headrace.storage.dirs.partition_metadata import FILE_NAME as PARTITION_METADATA
from headrace.storage.dirs.partition_metadata import read_topic_id
from headrace.storage.files.atomic_file import UnusableFileError
from headrace.storage.files.checkpoint import (
    CLEANER_OFFSET_FILE,
    HIGH_WATERMARK_FILE,
    LOG_START_OFFSET_FILE,
    RECOVERY_POINT_FILE,
    CorruptCheckpointError,
    OffsetCheckpoint,
)
from headrace.storage.log.indexes.index import CorruptIndexError, OffsetIndex, TimeIndex
from headrace.storage.log.leader_epochs import FILE_NAME as LEADER_EPOCHS_FILE
from headrace.storage.log.leader_epochs import read_entries
from headrace.storage.log.producers.producer_snapshot import CorruptSnapshotError, read_snapshot, snapshots
from headrace.storage.log.segment import MIN_BATCH_LENGTH, Segment
from headrace.storage.log.segment_files import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, offset_of, segment_file
from headrace.storage.log.valid_batches import valid_batches
from headrace.wire.batch import HEADER_SIZE, MAGIC_V2, batch_crc_ok, parse_header
from headrace.wire.ids import id_to_text

_NO_LIMIT: Final = 2**63
_REBUILT: Final = "remove the file while the broker is down; the next start rebuilds it"
_AT_START: Final = "nothing to do: the next start rebuilds it"
_REBUILT_WITH_INDEX: Final = (
    "move it away and remove the segment's .index file while the broker is down; the next start rebuilds both"
)
_RESTORE: Final = "restore the file from a replica or a backup"
_TAIL: Final = "nothing to do: the next start after a crash truncates it"
_SEARCH_BYTES: Final = 1024 * 1024


class Finding(NamedTuple):
    """A damaged place: its byte position and offset (None if unknown), what is damaged, and the remedy."""

    file: Path
    position: int | None
    offset: int | None
    what: str
    remedy: str


class Verified(NamedTuple):
    directory: Path
    segments: int
    bytes: int
    findings: list[Finding]


class NotALogDirectoryError(Exception):
    """The directory is neither a log directory nor a partition's; the message suggests one."""


def partition_directories(directory: Path) -> list[Path]:
    """Return the partitions' directories in a log directory, or `directory` itself if it is a partition's.

    Raises NotALogDirectoryError and OSError.
    """
    if _is_partition(directory):
        return [directory]
    within = sorted(path for path in directory.iterdir() if path.is_dir())
    partitions = [path for path in within if parse_name(path.name) is not None]
    if not (directory / META_PROPERTIES).exists() and not any(map(_is_partition, partitions)):
        meant = [str(path) for path in within if (path / META_PROPERTIES).exists()]
        raise NotALogDirectoryError(
            f"{directory} is not a log directory: it has neither {META_PROPERTIES} nor partitions"
            + (f". Did you mean {' '.join(meant)}?" if meant else "; give a directory from log.dirs")
        )
    return partitions


def _is_partition(directory: Path) -> bool:
    try:
        names = [path.name for path in directory.iterdir()]
    except PermissionError:
        return False
    return PARTITION_METADATA in names or any(offset_of(name) is not None for name in names)


def verify_topic_ids(partitions: Sequence[Path], known: Mapping[str, UUID]) -> list[Finding]:
    """Compare the topic ids in the directories `partitions` with those of the `known` topics.

    All directories of an unknown topic must share one id that no other topic has.
    """
    findings: list[Finding] = []
    ids = dict(known)
    names = {topic_id: name for name, topic_id in known.items()}
    for directory in partitions:
        topic_partition = parse_name(directory.name)
        if topic_partition is None:
            continue
        path = directory / PARTITION_METADATA
        try:
            found = read_topic_id(directory)
        except KafkaError as error:
            findings.append(Finding(path, None, None, str(error), _REBUILT))
            continue
        if found is None:
            continue
        topic = topic_partition.topic
        wanted, owner = ids.setdefault(topic, found), names.setdefault(found, topic)
        if found != wanted or owner != topic:
            whose = f"that of topic {owner}" if owner != topic else "which belongs to no known topic"
            what = f"topic {topic} has id {id_to_text(wanted)}, but the file has {id_to_text(found)}, {whose}"
            remedy = f"if the records belong to {topic_partition}, remove the file while the broker is down"
            findings.append(Finding(path, None, None, what, f"{remedy}; otherwise move the directory away"))
    return findings


def find_strays(directory: Path) -> list[Finding]:
    """Find `-stray` directories in a log directory. Raises OSError."""
    return [
        Finding(path, None, None, "its records are not served", stray_advice(path))
        for path in sorted(directory.glob(f"*{STRAY_SUFFIX}"))
    ]


def verify_checkpoints(directory: Path) -> list[Finding]:
    findings = []
    for name in (RECOVERY_POINT_FILE, HIGH_WATERMARK_FILE, LOG_START_OFFSET_FILE, CLEANER_OFFSET_FILE):
        try:
            OffsetCheckpoint(directory / name).read()
        except (CorruptCheckpointError, OSError) as error:
            findings.append(Finding(directory / name, None, None, str(error), _REBUILT))
    return findings


def verify_partition(directory: Path) -> Verified:
    """Check all files of one partition. Raises OSError if the directory cannot be listed."""
    bases = sorted(
        base for path in directory.iterdir() if path.suffix == LOG_SUFFIX and (base := offset_of(path.name)) is not None
    )
    findings: list[Finding] = []
    size = 0
    for place, base in enumerate(bases):
        limit = bases[place + 1] if place + 1 < len(bases) else _NO_LIMIT
        try:
            size += _verify_segment(directory, base, limit, findings)
        except (KafkaError, OSError) as error:
            findings.append(Finding(segment_file(directory, base, LOG_SUFFIX), None, base, str(error), _RESTORE))
    for path in snapshots(directory).values():
        try:
            read_snapshot(path)
        except (CorruptSnapshotError, OSError) as error:
            findings.append(Finding(path, None, offset_of(path.name), str(error), _REBUILT))
    try:
        read_entries(directory / LEADER_EPOCHS_FILE)
    except (CorruptCheckpointError, OSError) as error:
        findings.append(Finding(directory / LEADER_EPOCHS_FILE, None, None, str(error), _REBUILT))
    return Verified(directory, len(bases), size, findings)


def _verify_segment(directory: Path, base: int, limit: int, findings: list[Finding]) -> int:
    """Check a log file and its indexes, append the damage to `findings`, and return the file's size in bytes."""
    path = segment_file(directory, base, LOG_SUFFIX)
    status = path.stat()
    if not S_ISREG(status.st_mode):  # opening a FIFO would block
        raise UnusableFileError(path, "is not a regular file")
    segment = Segment(directory, base, size=status.st_size, index_size=0, time_index_size=0, now_ms=0)
    segment.open_read_only()
    batches: dict[int, int] = {}
    position, offset = 0, base
    while True:
        for start, header in valid_batches(segment, limit, position):
            batches[start] = header.last_offset
            offset = header.next_offset
            position = start + header.size
        if position >= segment.size:
            break
        following = _next_batch(segment, position + 1, offset, limit)
        if following is None and limit == _NO_LIMIT:
            findings.append(
                Finding(path, position, offset, f"the last {segment.size - position} bytes are not a batch", _TAIL)
            )
            break
        end = segment.size if following is None else following
        findings.append(Finding(path, position, offset, f"{end - position} bytes are damaged", _RESTORE))
        if following is None:
            break
        position = following
    if not any(finding.file == path for finding in findings):
        _verify_indexes(segment, batches, findings)
    return segment.size


def _next_batch(segment: Segment, position: int, offset: int, limit: int) -> int | None:
    """Return the position of the first valid batch from `position` on whose offsets are not below `offset`, or None."""
    while position + HEADER_SIZE <= segment.size:
        data = segment.file.pread(_SEARCH_BYTES, position)
        # the 17th byte of a batch is its magic
        at = data.find(MAGIC_V2, 16)
        while at >= 0:
            start = position + at - 16
            header = parse_header(segment.file.pread(HEADER_SIZE, start).ljust(HEADER_SIZE, b"\0"))
            if (
                offset <= header.base_offset < limit
                and header.batch_length >= MIN_BATCH_LENGTH
                and start + header.size <= segment.size
                and batch_crc_ok(segment.file.pread(header.size, start), 0, header.size)
            ):
                return start
            at = data.find(MAGIC_V2, at + 1)
        position += max(1, len(data) - 16)
    return None


def _verify_indexes(segment: Segment, batches: dict[int, int], findings: list[Finding]) -> None:
    transactions = segment.txn_index
    try:
        status = transactions.path.stat()
        if not S_ISREG(status.st_mode):
            what = "is not a regular file"
            findings.append(Finding(transactions.path, None, None, what, _REBUILT_WITH_INDEX))
        elif not transactions.is_sound(status.st_size, segment.base_offset):
            # it cannot be rebuilt from damaged batches
            remedy = _RESTORE if any(item.file.suffix == LOG_SUFFIX for item in findings) else _AT_START
            findings.append(Finding(transactions.path, None, None, "is not a valid transaction index", remedy))
    except FileNotFoundError:
        pass  # no transaction was aborted
    except (OSError, struct.error) as error:
        findings.append(Finding(transactions.path, None, None, str(error), _REBUILT_WITH_INDEX))
    last_offsets = set(batches.values())
    for suffix, kind in ((INDEX_SUFFIX, OffsetIndex), (TIME_INDEX_SUFFIX, TimeIndex)):
        path = segment_file(segment.directory, segment.base_offset, suffix)
        try:
            index = kind(path, segment.base_offset, size=path.stat().st_size)
            for first, second in index.pairs():
                offset = segment.base_offset + (first if kind is OffsetIndex else second)
                if not (batches.get(second) == offset if kind is OffsetIndex else offset in last_offsets):
                    what = f"the entry for offset {offset} does not refer to a batch"
                    findings.append(Finding(path, None, offset, what, _REBUILT))
                    break
        except FileNotFoundError:
            findings.append(Finding(path, None, None, "is missing", _AT_START))
        except (CorruptIndexError, OSError) as error:
            findings.append(Finding(path, None, None, str(error), _REBUILT))
