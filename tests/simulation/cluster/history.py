"""The history of a simulated cluster, drawn from a seed."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

FAULTS_S: Final = 12.0
"""Duration of the faulty phase."""
_LAST_ACT_S: Final = 11.0
REPLICAS: Final = 3
PARTITIONS: Final = 2


@dataclass(frozen=True)
class Act:
    """An event `at` seconds after the start."""

    at: float
    kind: str
    arguments: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(map(repr, self.arguments))})"


@dataclass(frozen=True)
class History:
    seed: int
    brokers: tuple[int, ...]
    segment_bytes: int
    retention_bytes: int
    flush_messages: int
    min_isr: int
    break_rate: float
    late_copies: float
    pause_s: float
    """The mean pause of a producer between two batches."""
    acts: tuple[Act, ...]

    def __str__(self) -> str:
        head = (
            f"seed {self.seed}, brokers {self.brokers}, segments of {self.segment_bytes} bytes, retention of"
            f" {self.retention_bytes} bytes, a flush after {self.flush_messages} records, min ISR {self.min_isr},"
            f" {self.break_rate} of messages break connections, {self.late_copies} of commands arrive again, producers"
            f" pause for {self.pause_s} s"
        )
        return "\n".join([head] + [f"{act.at:7.3f} s  {act}" for act in self.acts])


def history_of(seed: int) -> History:
    """Return the history of a seed, the same on any machine."""
    chance = random.Random(f"cluster {seed}")

    def duration(longest: float) -> float:
        return round(chance.uniform(0.05, longest), 3)

    brokers = chance.choice(((1, 2, 3), (1, 2, 3, 4)))

    def broker() -> int:
        return chance.choice(brokers)

    def partition() -> int:
        return chance.randrange(PARTITIONS)

    makers: dict[str, tuple[int, Callable[[], tuple[Any, ...]]]] = {
        "crash": (5, lambda: (broker(), duration(3.0), duration(0.8), chance.random() < 0.2, chance.random() < 0.4)),
        "elect": (4, lambda: (partition(), broker())),
        "cut": (3, lambda: (*chance.sample(brokers, 2), chance.random() < 0.5, duration(4.0))),
        "usurp": (6, lambda: (partition(), chance.random() < 0.4, duration(1.0), duration(2.5))),
        "isolate": (2, lambda: (broker(), duration(4.0))),
        "freeze": (2, lambda: (broker(), duration(4.0))),
        "alone": (2, lambda: (partition(), round(chance.uniform(1.5, 4.0), 3), duration(1.0))),
        "delete": (2, lambda: (partition(), round(chance.random(), 2))),
        "skew": (1, lambda: (broker(), chance.choice((-3600.0, 3600.0)))),
        "expire": (1, lambda: (broker(),)),
        "depose": (3, lambda: (chance.random() < 0.3, broker(), duration(1.0), duration(3.0))),
    }
    if chance.random() < 0.3:
        makers["power"] = 6, lambda: (broker(), duration(3.0))
    if len(brokers) > REPLICAS:
        makers["reassign"] = 4, lambda: (partition(), tuple(chance.sample(brokers, chance.choice((2, 3, 3)))))
    kinds = list(makers)
    weights = [weight for weight, _ in makers.values()]
    acts = []
    for _ in range(chance.randint(2, 9)):
        kind = chance.choices(kinds, weights)[0]
        at = round(chance.uniform(0.5, _LAST_ACT_S), 3)
        acts.append(Act(at, kind, makers[kind][1]()))
        if kind in ("crash", "depose") and chance.random() < 0.6:
            # Commands that are in flight while their broker restarts or their controller is replaced.
            acts.append(Act(round(at + chance.uniform(0.0, 0.3), 3), "elect", makers["elect"][1]()))
    return History(
        seed,
        brokers,
        chance.choice((600, 2000, 100_000)),
        chance.choice((-1, -1, -1, 2000)),
        chance.choice((1, 5, 1 << 60, 1 << 60, 1 << 60, 1 << 60)),
        chance.choice((1, 2, 2, 2)),
        chance.choice((0.0, 0.003, 0.02)),
        chance.choice((0.0, 0.1, 0.4)),
        chance.choice((0.05, 0.1, 0.2)),
        tuple(sorted(acts, key=lambda act: act.at)),
    )
