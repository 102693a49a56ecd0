"""Kafka's `.snapshot` files: producer state as of an offset, so that recovery need not read the whole log.

Format: version 1, CRC-32C of the rest, then an array of fixed-size entries.
"""

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path
from struct import Struct, error
from typing import Final

from headrace.storage.files.atomic_file import read_file, replace_file, sync_directory
from headrace.storage.log.segment_files import MAX_OFFSET, SNAPSHOT_SUFFIX, offset_of, segment_file
from headrace.wire.checksum import crc32c

_VERSION: Final = 1
_HEAD: Final = Struct(">hIi")
_CRC_END: Final = 6
EMPTY_SIZE: Final = _HEAD.size
"""The size in bytes of a snapshot without producers."""
ENTRY: Final = Struct(">qhiqiqiq")
"""The fields of `ProducerEntry`, in order."""


class CorruptSnapshotError(Exception):
    """The file is unusable: remove it and use an older one."""


@dataclass(frozen=True, slots=True)
class ProducerEntry:
    """The last batch and the open transaction of one producer; -1 for none. `timestamp` in ms."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    current_txn_first_offset: int

    @classmethod
    def unpacked(cls, packed: bytes) -> "ProducerEntry":
        """Read the result of `packed`, ignoring any bytes after it."""
        return cls(*ENTRY.unpack_from(packed))

    def packed(self) -> bytes:
        """Return the entry as stored in the file."""
        return ENTRY.pack(*(getattr(self, name) for name in self.__slots__))


def write_snapshot(
    directory: Path, offset: int, entries: Sequence[bytes], *, sync: bool = True, temporary_suffix: str = ".tmp"
) -> Path:
    """Write the state before `offset` and return the path. Raises OSError.

    `entries` are packed; bytes after `ENTRY.size` in them are ignored. `temporary_suffix` is that of `replace_file`.
    """
    body = b"".join([entry[: ENTRY.size] for entry in entries])
    count = len(entries)
    head = _HEAD.pack(_VERSION, 0, count)
    crc = crc32c(head[_CRC_END:] + body)
    path = segment_file(directory, offset, SNAPSHOT_SUFFIX)
    replace_file(path, _HEAD.pack(_VERSION, crc, count) + body, sync=sync, temporary_suffix=temporary_suffix)
    return path


def read_snapshot(path: Path) -> Iterator[ProducerEntry]:
    """Read a snapshot, and return an iterator that unpacks its entries. Raises CorruptSnapshotError and OSError."""
    data = read_file(path)
    try:
        version, crc, count = _HEAD.unpack_from(data)
    except error:
        raise CorruptSnapshotError(f"{path} has only {len(data)} bytes") from None
    if version != _VERSION:
        raise CorruptSnapshotError(f"{path} has version {version}; only version {_VERSION} is supported")
    if crc != crc32c(memoryview(data)[_CRC_END:]) or len(data) != _HEAD.size + count * ENTRY.size:
        raise CorruptSnapshotError(f"{path} does not match its checksum")
    return starmap(ProducerEntry, ENTRY.iter_unpack(data[_HEAD.size :]))


def snapshots(directory: Path) -> dict[int, Path]:
    """Return the snapshot files by offset, ascending."""
    found = {}
    with os.scandir(directory) as entries:
        for entry in entries:
            offset = offset_of(entry.name) if entry.name.endswith(SNAPSHOT_SUFFIX) else None
            if offset is not None:
                found[offset] = directory / entry.name
    return dict(sorted(found.items()))


def remove_snapshots(directory: Path, before: int = MAX_OFFSET) -> None:
    """Remove snapshots from before the offset at which the log now begins: the batches in between are gone."""
    for offset, path in snapshots(directory).items():
        if offset < before:
            path.unlink(missing_ok=True)


def remove_stray_snapshots(directory: Path, base_offsets: Collection[int], log_end_offset: int) -> None:
    """Remove snapshots outside of the log, and older ones that are not at a segment's base offset.

    A clean shutdown writes one at the log end offset, which is useless after later appends.
    """
    found = snapshots(directory)
    kept = [offset for offset in found if min(base_offsets) <= offset <= log_end_offset]
    for offset, path in found.items():
        if offset not in kept or (offset not in base_offsets and offset != kept[-1]):
            path.unlink(missing_ok=True)
    if len(kept) < len(found):
        # if one came back after a power failure, it would describe batches that have been overwritten since
        sync_directory(directory)
