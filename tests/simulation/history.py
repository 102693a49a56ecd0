"""The history of a simulation, drawn from a seed: settings and timed acts."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from headrace.errors import ErrorCode
from tests.simulation.acts import Act, Acts, in_order

FAULTS_S: Final = 45.0
"""Duration of the faulty phase."""
_LAST_ACT_S: Final = 40.0
_NO_LIMIT: Final = 1000
_SUBSCRIPTIONS: Final = (("t",), ("t",), ("t", "u"), ("u",))
_REFUSALS: Final = (ErrorCode.kafka_storage_error, ErrorCode.not_enough_replicas, ErrorCode.message_too_large)


@dataclass(frozen=True)
class Settings:
    initial_delay_ms: int
    assignment_interval_ms: int
    max_size: int
    migration_policy: str


@dataclass(frozen=True)
class History(Acts):
    settings: Settings


KINDS: Final = ("eager", "cooperative", "rolling", "consumer")
_KIND_MIXES: Final = (
    ("eager",),
    ("cooperative",),
    ("consumer",),
    ("consumer",),
    ("eager", "rolling"),
    ("cooperative", "rolling"),
    ("eager", "consumer"),
    ("cooperative", "consumer"),
    KINDS,
)


def history_of(seed: int) -> History:
    """Return the history of a seed, the same on any machine."""
    chance = random.Random(f"history {seed}")
    settings = Settings(
        initial_delay_ms=chance.choice((0, 0, 3000)),
        assignment_interval_ms=chance.choice((0, 1000)),
        max_size=chance.choice((_NO_LIMIT, _NO_LIMIT, _NO_LIMIT, 3)),
        migration_policy=chance.choice(("bidirectional",) * 3 + ("upgrade", "downgrade", "disabled")),
    )
    kinds = chance.choice(_KIND_MIXES)
    acts: list[Act] = []
    names: list[str] = []
    instances: list[str] = []

    def start(at: float) -> None:
        name = f"c{len(names)}"
        instance = None
        if chance.random() < 0.3:
            # an existing instance, alive or gone, or a new one
            if instances and chance.random() < 0.6:
                instance = chance.choice(instances)
            else:
                instance = f"i{len(instances)}"
                instances.append(instance)
        names.append(name)
        acts.append(Act(at, "start", (name, chance.choice(kinds), chance.choice(_SUBSCRIPTIONS), instance)))

    def any_client(*arguments: Any) -> tuple[Any, ...]:
        return (chance.choice(names), *arguments)

    def duration(longest: float) -> float:
        return round(chance.uniform(0.5, longest), 3)

    def restart() -> tuple[Any, ...]:
        is_clean = chance.random() < 0.5
        lost = 0 if is_clean or chance.random() < 0.6 else chance.randint(1, 6)
        return duration(6.0), lost, is_clean, chance.random() < 0.3

    makers: dict[str, tuple[int, Callable[[], tuple[Any, ...]]]] = {
        "crash": (2, any_client),
        "leave": (2, any_client),
        "pause": (3, lambda: any_client(duration(20.0))),
        "stall": (1, lambda: any_client(duration(20.0))),
        "subscribe": (2, lambda: any_client(chance.choice(_SUBSCRIPTIONS))),
        "grow": (1, lambda: (chance.choice("tu"),)),
        "restart": (2, restart),
        "refuse": (1, lambda: (chance.choice(_REFUSALS), duration(5.0))),
        "admin_reset": (1, lambda: (chance.randint(0, 5),)),
        "admin_delete": (1, lambda: ()),
    }
    for _ in range(chance.randint(1, 4)):
        start(duration(5.0))
    weights = [weight for weight, _ in makers.values()]
    for _ in range(chance.randint(3, 10)):
        at = round(chance.uniform(1.0, _LAST_ACT_S), 3)
        if chance.random() < 0.3:
            start(at)
        elif instances and chance.random() < 0.05:
            acts.append(Act(at, "admin_remove", (chance.choice(instances),)))
        else:
            kind = chance.choices(list(makers), weights)[0]
            acts.append(Act(at, kind, makers[kind][1]()))
    return History(seed, in_order(acts), settings)
