"""Shares the loop fairly: costly work takes turns, and the loop polls for new requests in between.

A connection whose last turns were long queues after other such connections. Once the turns since the last poll of the
sockets have taken too long, every connection must queue. The queues are served for a short time, then the loop polls
the sockets again. So a client with cheap requests is served between any two costly requests of others. New connections
have a separate queue, so that a crowd of them delays only other new ones.
"""

from collections import deque
from collections.abc import Callable, Coroutine, Generator
from time import perf_counter_ns, thread_time_ns
from typing import Any, Final, Protocol, TypeVar

LONG_NS: Final = 250_000
"""Turns of this length or more count against the budget."""
HEAVY_NS: Final = 1_000_000
"""After two turns of this length, the second with at least HEAVY_CPU_NS of processor time, a connection is HEAVY."""
HEAVY_CPU_NS: Final = 700_000
"""The minimum processor time of a heavy turn: a small request takes long too if another process has the processor."""
SLICE_NS: Final = 1_000_000
"""A connection yields after this time, even if it has received more requests."""
BUDGET_NS: Final = 2_000_000
"""After long turns of this total length, and at most one more turn, the loop polls the sockets again."""

LIGHT: Final = 0
"""A connection whose last turns were short."""
FRESH: Final = 1
"""A connection that has had no turn yet."""
HEAVY: Final = 2
"""A connection whose last turns were long."""

T = TypeVar("T")


class TurnTaker(Protocol):
    """A connection or a fetch with work to do."""

    @property
    def is_waiting(self) -> bool:
        """True if a request is unfinished at the end of the turn."""

    def take_turn(self) -> None: ...


class Turns:
    """The queues of connections that wait for a turn, served by callbacks of the loop (`call_soon`)."""

    __slots__ = (
        "_call_soon",
        "_held",
        "_is_holding",
        "_is_scheduled",
        "_is_spent",
        "_queues",
        "_spent_ns",
        "clock",
        "is_contended",
    )

    def __init__(
        self, call_soon: Callable[[Callable[[], None]], object], clock: Callable[[], int] = perf_counter_ns
    ) -> None:
        self._call_soon = call_soon
        self.clock = clock
        self._queues: tuple[deque[TurnTaker], deque[TurnTaker], deque[TurnTaker]] = (deque(), deque(), deque())
        self._spent_ns = 0
        self._is_spent = False
        self._is_scheduled = False
        self._held: list[TurnTaker] = []
        self._is_holding = False
        self.is_contended = False
        """True if work must call `must_wait` first. A plain attribute, because every request reads it."""

    def must_wait(self, kind: int) -> bool:
        """Return True if a turn of this kind (LIGHT, FRESH, HEAVY) must queue."""
        return self._is_spent or (kind != LIGHT and bool(self._queues[kind]))

    def add(self, taker: TurnTaker, kind: int, *, is_reply: bool = False) -> None:
        """Queue a connection or a fetch for a turn; LIGHT ones come first.

        `is_reply`: the turn only sends a reply, without reading; after `hold_replies` it waits for `release_replies`.
        """
        if is_reply and self._is_holding:
            self._held.append(taker)
            return
        self._queues[kind].append(taker)
        self.is_contended = True
        self._schedule()

    def hold_replies(self) -> None:
        """Hold back turns that only send replies."""
        self._is_holding = True

    def release_replies(self) -> None:
        """Stop holding replies, and take the held turns now, in the same callback of the loop."""
        self._is_holding = False
        held, self._held = self._held, []
        for taker in held:
            taker.take_turn()

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
        # the loop polls the sockets before it calls this again
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
        # at least one of each, so that LIGHT ones cannot starve the others; at most one request that is answered later,
        # because its further steps run outside of turns
        for queue in self._queues[FRESH:]:
            for _ in range(len(queue)):
                taker = queue.popleft()
                taker.take_turn()
                if taker.is_waiting or self.clock() >= end:
                    break


class Pace:
    """Measures the last turns of one connection, to choose its queue."""

    __slots__ = ("_began_cpu_ns", "_turns", "is_fresh", "long_turns")

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._began_cpu_ns = 0
        self.is_fresh = True
        """True before the first turn has ended."""
        self.long_turns = 0
        """The number of consecutive long turns."""

    def kind(self) -> int:
        """LIGHT, FRESH or HEAVY."""
        return FRESH if self.is_fresh else HEAVY if self.long_turns > 1 else LIGHT

    def must_wait(self) -> bool:
        """Return True if the next turn must queue."""
        return self._turns.is_contended and self._turns.must_wait(self.kind())

    def begin(self) -> None:
        """Begin a turn; optional while no turn has been long."""
        self._began_cpu_ns = thread_time_ns()

    def note_long(self, ns: int) -> None:
        """Count a turn, or one step of a request, of LONG_NS or more."""
        if ns >= HEAVY_NS and (not self.long_turns or thread_time_ns() - self._began_cpu_ns >= HEAVY_CPU_NS):
            # one heavy turn is enough if it is the connection's first
            self.long_turns += 2 if self.is_fresh else 1
        self._turns.spent(ns)

    def ended(self, ns: int) -> None:
        """Record the end of a turn of this length, with all requests answered."""
        self.is_fresh = False
        if ns < HEAVY_NS:
            self.long_turns = 0


class TimedSteps(Coroutine[Any, Any, T]):
    """Wraps a coroutine. If it runs for LONG_NS or more between two waits, `on_long_step` gets the time in ns."""

    __slots__ = ("_clock", "_coroutine", "_on_long_step")

    def __init__(
        self, coroutine: Coroutine[Any, Any, T], on_long_step: Callable[[int], None], clock: Callable[[], int]
    ) -> None:
        self._coroutine = coroutine
        self._on_long_step = on_long_step
        self._clock = clock

    def send(self, value: Any) -> Any:
        began_ns = self._clock()
        try:
            return self._coroutine.send(value)
        finally:
            ns = self._clock() - began_ns
            if ns >= LONG_NS:
                self._on_long_step(ns)

    def throw(self, *error: Any) -> Any:
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self._coroutine.__await__()
