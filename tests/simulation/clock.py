"""Virtual time: an event loop that jumps from one event to the next, and its clocks."""

import asyncio
import heapq
from collections.abc import Callable
from typing import cast

from headrace.clock import Clock

_EPOCH_NS = 1_700_000_000_000_000_000


class Handle:
    __slots__ = ("arguments", "callback")

    def __init__(self, callback: Callable[..., object], arguments: tuple[object, ...]) -> None:
        self.callback: Callable[..., object] | None = callback
        self.arguments = arguments

    def cancel(self) -> None:
        self.callback = None


class VirtualLoop:
    """The part of an event loop that coordinators use, with `now` in seconds."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._heap: list[tuple[float, int, Handle]] = []
        self._sequence = 0

    def as_loop(self) -> asyncio.AbstractEventLoop:
        return cast(asyncio.AbstractEventLoop, self)

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[..., object], *arguments: object) -> Handle:
        return self.call_at(self.now, callback, *arguments)

    def call_later(self, delay: float, callback: Callable[..., object], *arguments: object) -> Handle:
        return self.call_at(self.now + delay, callback, *arguments)

    def call_at(self, when: float, callback: Callable[..., object], *arguments: object) -> Handle:
        handle = Handle(callback, arguments)
        self._sequence += 1
        heapq.heappush(self._heap, (when, self._sequence, handle))
        return handle

    def run_until(self, end: float) -> None:
        heap = self._heap
        while heap and heap[0][0] <= end:
            when, _, handle = heapq.heappop(heap)
            if handle.callback is not None:
                self.now = max(self.now, when)
                handle.callback(*handle.arguments)
        self.now = end


def virtual_clock(loop: VirtualLoop) -> Clock:
    """Return the loop's clocks, to replace the system's."""
    return Clock(lambda: (_EPOCH_NS + int(loop.now * 1e9)) // 1_000_000, lambda: loop.now)
