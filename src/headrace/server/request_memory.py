"""The bound on memory that half-received requests may hold, over all connections (`queued.max.request.bytes`).

Pure: the connection that asks is told later through its `memory_granted()`. Frames that fit `FREE_SIZE` are not
counted, so heartbeats and metadata go on while large frames wait their turn.
"""

from collections import OrderedDict
from typing import Final, Protocol

FREE_SIZE: Final = 16 * 1024
HOLD_SECONDS: Final = 30.0
"""How long a frame may take to arrive while others wait for its memory."""


class Waiter(Protocol):
    """A connection whose next frame needs memory."""

    def memory_granted(self) -> None:
        """The memory asked for is reserved; go on reading."""


class RequestMemory:
    """Bytes reserved for frames in progress; `limit` in bytes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._waiting: OrderedDict[Waiter, int] = OrderedDict()

    @property
    def is_short(self) -> bool:
        """Whether somebody waits."""
        return bool(self._waiting)

    def reserve(self, waiter: Waiter, size: int) -> bool:
        """Reserve `size` bytes, or queue `waiter` and answer False. One frame always fits, however large."""
        if size <= FREE_SIZE:
            return True
        if not self._waiting and self._fits(size):
            self.used += size
            return True
        self._waiting[waiter] = size
        return False

    def release(self, size: int) -> None:
        """Give back what `reserve` granted, and grant those who wait, first come first served."""
        if size > FREE_SIZE:
            self.used -= size
        while self._waiting:
            waiter, wanted = next(iter(self._waiting.items()))
            if not self._fits(wanted):
                return
            del self._waiting[waiter]
            self.used += wanted
            waiter.memory_granted()

    def forget(self, waiter: Waiter) -> None:
        """`waiter` is gone."""
        self._waiting.pop(waiter, None)

    def _fits(self, size: int) -> bool:
        return self.used == 0 or self.used + size <= self.limit
