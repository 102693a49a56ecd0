"""A history of simulated transactions, drawn from a seed."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tests.simulation.acts import Act, Acts, in_order

FAULTS_S: Final = 40.0
"""Duration of the faulty phase."""
_LAST_ACT_S: Final = 35.0
_NAMES: Final = ("a", "b")


@dataclass(frozen=True)
class History(Acts):
    level: int
    """The initial `transaction.version`."""
    epochs_left: int | None
    """Initial number of epochs left for the ids; None for new ids."""


def history_of(seed: int) -> History:
    """Return the history of a seed, the same on any machine."""
    chance = random.Random(f"transactions {seed}")

    def duration(longest: float) -> float:
        return round(chance.uniform(0.1, longest), 3)

    def start(at: float) -> Act:
        return Act(at, "start", (chance.choice(_NAMES), chance.random() < 0.7))

    acts = [start(duration(2.0)) for _ in range(chance.randint(1, 2))]
    for _ in range(chance.randint(3, 10)):
        at = round(chance.uniform(1.0, _LAST_ACT_S), 3)
        kind = chance.choices(
            ("start", "crash", "pause", "restart", "refuse", "refuse_markers", "level"), (4, 1, 2, 3, 1, 2, 1)
        )[0]
        if kind == "start":
            acts.append(start(at))
            continue
        makers: dict[str, Callable[[], tuple[Any, ...]]] = {
            "crash": lambda: (chance.choice(_NAMES),),
            "pause": lambda: (chance.choice(_NAMES), duration(12.0)),
            "restart": lambda: (duration(4.0), chance.random() < 0.6, chance.random() < 0.3),
            "refuse": lambda: (duration(4.0),),
            "refuse_markers": lambda: (chance.randrange(3), duration(8.0)),
            "level": lambda: (chance.choice((0, 1, 2, 2)),),
        }
        acts.append(Act(at, kind, makers[kind]()))
    return History(
        seed,
        in_order(acts),
        chance.choice((0, 1, 2, 2, 2)),
        chance.choice((None, None, 0, 1, 3)),
    )
