"""The controller's events, handled one at a time."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

_SAMPLE: Final = 1028
"""Number of durations from which quantiles are computed: the size of Kafka's reservoirs."""


class _Event(NamedTuple):
    name: str
    handle: Callable[[], Awaitable[None]]
    at_s: float


class Timing:
    """The number of measured durations, their total, and the latest ones (s)."""

    def __init__(self) -> None:
        self.count = 0
        self.total_s = 0.0
        self.latest_s: deque[float] = deque(maxlen=_SAMPLE)

    def add(self, seconds: float) -> None:
        self.count += 1
        self.total_s += seconds
        self.latest_s.append(seconds)


class Figures:
    """Waiting and handling times of events, over all terms."""

    def __init__(self) -> None:
        self.waited = Timing()
        self.handled: dict[str, Timing] = {}
        """By name of the event."""


class EventQueue:
    """Handles events one after another. If one raises an exception, calls `failed` with it, and handles no more."""

    def __init__(self, failed: Callable[[Exception], None], figures: Figures, loop: asyncio.AbstractEventLoop) -> None:
        self._failed = failed
        self._figures = figures
        self._events: deque[_Event] = deque()
        self._news = asyncio.Event()
        self._task = loop.create_task(self._run())

    def __len__(self) -> int:
        return len(self._events)

    def put(self, name: str, handle: Callable[[], Awaitable[None]]) -> None:
        self._events.append(_Event(name, handle, time.monotonic()))
        self._news.set()

    def put_once(self, name: str, handle: Callable[[], Awaitable[None]]) -> None:
        """Add an event unless one with its name is waiting already."""
        if all(event.name != name for event in self._events):
            self.put(name, handle)

    async def close(self) -> None:
        """Stop, even in the middle of an event."""
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            while self._events:
                event = self._events.popleft()
                begin = time.monotonic()
                self._figures.waited.add(begin - event.at_s)
                try:
                    await event.handle()
                except Exception as error:  # noqa: BLE001  the owner handles it
                    self._failed(error)
                    return
                self._figures.handled.setdefault(event.name, Timing()).add(time.monotonic() - begin)
            self._news.clear()
            await self._news.wait()
