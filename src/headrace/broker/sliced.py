"""Answers that may take long to make, written as generators that yield wherever they may be interrupted.

Most are made at once. A long one is made a slice at a time, and only one of them in each turn of the loop, however many
clients have asked.
"""

import asyncio
from collections.abc import Awaitable, Generator
from time import perf_counter_ns
from typing import Final, Generic, TypeAlias, TypeVar

T = TypeVar("T")
Work: TypeAlias = Generator[None, None, T]

SLICE_NS: Final = 3_000_000


class _Result(Generic[T]):
    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value


class LongAnswers:
    """Makes answers; those that take longer than a slice one after the other."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    def make(self, work: Work[T]) -> T | Awaitable[T]:
        """The answer, now or later. Raises what `work` raises."""
        done = _slice(work)
        return self._later(work) if done is None else done.value

    async def _later(self, work: Work[T]) -> T:
        async with self._lock:
            while True:
                await asyncio.sleep(0)
                done = _slice(work)
                if done is not None:
                    return done.value


def _slice(work: Work[T]) -> _Result[T] | None:
    end = perf_counter_ns() + SLICE_NS
    try:
        while True:
            next(work)
            if perf_counter_ns() >= end:
                return None
    except StopIteration as finished:
        return _Result(finished.value)
