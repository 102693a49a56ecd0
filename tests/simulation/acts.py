"""Shared by the simulations: the acts of a history, planted faults, and the report of a failing seed."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar
from unittest.mock import patch


@dataclass(frozen=True)
class Act:
    """An event `at` some seconds after the start."""

    at: float
    kind: str
    arguments: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(map(repr, self.arguments))})"


@dataclass(frozen=True)
class Acts:
    """A history: a seed and its acts. Subclasses add settings."""

    seed: int
    acts: tuple[Act, ...]

    def with_acts(self, acts: Sequence[Act]) -> Self:
        return replace(self, acts=tuple(acts))

    def __str__(self) -> str:
        settings = [f"{name}={value!r}" for name, value in vars(self).items() if name != "acts"]
        return "\n".join([", ".join(settings)] + [f"{act.at:7.3f} s  {act}" for act in self.acts])


def in_order(acts: Sequence[Act]) -> tuple[Act, ...]:
    return tuple(sorted(acts, key=lambda act: act.at))


HistoryT = TypeVar("HistoryT", bound=Acts)


def shortest(history: HistoryT, fails: Callable[[HistoryT], bool]) -> HistoryT:
    """Remove acts that the failure does not need: first halves, then smaller parts, then single acts."""
    acts: Sequence[Act] = history.acts
    size = max(len(acts) // 2, 1)
    while True:
        start = 0
        has_shrunk = False
        while start < len(acts):
            fewer = [*acts[:start], *acts[start + size :]]
            if fails(history.with_acts(fewer)):
                acts, has_shrunk = fewer, True
            else:
                start += size
        if size == 1 and not has_shrunk:
            return history.with_acts(acts)
        size = max(size // 2, 1)


def report(world: str, history: HistoryT, short: HistoryT, violation: object, trace: Sequence[str]) -> str:
    """Describe a failing seed: its shortest failing history, the events of this one, and the command to replay it."""
    return "\n".join(
        [
            str(violation),
            f"The shortest history with this failure ({len(short.acts)} of {len(history.acts)} acts):",
            str(short),
            "Its events:",
            *trace,
            f"To replay: .venv/bin/python -m tests.simulation --only {world} --replay {history.seed}",
        ]
    )


@contextmanager
def replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Plant a fault: replace an attribute with `make(original)`."""
    with patch.object(owner, name, make(getattr(owner, name))):
        yield
