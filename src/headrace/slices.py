"""Work that grows with what a client asks for, done a slice of time at a time: other clients are served in between.

Such work is a generator that yields wherever it may be interrupted, and returns its result. A coroutine that works long
between its awaits uses a `Pace`.
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
"""How long one slice may keep the event loop from its connections."""

_COUNTED_AT_ONCE: Final = 1000

_clock = time.perf_counter


class Finished(Generic[T]):
    """What the steps returned."""

    __slots__ = ("result",)

    def __init__(self, result: T) -> None:
        self.result = result


def run_slice(steps: Steps[T]) -> Finished[T] | None:
    """Go on for one slice; None while something is left to do. Raises what the steps raise."""
    deadline = _clock() + SLICE_S
    try:
        while True:
            next(steps)
            if _clock() >= deadline:
                return None
    except StopIteration as end:
        return Finished(end.value)


def in_slices(steps: Steps[T]) -> T | Steps[T]:
    """The result, where one slice is enough for it; else the steps that are left."""
    try:
        next(steps)
    except StopIteration as end:  # as nearly always: there was little to do
        result: T = end.value
        return result
    done = run_slice(steps)
    return steps if done is None else done.result


async def finish(steps: Steps[T]) -> T:
    """The result, after as many slices as it takes. The loop turns before the first of them.

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
    """Keeps a coroutine from working longer than a slice without a rest."""

    __slots__ = ("_deadline",)

    def __init__(self) -> None:
        self._deadline = _clock() + SLICE_S

    async def rest(self) -> None:
        """Let others have the loop if the slice is over."""
        if _clock() >= self._deadline:
            await asyncio.sleep(0)
            self._deadline = _clock() + SLICE_S


async def counted(items: Iterable[H]) -> Counter[H]:
    """How often each of them is there."""
    times: Counter[H] = Counter()
    pace = Pace()
    for some in chunks(items, _COUNTED_AT_ONCE):
        times.update(some)
        await pace.rest()
    return times


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """The items in lists of at most `size`, for work that can be interrupted between lists only."""
    chunk: list[T] = []
    for item in items:
        chunk.append(item)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
