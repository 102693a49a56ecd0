"""Limits the memory of incomplete requests of all connections (`queued.max.request.bytes`).

Does no I/O: it calls `memory_granted()` of a waiting connection when memory is available. Frames up to `FREE_SIZE` are
not counted, so heartbeats and metadata requests continue while large frames wait.
"""

from collections import OrderedDict
from typing import Final, Protocol

FREE_SIZE: Final = 16 * 1024
HOLD_SECONDS: Final = 30.0
"""The longest time for a frame to arrive while others wait for its memory."""


class Waiter(Protocol):
    """A connection whose next frame needs memory."""

    def memory_granted(self) -> None:
        """Continue reading: the requested memory is reserved."""


class RequestMemory:
    """The bytes reserved for incomplete requests, at most `limit`."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._waiting: OrderedDict[Waiter, int] = OrderedDict()

    @property
    def is_short(self) -> bool:
        """True if a connection waits for memory."""
        return bool(self._waiting)

    def reserve(self, waiter: Waiter, size: int) -> bool:
        """Reserve `size` bytes, or queue `waiter` and return False. A single frame always fits, however large."""
        if size <= FREE_SIZE:
            return True
        if not self._waiting and self._fits(size):
            self.used += size
            return True
        self._waiting[waiter] = size
        return False

    def release(self, size: int) -> None:
        """Release `size` reserved bytes, and grant memory to waiting connections in order."""
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
        """Remove a closed connection from the queue."""
        self._waiting.pop(waiter, None)

    def _fits(self, size: int) -> bool:
        return self.used == 0 or self.used + size <= self.limit
