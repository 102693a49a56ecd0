"""The results of a coordinator's decisions, which `runtime.py` executes. Pure."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

from headrace.errors import ErrorCode, KafkaError

A = TypeVar("A")
B = TypeVar("B")
T = TypeVar("T", bound=Hashable)

Records: TypeAlias = Sequence[tuple[Any, Any]]
"""Keys and values to write, in order; a value of None is a tombstone."""


@dataclass(frozen=True, slots=True)
class Complete:
    """Answer a parked request; `reply_to` is its future."""

    reply_to: object
    result: Any


@dataclass(frozen=True, slots=True)
class ScheduleTimer(Generic[T]):
    """Start or restart a timer. With `may_run_already`, a running timer keeps its deadline."""

    timer: T
    delay_ms: int
    may_run_already: bool = False


@dataclass(frozen=True, slots=True)
class CancelTimer(Generic[T]):
    timer: T


@dataclass(frozen=True, slots=True)
class Write:
    """Write records without replaying them, then call `then(error, now_ms)` and execute the effects it returns."""

    records: Records
    then: Callable[[ErrorCode, int], Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Then:
    """After the records have been replayed, call `follow(now_ms)` and execute the effects it returns."""

    follow: Callable[[int], Sequence[Any]]


@dataclass(slots=True)
class Result(Generic[A]):
    """Records to write and replay together, effects to execute in order after that, and the reply.

    Coordinators also define their own kinds of effects. If the records cannot be written, no effect is executed, and
    the KafkaError of the append is raised instead.
    """

    answer: A
    records: list[tuple[Any, Any]] = field(default_factory=list)
    effects: list[Any] = field(default_factory=list)
    error: KafkaError | None = None
    """Raised instead of returning the reply."""

    def answering(self, answer: B) -> "Result[B]":
        """Return the same result with another reply."""
        return Result(answer, self.records, self.effects, self.error)
