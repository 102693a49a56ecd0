"""The controller as a pure machine: an event in, writes and commands out.

Its context mirrors the metadata store. It changes only after the writes are durable (`committed`), so a failed write
changes nothing. Brokers learn of changes from the commands alone.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from headrace.cluster import znodes
from headrace.cluster.commands import (
    Command,
    LeaderAndIsr,
    StoppedReplica,
    StopReplica,
    UpdateMetadata,
    partition_states,
)
from headrace.cluster.controller.elections import elect, newest_registration
from headrace.cluster.image import BrokerImage, MetadataImage, TopicImage
from headrace.cluster.store import Create, Operation
from headrace.types import PartitionState, TopicPartition

_Item = TypeVar("_Item")


class Send(NamedTuple):
    """Send a command to a broker. Commands to one broker arrive in order."""

    broker_id: int
    command: Command


class Effects(NamedTuple):
    """The writes, the commands to send after them, and the new context."""

    operations: Sequence[Operation]
    commands: Sequence[Send]
    context: MetadataImage


class ControllerMachine:
    """The controller's state and decisions."""

    def __init__(self, broker_id: int, epoch: int, context: MetadataImage) -> None:
        self.context = replace(context, controller_id=broker_id, controller_epoch=epoch)

    def committed(self, effects: Effects) -> None:
        """Adopt the new context: the writes of `effects` are durable."""
        self.context = effects.context

    def brokers_changed(self, brokers: Iterable[BrokerImage]) -> Effects:
        """Set the live brokers. A partition whose leader is or was dead gets the next leader epoch.

        The epoch rises even if the leader stays: after an unclean stop other records may be written at the offsets of
        lost ones, and only the epoch distinguishes the two (KIP-101).
        """
        context = self.context.with_brokers(brokers)
        topics, operations = elect(context)
        context = context.with_topics(topics)
        states = [state for topic in context.topics.values() for state in partition_states(topic, 0, is_new=False)]
        return Effects(
            operations,
            [*_leader_and_isr(states, context), *_to_all(context, topics=tuple(context.topics.values()))],
            context,
        )

    def partitions_added(self, topics: Sequence[tuple[TopicImage, int]]) -> Effects:
        """Handle new partitions of topics, from the given number on, which is 0 for a new topic."""
        epoch = self.context.controller_epoch
        operations: list[Operation] = []
        states: list[PartitionState] = []
        for topic, first in topics:
            operations += state_nodes(topic, first, epoch)
            states += partition_states(topic, first, is_new=True)
        context = self.context.with_topics([self._with_zxids(topic, first) for topic, first in topics])
        update = _to_all(context, topics=[topic for topic, _ in topics])
        return Effects(operations, [*_leader_and_isr(states, context), *update], context)

    def _with_zxids(self, topic: TopicImage, first: int) -> TopicImage:
        """Return the topic as the context needs it, with the latest registration that its states know."""
        newest = newest_registration(self.context)
        old = self.context.topics[topic.name].partitions[:first] if first else ()
        new = (partition._replace(zxid=newest) for partition in topic.partitions[first:])
        return topic._replace(partitions=(*old, *new))

    def topics_deleted(self, topics: Sequence[TopicImage]) -> Effects:
        """Handle deleted topics. Their metadata is removed before their logs are."""
        names = [topic.name for topic in topics]
        context = self.context.without_topics(names)
        stopped = [
            (replica, StoppedReplica(TopicPartition(topic.name, index)))
            for topic in topics
            for index, partition in enumerate(topic.partitions)
            for replica in partition.replicas
        ]
        stops = _by_broker(stopped, context, StopReplica)
        return Effects((), [*_to_all(context, deleted=names), *stops], context)


def state_nodes(topic: TopicImage, first: int, controller_epoch: int) -> list[Operation]:
    """Return the operations that create the nodes of the topic's partitions from number `first` on."""
    operations: list[Operation] = []
    for index in range(first, len(topic.partitions)):
        state = znodes.encode_state(topic.partitions[index], controller_epoch)
        operations.append(Create(znodes.partition_path(topic.name, index)))
        operations.append(Create(znodes.state_path(topic.name, index), state))
    return operations


def _leader_and_isr(states: Sequence[PartitionState], context: MetadataImage) -> list[Send]:
    return _by_broker([(replica, state) for state in states for replica in state.replicas], context, LeaderAndIsr)


def _to_all(context: MetadataImage, topics: Sequence[TopicImage] = (), deleted: Sequence[str] = ()) -> list[Send]:
    update = UpdateMetadata(
        context.controller_id, context.controller_epoch, tuple(context.brokers.values()), topics, deleted
    )
    return [Send(broker_id, update) for broker_id in context.brokers]


def _by_broker(
    items: Iterable[tuple[int, _Item]], context: MetadataImage, command: Callable[[list[_Item]], Command]
) -> list[Send]:
    """Return one command for every live broker with items."""
    by_broker: dict[int, list[_Item]] = {}
    for broker_id, item in items:
        if broker_id in context.brokers:
            by_broker.setdefault(broker_id, []).append(item)
    return [Send(broker_id, command(found)) for broker_id, found in by_broker.items()]
