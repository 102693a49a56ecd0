"""Sharing the loop fairly: work that takes long is done in turns, and the loop polls for new requests in between.

A connection whose last turns were long waits in a queue for its next one, and so does anybody else once a poll of the
sockets has led to too much work. The queue is served for a short time, then the loop looks at the sockets again. A
client with cheap requests is therefore served between any two costly requests of others, however many those are. New
connections have a queue of their own: a crowd of them, whose requests may all be costly, delays only other new ones.
"""

from collections import deque
from collections.abc import Callable, Coroutine, Generator
from time import perf_counter_ns, thread_time_ns
from typing import Any, Final, Protocol, TypeVar

LONG_NS: Final = 250_000
"""A turn that takes this long counts against the budget."""
HEAVY_NS: Final = 1_000_000
"""After two turns that take this long, the second of them in processor time, the next one is queued for."""
HEAVY_CPU_NS: Final = 700_000
"""Where another process has had the processor, a small request takes long too: that is not the client's doing."""
SLICE_NS: Final = 1_000_000
"""A connection with more requests at hand gives way after this long."""
BUDGET_NS: Final = 2_000_000
"""Long turns take this much time together, and one more turn at most, before the loop polls the sockets again."""

LIGHT: Final = 0
"""Its last turns were quick."""
FRESH: Final = 1
"""It has had no turn yet."""
HEAVY: Final = 2
"""Its last turns took long."""

T = TypeVar("T")


class Turn(Protocol):
    """Somebody who has something to do."""

    @property
    def is_waiting(self) -> bool:
        """Whether the work goes on later, when something else has happened."""

    def take_turn(self) -> None: ...


class Turns:
    """The queue, driven by a loop's `call_soon`."""

    __slots__ = ("_call_soon", "_is_scheduled", "_is_spent", "_queues", "_spent_ns", "clock", "is_contended")

    def __init__(
        self, call_soon: Callable[[Callable[[], None]], object], clock: Callable[[], int] = perf_counter_ns
    ) -> None:
        self._call_soon = call_soon
        self.clock = clock
        self._queues: tuple[deque[Turn], deque[Turn], deque[Turn]] = (deque(), deque(), deque())
        self._spent_ns = 0
        self._is_spent = False
        self._is_scheduled = False
        self.is_contended = False
        """Ask `must_wait` before work begins. A plain attribute, because it is read for every request."""

    def must_wait(self, kind: int) -> bool:
        """Decide whether a turn of this kind has to be queued for: LIGHT, FRESH or HEAVY."""
        return self._is_spent or (kind != LIGHT and bool(self._queues[kind]))

    def add(self, turn: Turn, kind: int) -> None:
        """Queue for a turn; those who were quick the last time come first."""
        self._queues[kind].append(turn)
        self.is_contended = True
        self._schedule()

    def spent(self, ns: int) -> None:
        """Count a long turn, or a long step of a request that is answered later."""
        self._spent_ns += ns
        if self._spent_ns >= BUDGET_NS and not self._is_spent:
            self._is_spent = self.is_contended = True
            self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._call_soon(self._serve)

    def _serve(self) -> None:
        # The loop polls the sockets after this, before it calls it again.
        self._is_scheduled = False
        try:
            self._serve_until(self.clock() + BUDGET_NS)
        finally:
            self._spent_ns = 0
            self._is_spent = False
            self.is_contended = any(self._queues)
            if self.is_contended:
                self._schedule()

    def _serve_until(self, end: int) -> None:
        light = self._queues[LIGHT]
        for _ in range(len(light)):
            light.popleft().take_turn()
            if self.clock() >= end:
                break
        # At least one of each, so that quick ones cannot starve the others. Steps of requests that are answered later
        # run outside of turns: no more than one such request begins.
        for queue in self._queues[FRESH:]:
            for _ in range(len(queue)):
                turn = queue.popleft()
                turn.take_turn()
                if turn.is_waiting or self.clock() >= end:
                    break


class Pace:
    """How long the last turns of one connection took, and so where it queues."""

    __slots__ = ("_began_cpu_ns", "_turns", "is_fresh", "long_turns")

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._began_cpu_ns = 0
        self.is_fresh = True
        """It has had no turn yet."""
        self.long_turns = 0
        """The last turns that took long, in a row."""

    def kind(self) -> int:
        """LIGHT, FRESH or HEAVY."""
        return FRESH if self.is_fresh else HEAVY if self.long_turns > 1 else LIGHT

    def must_wait(self) -> bool:
        """Decide whether the next turn has to be queued for."""
        return self._turns.is_contended and self._turns.must_wait(self.kind())

    def begin(self) -> None:
        """A turn begins. May be left out while no turn has been long."""
        self._began_cpu_ns = thread_time_ns()

    def took(self, ns: int) -> None:
        """Count a turn, or one step of an answer, of LONG_NS or more."""
        if ns >= HEAVY_NS and (not self.long_turns or thread_time_ns() - self._began_cpu_ns >= HEAVY_CPU_NS):
            # One is enough where nothing is known yet.
            self.long_turns += 2 if self.is_fresh else 1
        self._turns.spent(ns)

    def ended(self, ns: int) -> None:
        """A turn has ended with everything answered, after so long."""
        self.is_fresh = False
        if ns < HEAVY_NS:
            self.long_turns = 0


class TimedSteps(Coroutine[Any, Any, T]):
    """A coroutine whose long steps, from one wait to the next, are told to `took`, in ns."""

    __slots__ = ("_clock", "_coroutine", "_took")

    def __init__(
        self, coroutine: Coroutine[Any, Any, T], took: Callable[[int], None], clock: Callable[[], int]
    ) -> None:
        self._coroutine = coroutine
        self._took = took
        self._clock = clock

    def send(self, value: Any) -> Any:
        began_ns = self._clock()
        try:
            return self._coroutine.send(value)
        finally:
            ns = self._clock() - began_ns
            if ns >= LONG_NS:
                self._took(ns)

    def throw(self, *error: Any) -> Any:
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self._coroutine.__await__()
