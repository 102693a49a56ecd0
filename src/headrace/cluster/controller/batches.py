"""Collect the commands of one step, at most one of each kind per broker. Pure.

A broker gets LeaderAndIsr first, then UpdateMetadata, then StopReplica, as from Kafka's controller: no client is sent
to a leader that does not lead yet.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

from headrace.cluster.commands import DURING_DELETION, StoppedReplica
from headrace.cluster.controller.context import Context
from headrace.cluster.image import Assignment, BrokerImage, LeaderState
from headrace.types import PartitionState, TopicPartition


class Lead(NamedTuple):
    """LeaderAndIsr: lead or follow these partitions. `leaders` are the brokers that lead them."""

    partitions: Mapping[TopicPartition, PartitionState]
    leaders: tuple[BrokerImage, ...]


class Announced(NamedTuple):
    """A partition as clients see it. During the deletion of its topic the leader is -2."""

    state: LeaderState
    replicas: tuple[int, ...]
    offline: tuple[int, ...]


class Announce(NamedTuple):
    """UpdateMetadata: the live brokers, and the partitions that have changed."""

    brokers: tuple[BrokerImage, ...]
    partitions: Mapping[TopicPartition, Announced]


class Stop(NamedTuple):
    """StopReplica: stop these replicas, and delete some."""

    replicas: Mapping[TopicPartition, StoppedReplica]


Order: TypeAlias = Lead | Announce | Stop

REQUESTS: Final[Mapping[type[Order], str]] = {Lead: "LeaderAndIsr", Announce: "UpdateMetadata", Stop: "StopReplica"}
"""Kafka's names of the orders, for logging."""


class Send(NamedTuple):
    """Send an order to a broker's registration with `broker_epoch`. A broker gets its orders in sequence."""

    broker_id: int
    broker_epoch: int
    order: Order


class Batch:
    """The orders that are not sent yet."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._led: dict[int, dict[TopicPartition, PartitionState]] = {}
        self._told: set[int] = set()
        self._announced: dict[TopicPartition, None] = {}
        self._stopped: dict[int, dict[TopicPartition, StoppedReplica]] = {}

    def lead(
        self, brokers: Iterable[int], partition: TopicPartition, assignment: Assignment, *, is_new: bool = False
    ) -> None:
        """Queue LeaderAndIsr with the state of a partition for `brokers`, and UpdateMetadata for all brokers."""
        context = self._context
        state = context.states[partition]
        for broker in brokers:
            led = self._led.setdefault(broker, {})
            before = led.get(partition)
            known = None if before is None else (before.partition_epoch, before.replicas, before.is_new or not is_new)
            if known == (state.version, assignment.replicas, True):
                continue
            led[partition] = PartitionState(
                partition.topic,
                context.topic_ids[partition.topic],
                partition.partition,
                state.leader,
                state.leader_epoch,
                assignment.replicas,
                state.isr,
                is_new or (before is not None and before.is_new),
                state.controller_epoch,
                state.version,
                assignment.adding,
                assignment.removing,
                state.recovery,
            )
        self.announce([partition])

    def announce(self, partitions: Iterable[TopicPartition], brokers: Iterable[int] | None = None) -> None:
        """Queue UpdateMetadata with the live brokers and the state of these partitions for `brokers`, or for all."""
        self._told.update(self._context.brokers if brokers is None else brokers)
        for partition in partitions:
            if partition in self._context.states:
                self._announced[partition] = None

    def stop(self, broker: int, partition: TopicPartition, *, delete: bool) -> None:
        stopped = self._stopped.setdefault(broker, {})
        before = stopped.get(partition)
        delete = delete or (before is not None and before.delete)
        stopped[partition] = StoppedReplica(partition, self._context.leader_epoch(partition), delete)

    def take(self) -> list[Send]:
        """Return the orders, and start a new batch. Brokers that are no longer registered get none."""
        context = self._context
        sends: list[Send] = []
        for broker, led in self._led.items():
            if broker in context.brokers:
                leaders = {state.leader for state in led.values()}
                live = tuple(context.brokers[leader] for leader in sorted(leaders) if leader in context.brokers)
                sends.append(self._to(broker, Lead(led, live)))
        told = [broker for broker in sorted(self._told) if broker in context.brokers]
        if told:
            update = Announce(
                tuple(context.brokers[broker] for broker in sorted(context.brokers)),
                {partition: self._announcement(partition) for partition in self._announced},
            )
            sends += [self._to(broker, update) for broker in told]
        sends += [
            self._to(broker, Stop(stopped)) for broker, stopped in self._stopped.items() if broker in context.brokers
        ]
        self._led, self._told, self._announced, self._stopped = {}, set(), {}, {}
        return sends

    def _to(self, broker: int, order: Order) -> Send:
        return Send(broker, self._context.brokers[broker].epoch, order)

    def _announcement(self, partition: TopicPartition) -> Announced:
        context = self._context
        state = context.states[partition]
        if partition.topic in context.deleting:
            state = state._replace(leader=DURING_DELETION, leader_epoch=0, version=0)
        replicas = context.assignment(partition).replicas
        offline = tuple(replica for replica in replicas if not context.is_online(replica, partition))
        return Announced(state, replicas, offline)
