"""Compares the free space of a log directory with two marks: the soft one for warnings, the hard one for refusals.

Below the hard mark, the broker refuses records from clients: this space is reserved for metadata, checkpoints, internal
topics and compaction. Pure: callers pass the file system's numbers.
"""

from enum import IntEnum
from typing import Final, NamedTuple

_MIB: Final = 1024 * 1024
AUTOMATIC: Final = -1
_SOFT_BYTES: Final = 1024 * _MIB
_HARD_BYTES: Final = 256 * _MIB
_SOFT_SHARE: Final = 10
_HARD_SHARE: Final = 20
"""Automatic marks are at most 1/10 (soft) and 1/20 (hard) of the file system, so that small disks are usable."""
_HYSTERESIS: Final = 10
"""A mark is cleared when free space exceeds it by a tenth, so that the state does not flap near the mark."""


class Room(IntEnum):
    """The state of free space. The metric uses these numbers."""

    PLENTY = 0
    LOW = 1
    """Below the soft mark."""
    NONE = 2
    """Below the hard mark."""


class Marks(NamedTuple):
    """Both marks, each in bytes (or AUTOMATIC) and in percent of the file system; the larger value applies."""

    soft_bytes: int = AUTOMATIC
    soft_percent: float = 0
    hard_bytes: int = AUTOMATIC
    hard_percent: float = 0

    def soft(self, total: int) -> int:
        """Return the soft mark (bytes) of a file system of `total` bytes: at least the hard mark."""
        soft = min(_SOFT_BYTES, total // _SOFT_SHARE) if self.soft_bytes == AUTOMATIC else self.soft_bytes
        return max(soft, int(total * self.soft_percent / 100), self.hard(total))

    def hard(self, total: int) -> int:
        """Return the hard mark (bytes) of a file system of `total` bytes."""
        hard = min(_HARD_BYTES, total // _HARD_SHARE) if self.hard_bytes == AUTOMATIC else self.hard_bytes
        return max(hard, int(total * self.hard_percent / 100))


class DiskSpace:
    """The space of one directory at the last `observe`, in bytes; 0 before the first."""

    __slots__ = ("free", "hard", "room", "soft", "total")

    def __init__(self) -> None:
        self.room = Room.PLENTY
        self.total = self.free = self.soft = self.hard = 0

    def observe(self, total: int, free: int, marks: Marks) -> Room:
        """Update from the file system's numbers, in bytes, and return the previous state."""
        before = self.room
        self.total, self.free = total, free
        self.soft, self.hard = marks.soft(total), marks.hard(total)
        if free < self.hard + (self.hard // _HYSTERESIS if before is Room.NONE else 0):
            self.room = Room.NONE
        elif free < self.soft + (self.soft // _HYSTERESIS if before is not Room.PLENTY else 0):
            self.room = Room.LOW
        else:
            self.room = Room.PLENTY
        return before
