"""Start, verify and cancel moves, with their throttles. Failures are CommandErrors."""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headrace.cli.cluster import Cluster
from headrace.cli.failures import CommandError, missing_partition, missing_topic
from headrace.cli.placement import requests, throttles
from headrace.cli.placement.plan import Move
from headrace.cli.placement.requests import Refusal
from headrace.cli.placement.state import Partition, Place, State

DONE: Final = "done"
MOVING: Final = "moving"
DIFFERENT: Final = "different"
_SETTLED_S = 5.0
"""Maximum time to wait for the end of a reassignment in the brokers' metadata, which lags behind the controller."""
_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True)
class Outcome:
    """The state of one partition of a plan.

    It is `DONE`, `MOVING`, or `DIFFERENT`: not moving, and with other replicas than planned.
    """

    place: Place
    wanted: tuple[int, ...]
    replicas: tuple[int, ...]
    """The current replicas; empty if the partition does not exist."""
    state: str


def moves(state: State, targets: Mapping[Place, tuple[int, ...]], bootstrap: str) -> list[Move]:
    """Return the moves of a plan that are neither done nor in progress.

    Raises CommandError if a partition does not exist, or if a new replica is on a broker that is not alive.
    """
    found = []
    for place, wanted in sorted(targets.items()):
        partition = _existing(state, place, bootstrap)
        for broker in wanted:
            if broker not in state.brokers and broker not in partition.replicas:
                known = ", ".join(map(str, state.brokers))
                raise CommandError(
                    f"{place[0]}:{place[1]} cannot move to broker {broker}, which is not alive",
                    f"Live brokers: {known}. Start the broker, or make a new plan.",
                )
        if partition.target != wanted:
            found.append(Move(*place, partition.replicas, wanted, state.size(place)))
    return found


def check_nothing_else_moves(state: State, targets: Mapping[Place, tuple[int, ...]]) -> None:
    """Raise CommandError if a partition is moving, unless the plan moves it to the same brokers."""
    others = [partition for partition in state.moving if targets.get(partition.place) != partition.target]
    if others:
        count = "1 partition is" if len(others) == 1 else f"{len(others):,} partitions are"
        raise CommandError(
            f"{count} already being reassigned, for example {others[0].topic}:{others[0].number}",
            "Wait until they are done (`headrace reassign status --watch`), or start this plan now with --additional.",
        )


def start(cluster: Cluster, state: State, planned: Sequence[Move], throttle: int | None) -> dict[Place, Refusal]:
    """Start the moves, and return the partitions that the controller rejects.

    `throttle` limits these moves and those in progress, in bytes per second on each broker.
    """
    if throttle is not None:
        in_progress = [_as_move(partition) for partition in state.moving]
        _throttle(cluster, state, [*in_progress, *planned], throttle)
    return requests.reassign(cluster, {move.place: move.after for move in planned})


def outcomes(state: State, targets: Mapping[Place, tuple[int, ...]]) -> list[Outcome]:
    """Compare the cluster with a plan."""
    found = []
    for place, wanted in sorted(targets.items()):
        partition = state.partitions.get(place)
        replicas = () if partition is None else partition.replicas
        if partition is not None and partition.is_moving:
            result = MOVING
        else:
            result = DONE if replicas == wanted else DIFFERENT
        found.append(Outcome(place, wanted, replicas, result))
    return found


def settled(cluster: Cluster, targets: Mapping[Place, tuple[int, ...]]) -> tuple[State, list[Outcome]]:
    """Return the cluster and the outcomes once no outcome is `DIFFERENT`, or after `_SETTLED_S`."""
    deadline = time.monotonic() + _SETTLED_S
    while True:
        state = requests.read_state(cluster, sizes=False)
        found = outcomes(state, targets)
        if all(outcome.state != DIFFERENT for outcome in found) or time.monotonic() > deadline:
            return state, found
        time.sleep(_PAUSE_S)


def cancel(cluster: Cluster, places: Collection[Place]) -> tuple[State, dict[Place, Refusal]]:
    """Cancel these moves. Return the cluster once none remains, or after `_SETTLED_S`, and the rejected partitions."""
    refused = requests.reassign(cluster, dict.fromkeys(places))
    deadline = time.monotonic() + _SETTLED_S
    while True:
        state = requests.read_state(cluster, sizes=False)
        if not any(state.partitions[place].is_moving for place in places if place in state.partitions):
            return state, refused
        if time.monotonic() > deadline:
            return state, refused
        time.sleep(_PAUSE_S)


def remove_throttles(cluster: Cluster, state: State, places: Collection[Place]) -> None:
    """Remove the throttles of all live brokers, and of the topics of these partitions, as Kafka's tool does."""
    requests.set_on_brokers(cluster, state.brokers, dict.fromkeys(throttles.RATES))
    for topic in sorted({topic for topic, _ in places}):
        requests.set_on_topic(cluster, topic, dict.fromkeys(throttles.REPLICAS))


def _throttle(cluster: Cluster, state: State, limited: Sequence[Move], rate: int) -> None:
    # In the order of Kafka's tool. A rate limits only the replicas in the topics' settings.
    for topic, settings in throttles.topic_settings(limited).items():
        requests.set_on_topic(cluster, topic, dict(settings))
    live = [broker for broker in throttles.brokers(limited) if broker in state.brokers]
    requests.set_on_brokers(cluster, live, dict.fromkeys(throttles.RATES, str(rate)))


def _as_move(partition: Partition) -> Move:
    return Move(*partition.place, partition.original, partition.target, None)


def _existing(state: State, place: Place, bootstrap: str) -> Partition:
    partition = state.partitions.get(place)
    if partition is not None:
        return partition
    topic, number = place
    numbers = [known for name, known in state.partitions if name == topic]
    if not numbers:
        raise missing_topic(topic, bootstrap, {name for name, _ in state.partitions})
    raise missing_partition(topic, number, max(numbers), " The plan does not match the topic: make a new one.")
