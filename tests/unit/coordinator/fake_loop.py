"""The part of an event loop that the coordinator's runtime uses, with a manual clock."""

import asyncio
from collections.abc import Callable
from typing import Any, cast


class Handle:
    def __init__(self, when: float, callback: Callable[..., object], arguments: tuple[object, ...]) -> None:
        self.when = when
        self.callback = callback
        self.arguments = arguments
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class FakeLoop:
    def __init__(self) -> None:
        self.now = 100.0
        self._handles: list[Handle] = []

    def as_loop(self) -> asyncio.AbstractEventLoop:
        return cast(asyncio.AbstractEventLoop, self)

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[..., object], *arguments: object) -> Handle:
        return self.call_at(self.now, callback, *arguments)

    def call_later(self, delay: float, callback: Callable[..., object], *arguments: object) -> Handle:
        return self.call_at(self.now + delay, callback, *arguments)

    def call_at(self, when: float, callback: Callable[..., object], *arguments: object) -> Handle:
        handle = Handle(when, callback, arguments)
        self._handles.append(handle)
        return handle

    @property
    def scheduled(self) -> int:
        self._handles = [handle for handle in self._handles if not handle.is_cancelled]
        return len(self._handles)

    def step(self) -> None:
        """Run the callbacks that are due now, once."""
        due = [handle for handle in self._handles if handle.when <= self.now]
        self._handles = [handle for handle in self._handles if handle.when > self.now]
        for handle in sorted(due, key=lambda handle: handle.when):
            if not handle.is_cancelled:
                handle.callback(*handle.arguments)

    def advance(self, seconds: float) -> None:
        """Advance the clock and run the callbacks that are due."""
        until = self.now + seconds
        while self.scheduled:
            first = min(handle.when for handle in self._handles)
            if first > until:
                break
            self.now = max(self.now, first)
            self.step()
        self.now = until


class Reply:
    """A substitute for the future of a parked request."""

    def __init__(self) -> None:
        self.result: Any = None

    def done(self) -> bool:
        return self.result is not None

    def set_result(self, result: Any) -> None:
        assert self.result is None, "answered twice"
        self.result = result
