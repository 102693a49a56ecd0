"""Polls for the next request for a short time before sleeping.

Sleeping and waking takes longer than answering a small request, and leaves the processor's caches cold. If clients send
the next request as soon as they have the reply, the loop polls before it sleeps. A broker with few requests sleeps.
"""

from collections.abc import Callable
from time import perf_counter_ns
from typing import Final

SMALL_READ: Final = 4096
"""The size, in bytes, below which a request is small; larger requests take too long to produce and answer."""
_ENOUGH: Final = 8
"""Count of quick requests at which polling begins."""
_MOST: Final = 32
"""Cap on the count of quick requests, so that a few late ones end the polling."""


class BusyPoll:
    """Keeps a loop awake, with `call_soon`, for up to `window_us` after a reply to a small request; 0 disables it."""

    __slots__ = ("_answered_ns", "_call_soon", "_is_polling", "_soon", "_window_ns", "clock")

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        window_us: int,
        clock: Callable[[], int] = perf_counter_ns,
    ) -> None:
        self._call_soon = call_soon
        self.clock = clock
        self._window_ns = window_us * 1000
        self._answered_ns = 0
        self._soon = 0
        self._is_polling = False

    def answered(self, came_ns: int, answered_ns: int) -> None:
        """Record when small requests of a client arrived and were answered, in ns of the clock."""
        if came_ns - self._answered_ns < self._window_ns:
            if self._soon < _MOST:
                self._soon += 1
        else:
            self._soon //= 2
        self._answered_ns = answered_ns
        if self._soon >= _ENOUGH and not self._is_polling:
            self._is_polling = True
            self._call_soon(self._look)

    def _look(self) -> None:
        # the loop polls the kernel, without blocking, before it calls this again
        if self.clock() - self._answered_ns < self._window_ns:
            self._call_soon(self._look)
        else:
            self._is_polling = False
