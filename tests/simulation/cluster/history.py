"""The history of a simulated cluster, drawn from a seed."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

FAULTS_S: Final = 12.0
"""Duration of the faulty phase."""
_LAST_ACT_S: Final = 11.0
BROKERS: Final = (1, 2, 3)


@dataclass(frozen=True)
class Act:
    """An event `at` some seconds after the start."""

    at: float
    kind: str
    arguments: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(map(repr, self.arguments))})"


@dataclass(frozen=True)
class History:
    seed: int
    segment_bytes: int
    min_isr: int
    break_rate: float
    late_copies: float
    acts: tuple[Act, ...]

    def __str__(self) -> str:
        head = (
            f"seed {self.seed}, segments of {self.segment_bytes} bytes, min ISR {self.min_isr}, {self.break_rate} of"
            f" messages break connections, {self.late_copies} of LeaderAndIsr arrive again"
        )
        return "\n".join([head] + [f"{act.at:7.3f} s  {act}" for act in self.acts])


def history_of(seed: int) -> History:
    """Return the history of a seed, the same on any machine."""
    chance = random.Random(f"cluster {seed}")

    def duration(longest: float) -> float:
        return round(chance.uniform(0.05, longest), 3)

    def broker() -> int:
        return chance.choice(BROKERS)

    makers: dict[str, tuple[int, Callable[[], tuple[Any, ...]]]] = {
        "crash": (5, lambda: (broker(), duration(3.0), duration(0.8))),
        "elect": (4, lambda: (chance.randrange(2), broker())),
        "cut": (3, lambda: (*chance.sample(("b1", "b2", "b3"), 2), chance.random() < 0.5, duration(4.0))),
        "isolate": (2, lambda: (broker(), duration(4.0))),
        "freeze": (2, lambda: (broker(), duration(4.0))),
        "expire": (1, lambda: (broker(),)),
        "depose": (2, lambda: (chance.random() < 0.5,)),
    }
    kinds = list(makers)
    weights = [weight for weight, _ in makers.values()]
    acts = []
    for _ in range(chance.randint(2, 9)):
        kind = chance.choices(kinds, weights)[0]
        acts.append(Act(round(chance.uniform(0.5, _LAST_ACT_S), 3), kind, makers[kind][1]()))
    return History(
        seed,
        chance.choice((600, 2000, 100_000)),
        chance.choice((1, 2, 2, 2)),
        chance.choice((0.0, 0.003, 0.02)),
        chance.choice((0.0, 0.1, 0.4)),
        tuple(sorted(acts, key=lambda act: act.at)),
    )
