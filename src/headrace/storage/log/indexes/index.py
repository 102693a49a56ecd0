"""The two sparse indexes of a segment: offset to file position, and timestamp to offset.

Entries are appended to a short tail in memory. The tail is written to the file after a few hundred entries, and when
the segment is rolled or closed; after a crash, recovery rebuilds lost entries from the log. The file is never mapped
(a mapping on a full disk causes SIGBUS) and only open while it is read or written, so an idle segment uses no
descriptor. A lookup is a binary search: single reads narrow it down to one block, which is then searched in memory.

Formats: offset index, relative offset and position (4 + 4 bytes); time index, timestamp in ms and relative offset
(8 + 4 bytes); big-endian, ascending.
"""

import os
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import ClassVar, Final

from headrace.types import Buffer

_TAIL_BYTES: Final = 4096
_BLOCK_ENTRIES: Final = 512
NO_TIMESTAMP: Final = -1
TIME_ENTRY_SIZE: Final = 12


class CorruptIndexError(Exception):
    """The file is not a valid index of its segment: rebuild it."""


class _Index:
    """Entries of two ascending integers, in a file and an unwritten tail."""

    __slots__ = ("_last", "_stored", "_tail", "base_offset", "count", "path")
    _entry: ClassVar[Struct]

    def __init__(self, path: Path, base_offset: int, *, size: int) -> None:
        """Open an index file of `size` bytes. Raises CorruptIndexError and OSError."""
        if size % self._entry.size:
            raise CorruptIndexError(f"{path} has {size} bytes, not a multiple of its {self._entry.size}-byte entries")
        self.path = path
        self.base_offset = base_offset
        self._stored = size // self._entry.size
        self.count = self._stored
        self._tail = bytearray()
        self._last: tuple[int, int] | None = None
        if self._stored:
            self._last, first = self._read(self._stored - 1, 1)[0], self._read(0, 1)[0]
            ascending = self._stored == 1 or (self._last[0] > first[0] and self._last[1] > first[1])
            if not ascending or min(self._last) < 0:
                raise CorruptIndexError(f"{path} is not ascending: its first entry is {first}, its last {self._last}")

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Yield the entries as stored."""
        yield from self._read(0, self._stored)
        yield from self._entry.iter_unpack(bytes(self._tail))

    @property
    def size(self) -> int:
        """Bytes of all entries."""
        return self.count * self._entry.size

    def full(self, max_bytes: int) -> bool:
        return (self.count + 1) * self._entry.size > max_bytes

    @property
    def tail_is_long(self) -> bool:
        """True if the tail should be written."""
        return len(self._tail) >= _TAIL_BYTES

    def write_tail(self) -> None:
        """Write the tail to the file. On OSError, the tail remains."""
        if not self._tail:
            return
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            position = self._stored * self._entry.size
            if os.pwrite(descriptor, self._tail, position) < len(self._tail):
                raise OSError(f"{self.path}: only part of {len(self._tail)} bytes was written: the disk is full")
        finally:
            os.close(descriptor)
        self._stored = self.count
        self._tail.clear()

    def clear(self) -> None:
        """Drop all entries, and create the file if it is missing."""
        self._keep_first(0)

    def _read(self, slot: int, count: int) -> list[tuple[int, int]]:
        if not count:
            return []
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            return list(self._entry.iter_unpack(self._block(descriptor, slot, count)))
        finally:
            os.close(descriptor)

    def _block(self, descriptor: int, slot: int, count: int) -> bytes:
        size = self._entry.size
        data = os.pread(descriptor, count * size, slot * size)
        if len(data) < count * size:
            what = "has been truncated by another program: stop the broker and delete it; the next start rebuilds it"
            raise CorruptIndexError(f"{self.path} {what}")
        return data

    def _at(self, slot: int) -> tuple[int, int]:
        if slot < self._stored:
            return self._read(slot, 1)[0]
        entry: tuple[int, int] = self._entry.unpack_from(self._tail, (slot - self._stored) * self._entry.size)
        return entry

    def _floor(self, target: int, field: int) -> tuple[int, tuple[int, int]] | None:
        """Return the slot and content of the last entry whose `field` is at most `target`, or None."""
        # a copy: a thread may search while the tail is written and emptied
        tail = bytes(self._tail)
        if tail and (found := self._search(tail, target, field)):
            return self._stored + found[0], found[1]
        if not self._stored:
            return None
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            low, high = 0, self._stored
            while high - low > _BLOCK_ENTRIES:
                middle = (low + high) // 2
                if self._entry.unpack(self._block(descriptor, middle, 1))[field] <= target:
                    low = middle
                else:
                    high = middle
            block = self._block(descriptor, low, high - low)
        finally:
            os.close(descriptor)
        found = self._search(block, target, field)
        return None if found is None else (low + found[0], found[1])

    def _search(self, block: Buffer, target: int, field: int) -> tuple[int, tuple[int, int]] | None:
        """Like `_floor`, for the slots in `block`."""
        entry = self._entry
        slots = range(len(block) // entry.size)
        place = bisect_right(slots, target, key=lambda slot: entry.unpack_from(block, slot * entry.size)[field]) - 1
        return None if place < 0 else (place, entry.unpack_from(block, place * entry.size))

    def _keep_first(self, count: int) -> None:
        if count >= self._stored:
            del self._tail[(count - self._stored) * self._entry.size :]
        else:
            self._tail.clear()
            self._stored = count
        self.count = count
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.ftruncate(descriptor, self._stored * self._entry.size)
        finally:
            os.close(descriptor)
        if self._tail:
            self._last = self._entry.unpack_from(self._tail, len(self._tail) - self._entry.size)
        else:
            self._last = self._read(self._stored - 1, 1)[0] if self._stored else None

    def _truncate(self, offset: int, field: int) -> None:
        floor = self._floor(offset - self.base_offset - 1, field)
        self._keep_first(0 if floor is None else floor[0] + 1)


class OffsetIndex(_Index):
    """Maps the last offset of a batch to the batch's position."""

    __slots__ = ()
    _entry = Struct(">ii")

    @property
    def last(self) -> tuple[int, int] | None:
        """Offset and position of the last entry."""
        return None if self._last is None else (self.base_offset + self._last[0], self._last[1])

    def append(self, offset: int, position: int) -> None:
        entry = (offset - self.base_offset, position)
        self._tail += self._entry.pack(*entry)
        self._last = entry
        self.count += 1

    def lookup(self, offset: int) -> int:
        """Return the position of the last batch with an index entry at or before `offset`, or 0."""
        if self._last is None or offset <= self.base_offset:
            return 0
        if self._last[0] <= offset - self.base_offset:
            return self._last[1]
        floor = self._floor(offset - self.base_offset, 0)
        return 0 if floor is None else floor[1][1]

    def position_before(self, position: int) -> int:
        """Return the position of the last indexed batch before `position`; 0 if the index has none."""
        floor = self._floor(position - 1, 1)
        return 0 if floor is None else floor[1][1]

    def steps_back(self, position: int, count: int) -> tuple[int, int]:
        """Return the indexed position `count` entries before `position`, and 0.

        If the index has fewer entries, return 0 and the number of missing ones.
        """
        floor = self._floor(position - 1, 1)
        slot = (0 if floor is None else floor[0] + 1) - count
        if slot < 0:
            return 0, -slot
        return self._at(slot)[1], 0

    def offset_from(self, position: int) -> int | None:
        """Return the offset of the first entry at or after `position`, or None."""
        floor = self._floor(position - 1, 1)
        slot = 0 if floor is None else floor[0] + 1
        return self.base_offset + self._at(slot)[0] if slot < self.count else None

    def truncate(self, offset: int) -> None:
        """Drop the entries at or after `offset`."""
        self._truncate(offset, 0)

    def drop_last(self) -> None:
        """Drop the last entry, if any."""
        self._keep_first(max(self.count - 1, 0))


class TimeIndex(_Index):
    """Maps the running maximum of the timestamps to the last offset of the batch that has it."""

    __slots__ = ()
    _entry = Struct(">qi")

    @property
    def last(self) -> tuple[int, int]:
        """Timestamp and offset of the last entry; `(NO_TIMESTAMP, base offset)` if empty."""
        if self._last is None:
            return NO_TIMESTAMP, self.base_offset
        return self._last[0], self.base_offset + self._last[1]

    def append(self, timestamp: int, offset: int) -> None:
        """Add an entry if `timestamp` is larger than the last one."""
        if timestamp > (NO_TIMESTAMP if self._last is None else self._last[0]):
            entry = (timestamp, offset - self.base_offset)
            self._tail += self._entry.pack(*entry)
            self._last = entry
            self.count += 1

    def full(self, max_bytes: int) -> bool:
        """Return True if only the slot for the entry that `Segment.seal` adds is free."""
        return (self.count + 2) * self._entry.size > max_bytes

    def lookup(self, timestamp: int) -> int:
        """Return the last offset of a batch; all records before that batch are older than `timestamp`."""
        floor = self._floor(timestamp, 0)
        return self.base_offset if floor is None else self.base_offset + floor[1][1]

    def truncate(self, offset: int) -> None:
        """Drop the entries whose offset is at or after `offset`."""
        self._truncate(offset, 1)
