"""Plan moves that spread replicas evenly over brokers and racks, with as few new replicas as possible. Pure.

A plan never leaves a partition with fewer live replicas than before, unless a lower replication factor was requested:
new replicas are placed on live brokers only, and replicas in the ISR are kept where an even spread permits.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from headrace.cli.failures import CommandError
from headrace.cli.placement.balancing import Item, spread
from headrace.cli.placement.state import Partition, Place, State, total
from headrace.wording import count

_OUT_OF_SYNC = 1
"""Cost of an existing replica that is not in sync and has to catch up."""
_FOLLOWER, _NEW_REPLICA = 1, 2
"""Cost of a follower, or of a new replica, that becomes the preferred leader."""
_NO_RACK = ""


@dataclass(frozen=True, slots=True)
class Move:
    """The replicas of a partition before and after a move; the first one is the preferred leader."""

    topic: str
    partition: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    size: int | None
    """Bytes of one replica; None if unknown."""

    @property
    def place(self) -> Place:
        return self.topic, self.partition

    @property
    def added(self) -> tuple[int, ...]:
        return tuple(broker for broker in self.after if broker not in self.before)

    @property
    def removed(self) -> tuple[int, ...]:
        return tuple(broker for broker in self.before if broker not in self.after)

    @property
    def bytes(self) -> int | None:
        """Bytes to copy; None if unknown."""
        return self.size * len(self.added) if self.size is not None else None if self.added else 0


@dataclass(frozen=True, slots=True)
class Plan:
    """The moves, and the partitions that cannot move because they have no leader."""

    moves: list[Move]
    leaderless: list[Place]

    @property
    def added(self) -> int:
        """Replicas to copy."""
        return sum(len(move.added) for move in self.moves)

    @property
    def bytes(self) -> int | None:
        """Bytes to copy; None if unknown."""
        return total([move.bytes for move in self.moves])


def target_brokers(
    state: State, *, only: Collection[int] = (), add: Collection[int] = (), retire: Collection[int] = ()
) -> set[int]:
    """Return the brokers to place replicas on: `only`, or else the brokers with replicas plus `add` minus `retire`.

    Raises CommandError if one of them is not alive, if a broker to retire does not exist, or if no broker is left.
    """
    known = ", ".join(map(str, state.brokers))
    for broker in (*only, *add):
        if broker not in state.brokers:
            raise CommandError(
                f"broker {broker} is not alive", f"Live brokers: {known}. `headrace cluster` lists them."
            )
    for broker in retire:
        if broker not in state.brokers and broker not in state.hosts:
            raise CommandError(
                f"broker {broker} does not exist", f"Live brokers: {known}. `headrace cluster` lists them."
            )
    brokers = set(only) or (state.hosts | set(add)) - set(retire)
    dead = sorted(brokers - set(state.brokers))
    if dead:
        raise CommandError(
            f"broker {dead[0]} has replicas, but is not alive",
            f"Start it, or move its replicas to other brokers with --retire {dead[0]}.",
        )
    if not brokers:
        raise CommandError("no broker would be left", "Keep at least one broker: `headrace cluster` lists them.")
    return brokers


def plan(
    state: State,
    partitions: Sequence[Partition],
    brokers: Collection[int],
    *,
    replication_factor: int | None = None,
    ignore_racks: bool = False,
) -> Plan:
    """Plan to spread these partitions over `brokers`, with their current number of replicas or `replication_factor`.

    Raises CommandError if that is impossible, or if one of the partitions is already moving.
    """
    moving = [partition for partition in partitions if partition.is_moving]
    if moving:
        raise CommandError(
            f"{_named(moving[0].place)} is already being reassigned",
            "Wait until it has moved (`headrace reassign status --watch`), or use `headrace reassign cancel`.",
        )
    racks = _racks(state, brokers, ignore_racks)
    movable = [partition for partition in partitions if partition.leader is not None]
    for partition in movable:
        needed = replication_factor or len(partition.replicas)
        if needed > len(brokers):
            raise CommandError(
                f"{_named(partition.place)} cannot have {needed} replicas on {count(len(brokers), 'broker')}",
                "Use more brokers (--brokers, --add) or a lower --replication-factor.",
            )
    sizes = {partition.place: state.size(partition.place) for partition in movable}
    chosen = _choose_brokers(state, movable, brokers, racks, replication_factor, sizes)
    leaders = _choose_leaders(movable, chosen)
    moves = []
    for partition, replicas, leader in zip(movable, chosen, leaders, strict=True):
        kept = [broker for broker in partition.replicas if broker in replicas]
        new = sorted(replicas - set(kept))
        after = (leader, *(broker for broker in (*kept, *new) if broker != leader))
        if replicas != set(partition.replicas) or leader != partition.replicas[0]:
            moves.append(Move(*partition.place, partition.replicas, after, sizes[partition.place]))
    return Plan(moves, [partition.place for partition in partitions if partition.leader is None])


def _racks(state: State, brokers: Collection[int], ignore_racks: bool) -> dict[int, str]:
    """Return the rack of every broker, or the same rack for all brokers if racks do not matter."""
    racks = {broker: state.brokers[broker].rack for broker in brokers}
    named = [broker for broker, rack in racks.items() if rack is not None]
    if ignore_racks or not named:
        return dict.fromkeys(racks, _NO_RACK)
    without = sorted(set(racks) - set(named))
    if without:
        raise CommandError(
            f"broker {without[0]} has no rack, but broker {min(named)} has one",
            "Set broker.rack on all brokers, or plan with --ignore-racks.",
        )
    return {broker: rack or _NO_RACK for broker, rack in racks.items()}


def _choose_brokers(
    state: State,
    partitions: Sequence[Partition],
    brokers: Collection[int],
    racks: Mapping[int, str],
    replication_factor: int | None,
    sizes: Mapping[Place, int | None],
) -> list[frozenset[int]]:
    # A new replica costs more than all those out of sync together, so that no plan has more new ones than necessary.
    new = 1 + _OUT_OF_SYNC * sum(len(partition.replicas) for partition in partitions)
    items = [
        Item(
            group=partition.topic,
            count=replication_factor or len(partition.replicas),
            brokers=frozenset(brokers),
            costs={broker: 0 if broker in partition.isr else _OUT_OF_SYNC for broker in partition.replicas},
            other_cost=new,
            size=sizes[partition.place] or 0,
        )
        for partition in partitions
    ]
    planned = {partition.place for partition in partitions}
    loads = dict.fromkeys(brokers, 0)
    for partition in state.partitions.values():
        for broker in partition.replicas:
            if broker in loads and partition.place not in planned:
                loads[broker] += 1
    return spread(items, racks, loads)


def _choose_leaders(partitions: Sequence[Partition], chosen: Sequence[frozenset[int]]) -> list[int]:
    """Spread preferred leaders evenly over brokers; keep the current leaders if possible, and avoid new replicas."""
    items = [
        Item(
            group=partition.topic,
            count=1,
            brokers=replicas,
            costs={broker: 0 if broker == partition.replicas[0] else _FOLLOWER for broker in partition.replicas},
            other_cost=_NEW_REPLICA,
            size=0,
        )
        for partition, replicas in zip(partitions, chosen, strict=True)
    ]
    everyone = frozenset[int]().union(*chosen)
    return [next(iter(leader)) for leader in spread(items, dict.fromkeys(everyone, _NO_RACK), {})]


def _named(place: Place) -> str:
    return f"{place[0]}:{place[1]}"
