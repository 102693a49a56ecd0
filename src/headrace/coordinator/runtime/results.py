"""The result of a decision of a coordinator's machines, for the one shell (`runtime.py`) that carries it out. Pure."""

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
    """(Re)start a timer; an earlier schedule of the same timer is forgotten, unless it `may_run_already`."""

    timer: T
    delay_ms: int
    may_run_already: bool = False


@dataclass(frozen=True, slots=True)
class CancelTimer(Generic[T]):
    timer: T


@dataclass(frozen=True, slots=True)
class Write:
    """Write records that are not replayed: the machine acts by itself once `then(error, now_ms)` says how it went."""

    records: Records
    then: Callable[[ErrorCode, int], Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Then:
    """Go on, at `now_ms`, with state that exists only once the records have been replayed."""

    follow: Callable[[int], Sequence[Any]]


@dataclass(slots=True)
class Result(Generic[A]):
    """`records` are written and replayed together; then the effects are carried out, in order; then comes the answer.

    Effects other than those above are the coordinator's own. Nothing happens if the records cannot be written.
    """

    answer: A
    records: list[tuple[Any, Any]] = field(default_factory=list)
    effects: list[Any] = field(default_factory=list)
    error: KafkaError | None = None
    """Raised instead of the answer."""

    def answering(self, answer: B) -> "Result[B]":
        """The same with another answer."""
        return Result(answer, self.records, self.effects, self.error)
