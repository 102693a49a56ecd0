"""Brokers and partitions of a cluster, as returned by brokers, and the problems of partitions. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

Place = tuple[str, int]
"""Topic and partition."""

OFFLINE: Final = "offline"
UNDER_MIN_ISR: Final = "under min ISR"
UNDER_REPLICATED: Final = "under-replicated"
PROBLEMS: Final = (OFFLINE, UNDER_MIN_ISR, UNDER_REPLICATED)
"""Problems from worst to mildest; a partition has at most one."""


@dataclass(frozen=True, slots=True)
class Disk:
    """The log directories of a broker, in bytes."""

    used: int
    """Bytes that replicas use."""
    total: int | None
    """Size of the file systems; None if the broker does not report it (Kafka before 3.3)."""
    free: int | None
    """Free bytes of the file systems; None if `total` is None."""


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker that is alive."""

    id: int
    address: str
    rack: str | None
    disk: Disk | None
    """None if the broker does not describe its log directories."""


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition. While it is reassigned, `replicas` contains `adding` and `removing`."""

    topic: str
    number: int
    leader: int | None
    leader_epoch: int | None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    min_isr: int | None = None
    """`min.insync.replicas` of the topic; None for partitions whose replicas are all in sync."""

    @property
    def place(self) -> Place:
        return self.topic, self.number

    @property
    def is_moving(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas after the reassignment in progress."""
        return tuple(broker for broker in self.replicas if broker not in self.removing)

    @property
    def original(self) -> tuple[int, ...]:
        """The replicas before the reassignment in progress."""
        return tuple(broker for broker in self.replicas if broker not in self.adding)

    @property
    def problem(self) -> str | None:
        """One of `PROBLEMS`, or None. A replica that a reassignment adds is not expected to be in sync (KIP-455)."""
        if self.leader is None:
            return OFFLINE
        if self.min_isr is not None and len(self.isr) < self.min_isr:
            return UNDER_MIN_ISR
        return UNDER_REPLICATED if len(self.isr) < len(self.replicas) - len(self.adding) else None


@dataclass(frozen=True, slots=True)
class State:
    """A cluster at one moment. `brokers` and `partitions` are in the order of their keys."""

    cluster_id: str | None
    controller: int | None
    controller_epoch: int | None
    """The controller epoch; the protocol returns it only in KRaft mode."""
    brokers: Mapping[int, Broker]
    partitions: Mapping[Place, Partition]
    sizes: Mapping[tuple[Place, int], int]
    """Bytes of each replica, by partition and broker, without replicas on brokers that do not reply."""

    def size(self, place: Place) -> int | None:
        """Return the size in bytes of the leader's replica or, if unknown, of the largest; None if no size is known."""
        partition = self.partitions[place]
        known = [self.sizes[place, broker] for broker in partition.replicas if (place, broker) in self.sizes]
        return self.sizes.get((place, -1 if partition.leader is None else partition.leader), max(known, default=None))

    @property
    def hosts(self) -> set[int]:
        """All brokers that have replicas, alive or not."""
        return {broker for partition in self.partitions.values() for broker in partition.replicas}

    @property
    def missing_brokers(self) -> list[int]:
        """Brokers that have replicas but are not alive."""
        return sorted(self.hosts - set(self.brokers))

    def with_problem(self, problem: str) -> list[Partition]:
        return [partition for partition in self.partitions.values() if partition.problem == problem]

    @property
    def moving(self) -> list[Partition]:
        return [partition for partition in self.partitions.values() if partition.is_moving]

    @property
    def is_healthy(self) -> bool:
        """True if there is a controller, no broker is missing, and no partition has a problem."""
        problems = any(partition.problem for partition in self.partitions.values())
        return self.controller is not None and not self.missing_brokers and not problems

    def bytes_left(self, partition: Partition) -> int | None:
        """Return the bytes that a reassignment still has to copy; None if unknown."""
        size = self.size(partition.place)
        copying = [broker for broker in partition.adding if broker not in partition.isr]
        if size is None and copying:
            return None
        return sum(max((size or 0) - self.sizes.get((partition.place, broker), 0), 0) for broker in copying)

    def bytes_copied(self, partition: Partition) -> int:
        """Return the bytes that have been copied to replicas that a reassignment adds."""
        return sum(self.sizes.get((partition.place, broker), 0) for broker in partition.adding)


def total(sizes: Sequence[int | None]) -> int | None:
    """Return the sum; None if a size is unknown."""
    return None if None in sizes else sum(size or 0 for size in sizes)
