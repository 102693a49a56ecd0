"""Looking for the next request at once, for a moment, instead of sleeping until it comes.

To sleep and be woken takes longer than to answer a small request, and leaves the processor's caches cold. Where clients
ask again as soon as they are answered, the loop therefore keeps polling for a moment before it sleeps. It does so only
while requests keep coming that soon: a broker that is asked now and then, or not at all, sleeps.
"""

from collections.abc import Callable
from time import perf_counter_ns
from typing import Final

SMALL_READ: Final = 4096
"""Bytes below which what was read is a small request: large ones take long enough to make, and to answer."""
_ENOUGH: Final = 8
"""Requests that came soon before polling begins."""
_MOST: Final = 32
"""More are not counted, so that a few late ones end it."""


class BusyPoll:
    """Keeps a loop awake, by its `call_soon`, for up to `window_us` after an answer to a small request; 0 never."""

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
        """Note when small requests of a client came and were answered, by the clock: the next may come at once."""
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
        # The loop asks the kernel, without waiting, before it calls this again.
        if self.clock() - self._answered_ns < self._window_ns:
            self._call_soon(self._look)
        else:
            self._is_polling = False
