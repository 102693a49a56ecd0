"""The history of a simulated cluster, drawn from a seed."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tests.simulation.acts import Act, Acts, in_order

FAULTS_S: Final = 14.0
"""Duration of the faulty phase."""
_FIRST_ACT_S: Final = 1.5
_LAST_ACT_S: Final = 12.0
_LAST_PLOT_S: Final = 5.0
REPLICAS: Final = 3
PARTITIONS: Final = 2
TOPIC: Final = "t"
"""The topic of producers that check everything. It is never deleted."""
OTHERS: Final = ("d0", "d1")
"""Topics that are created, deleted and created again. The first one exists at the beginning."""
PLOTS: Final = (
    "isr_dies",
    "isr_moves_away",
    "reassignment_is_interrupted",
    "deposed_controller_writes",
    "commands_arrive_late",
    "stopping_follower_fetches",
    "returning_follower_dies",
    "deletion_is_not_answered",
    "leader_returns",
    "leader_is_moved_without_session",
    "broker_restarts_unnoticed",
)
"""Names of scripts: see `plots`."""

_GROUPS_RATE: Final = 0.25

_Arguments = tuple[Any, ...]


@dataclass(frozen=True)
class History(Acts):
    brokers: tuple[int, ...]
    segment_bytes: int
    retention_bytes: int
    flush_messages: int
    min_isr: int
    break_rate: float
    late_copies: float
    """The probability that a command arrives again."""
    pause_s: float
    """The mean pause of a producer between two batches."""
    fetch_bytes: int
    """The limit per partition in a follower's fetch: a small one makes followers catch up slowly."""
    has_groups: bool = False
    """True with `__consumer_offsets`, coordinators, and a client that commits offsets."""


def history_of(seed: int) -> History:
    """Return the history of a seed, the same on any machine."""
    chance = random.Random(f"cluster {seed}")

    def duration(longest: float, shortest: float = 0.05) -> float:
        return round(chance.uniform(shortest, longest), 3)

    brokers = chance.choice(((1, 2, 3), (1, 2, 3, 4)))

    def broker() -> int:
        return chance.choice(brokers)

    def partition() -> int:
        return chance.randrange(PARTITIONS)

    def replicas(*counts: int) -> tuple[int, ...]:
        return tuple(chance.sample(brokers, min(chance.choice(counts), len(brokers))))

    def topic() -> str:
        return chance.choice(OTHERS)

    def reassign() -> _Arguments:
        if chance.random() < 0.5:
            return TOPIC, partition(), replicas(2, 3, 3, 4), chance.random() < 0.2
        return topic(), chance.randrange(2), replicas(1, 2, 3), chance.random() < 0.2

    makers: dict[str, tuple[int, Callable[[], _Arguments]]] = {
        "crash": (5, lambda: (broker(), duration(3.0), chance.random() < 0.2)),
        "stop": (3, lambda: (broker(), duration(2.0))),
        "cut": (3, lambda: (*chance.sample(brokers, 2), chance.random() < 0.5, duration(4.0))),
        "usurp": (6, lambda: (partition(), chance.random() < 0.4, duration(4.0, 1.5))),
        "isolate": (3, lambda: (broker(), chance.random() < 0.5, duration(4.0))),
        "freeze": (3, lambda: (broker(), duration(4.0))),
        "alone": (2, lambda: (partition(), duration(4.0, 1.5), duration(1.0))),
        "delete_records": (2, lambda: (partition(), round(chance.random(), 2))),
        "skew": (1, lambda: (broker(), chance.choice((-3600.0, 3600.0)))),
        "expire": (3, lambda: (broker(),)),
        "depose": (
            6,
            lambda: (
                chance.choice(("kill", "freeze", "cut", "expire", "delete")),
                broker(),
                duration(1.0),
                duration(4.0, 1.0),
            ),
        ),
        "zookeeper_cut": (2, lambda: (broker(), chance.randrange(3), duration(3.0))),
        "zookeeper_away": (1, lambda: (duration(4.0),)),
        "zookeeper_reconnects": (1, lambda: ()),
        "create": (5, lambda: (topic(), tuple(replicas(1, 2, 3, 3) for _ in range(chance.randint(1, 2))))),
        "grow": (2, lambda: (chance.choice((TOPIC, *OTHERS)), replicas(2, 3))),
        "delete": (6, lambda: (topic(),)),
        "reassign": (8, reassign),
        "cancel": (3, lambda: ()),
        "elect": (2, lambda: (chance.random() < 0.3,)),
        "elect_unclean": (1, lambda: (topic(), partition())),
        "configure_unclean": (2, lambda: (topic(), chance.random() < 0.8)),
        "allocate_ids": (1, lambda: (broker(),)),
    }
    late_copies = chance.choice((0.0, 0.0, 0.2))
    if late_copies:
        # As in Kafka, only the order of commands protects a deleted replica from an older LeaderAndIsr.
        for kind in ("delete", "reassign", "cancel"):
            del makers[kind]
    if chance.random() < 0.2:
        makers["power"] = 6, lambda: (broker(), duration(3.0))
    kinds = list(makers)
    weights = [weight for weight, _ in makers.values()]
    acts = []
    for _ in range(chance.randint(4, 14)):
        kind = chance.choices(kinds, weights)[0]
        at = round(chance.uniform(_FIRST_ACT_S, _LAST_ACT_S), 3)
        acts.append(Act(at, kind, makers[kind][1]()))
        if kind in ("crash", "depose", "freeze", "stop") and chance.random() < 0.6:
            # Something that is under way while a broker restarts or the controller is replaced.
            second = chance.choice([name for name in ("reassign", "create", "delete", "elect") if name in makers])
            acts.append(Act(round(at + chance.uniform(-0.05, 0.3), 3), second, makers[second][1]()))
    settings = (
        brokers,
        chance.choice((600, 2000, 100_000)),
        chance.choice((-1, -1, -1, 2000)),
        chance.choice((1, 5, 1 << 60, 1 << 60, 1 << 60, 1 << 60)),
        chance.choice((1, 2, 2, 2)),
        chance.choice((0.0, 0.0, 0.003, 0.01)),
        late_copies,
        chance.choice((0.05, 0.1, 0.2)),
        chance.choice((500, 1 << 20, 1 << 20)),
    )
    if not late_copies and chance.random() < 0.25:
        acts.append(Act(round(chance.uniform(_FIRST_ACT_S, _LAST_PLOT_S), 3), "plot", (chance.choice(PLOTS),)))
    has_groups = random.Random(f"groups {seed}").random() < _GROUPS_RATE
    return History(seed, in_order(acts), *settings, has_groups=has_groups)


def plotted(seed: int, plot: str) -> History:
    """Return a history in which nothing but a plot happens."""
    at = round(random.Random(f"plot {seed}").uniform(_FIRST_ACT_S, _LAST_PLOT_S), 3)
    acts = (Act(at, "plot", (plot,)),)
    return History(seed, acts, (1, 2, 3, 4), 100_000, -1, 1 << 60, 2, 0.0, 0.0, 0.1, 500)
