"""How full a log directory is, against two marks: at the soft one somebody is warned, at the hard one producers wait.

What lies between the hard mark and a full disk belongs to what must go on: metadata, checkpoints, internal topics,
compaction. Pure: whoever looks at the file system tells it.
"""

from enum import IntEnum
from typing import Final, NamedTuple

_MIB: Final = 1024 * 1024
AUTOMATIC: Final = -1
_SOFT_BYTES: Final = 1024 * _MIB
_HARD_BYTES: Final = 256 * _MIB
_SOFT_SHARE: Final = 10
_HARD_SHARE: Final = 20
"""An automatic mark is at most this part of the file system (a tenth, a twentieth), so that small ones are of use."""
_RETURN: Final = 10
"""A mark counts as left behind when a tenth of it more is free: a disk at a mark does not go to and fro."""


class Room(IntEnum):
    """What is left; the numbers are those of the metric."""

    PLENTY = 0
    LOW = 1
    """Under the soft mark."""
    NONE = 2
    """Under the hard mark."""


class Marks(NamedTuple):
    """Free space below which a mark is reached, in bytes and in percent: whichever comes first. AUTOMATIC for -1."""

    soft_bytes: int = AUTOMATIC
    soft_percent: float = 0
    hard_bytes: int = AUTOMATIC
    hard_percent: float = 0

    def soft(self, total: int) -> int:
        """In bytes, for a file system of `total` bytes; never below the hard mark."""
        soft = min(_SOFT_BYTES, total // _SOFT_SHARE) if self.soft_bytes == AUTOMATIC else self.soft_bytes
        return max(soft, int(total * self.soft_percent / 100), self.hard(total))

    def hard(self, total: int) -> int:
        """In bytes, for a file system of `total` bytes."""
        hard = min(_HARD_BYTES, total // _HARD_SHARE) if self.hard_bytes == AUTOMATIC else self.hard_bytes
        return max(hard, int(total * self.hard_percent / 100))


class DiskSpace:
    """One directory, as of the last `observe`. Sizes in bytes; 0 before the first."""

    __slots__ = ("free", "hard", "room", "soft", "total")

    def __init__(self) -> None:
        self.room = Room.PLENTY
        self.total = self.free = self.soft = self.hard = 0

    def observe(self, total: int, free: int, marks: Marks) -> Room:
        """Take in what the file system says; returns the state from before."""
        before = self.room
        self.total, self.free = total, free
        self.soft, self.hard = marks.soft(total), marks.hard(total)
        if free < self.hard + (self.hard // _RETURN if before is Room.NONE else 0):
            self.room = Room.NONE
        elif free < self.soft + (self.soft // _RETURN if before is not Room.PLENTY else 0):
            self.room = Room.LOW
        else:
            self.room = Room.PLENTY
        return before
