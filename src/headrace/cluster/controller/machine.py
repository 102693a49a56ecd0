"""The controller as a pure machine: an event in, writes and commands out.

Its context is what the metadata store says. The context moves on only when the writes are durable (`committed`), so a
failed write changes nothing. Brokers learn of a change from the commands alone.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from headrace.cluster import znodes
from headrace.cluster.commands import (
    Command,
    LeaderAndIsr,
    PartitionState,
    StopReplica,
    UpdateMetadata,
    partition_states,
)
from headrace.cluster.controller.elections import elect, newest_registration
from headrace.cluster.image import BrokerImage, MetadataImage, TopicImage
from headrace.cluster.store import Create, Operation
from headrace.types import TopicPartition

_Item = TypeVar("_Item")


class Send(NamedTuple):
    """Give a command to a broker. Commands to one broker arrive in order."""

    broker_id: int
    command: Command


class Effects(NamedTuple):
    """The writes to do first, the commands to send then, and the context once both are under way."""

    operations: Sequence[Operation]
    commands: Sequence[Send]
    context: MetadataImage


class ControllerMachine:
    """Everything the controller knows and decides."""

    def __init__(self, broker_id: int, epoch: int, context: MetadataImage) -> None:
        self.context = replace(context, controller_id=broker_id, controller_epoch=epoch)

    def committed(self, effects: Effects) -> None:
        """The writes of `effects` are durable."""
        self.context = effects.context

    def brokers_changed(self, brokers: Iterable[BrokerImage]) -> Effects:
        """Exactly `brokers` are alive. A partition whose leader has gone or come back since gets the next leader epoch.

        The epoch rises even if the leader stays: records that an unclean stop cut off the log may be written again at
        the same offsets, and only the epoch distinguishes the two (KIP-101).
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
        """These topics have new partitions, from the given number on: from 0 if they are new themselves."""
        epoch = self.context.controller_epoch
        operations: list[Operation] = []
        states: list[PartitionState] = []
        for topic, first in topics:
            operations += state_nodes(topic, first, epoch)
            states += partition_states(topic, first, is_new=True)
        context = self.context.with_topics([self._known(topic, first) for topic, first in topics])
        update = _to_all(context, topics=[topic for topic, _ in topics])
        return Effects(operations, [*_leader_and_isr(states, context), *update], context)

    def _known(self, topic: TopicImage, first: int) -> TopicImage:
        """The topic for the context: it knows which registrations the states are newer than, and brokers do not."""
        newest = newest_registration(self.context)
        old = self.context.topics[topic.name].partitions[:first] if first else ()
        new = (partition._replace(zxid=newest) for partition in topic.partitions[first:])
        return topic._replace(partitions=(*old, *new))

    def topics_deleted(self, topics: Sequence[TopicImage]) -> Effects:
        """These topics are gone from the store. Clients forget them before the logs go."""
        names = [topic.name for topic in topics]
        context = self.context.without_topics(names)
        stopped = [
            (replica, TopicPartition(topic.name, index))
            for topic in topics
            for index, partition in enumerate(topic.partitions)
            for replica in partition.replicas
        ]
        stops = _by_broker(stopped, context, StopReplica)
        return Effects((), [*_to_all(context, deleted=names), *stops], context)


def state_nodes(topic: TopicImage, first: int, controller_epoch: int) -> list[Operation]:
    """The nodes of the topic's partitions from number `first` on, with their first states."""
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
    """One command for each live broker that has items."""
    of_broker: dict[int, list[_Item]] = {}
    for broker_id, item in items:
        if broker_id in context.brokers:
            of_broker.setdefault(broker_id, []).append(item)
    return [Send(broker_id, command(found)) for broker_id, found in of_broker.items()]
