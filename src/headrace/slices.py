"""Split long work into time slices, so that other clients are served in between.

Such work is a generator that yields wherever it may be interrupted, and returns its result. A coroutine that computes
for long between two awaits uses a `Pace`.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Generator, Hashable, Iterable, Iterator
from typing import Final, Generic, TypeAlias, TypeVar

T = TypeVar("T")
H = TypeVar("H", bound=Hashable)

Steps: TypeAlias = Generator[None, None, T]

SLICE_S: Final = 0.005
"""A slice ends at the first `yield` after this time."""

_COUNTED_AT_ONCE: Final = 1000

_clock = time.perf_counter


class Finished(Generic[T]):
    """The result of finished steps."""

    __slots__ = ("result",)

    def __init__(self, result: T) -> None:
        self.result = result


def run_all(steps: Steps[T]) -> T:
    """Run all steps at once, and return the result. Raises their exceptions."""
    try:
        while True:
            next(steps)
    except StopIteration as end:
        result: T = end.value
        return result


def run_slice(steps: Steps[T]) -> Finished[T] | None:
    """Run the steps for one slice. Return None if they have not finished. Raises their exceptions."""
    deadline = _clock() + SLICE_S
    try:
        while True:
            next(steps)
            if _clock() >= deadline:
                return None
    except StopIteration as end:
        return Finished(end.value)


def in_slices(steps: Steps[T]) -> T | Steps[T]:
    """Run one slice. Return the result if the steps have finished, else the remaining steps."""
    try:
        next(steps)
    except StopIteration as end:  # nearly always: there is little to do
        result: T = end.value
        return result
    done = run_slice(steps)
    return steps if done is None else done.result


async def finish(steps: Steps[T]) -> T:
    """Run one slice in each iteration of the event loop, starting with the next one, and return the result.

    Closes the steps if it is cancelled.
    """
    try:
        while True:
            await asyncio.sleep(0)
            done = run_slice(steps)
            if done is not None:
                return done.result
    finally:
        steps.close()


class Pace:
    """Makes a coroutine yield to the event loop after every slice of work."""

    __slots__ = ("_deadline",)

    def __init__(self) -> None:
        self._deadline = _clock() + SLICE_S

    async def rest(self) -> None:
        """Yield to the event loop if the slice is over."""
        if _clock() >= self._deadline:
            await asyncio.sleep(0)
            self._deadline = _clock() + SLICE_S


async def counted(items: Iterable[H]) -> Counter[H]:
    """Count the occurrences of each item; yield to the event loop after every slice."""
    times: Counter[H] = Counter()
    pace = Pace()
    for some in chunks(items, _COUNTED_AT_ONCE):
        times.update(some)
        await pace.rest()
    return times


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield the items in lists of at most `size`, for work that can be interrupted only between lists."""
    chunk: list[T] = []
    for item in items:
        chunk.append(item)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
