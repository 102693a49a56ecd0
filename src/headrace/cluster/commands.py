"""The commands by which a controller tells brokers what to lead, what to know and what to drop. Pure values.

They have the meaning of the requests of the same names (`LeaderAndIsr`, `UpdateMetadata`, `StopReplica`). A controller
hands them to the broker in its own process as they are.
"""

import uuid
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from headrace.cluster.image import BrokerImage, TopicImage
from headrace.types import TopicPartition


class PartitionState(NamedTuple):
    """The leader and the replicas of one partition. `is_new` when it has never had a log."""

    topic: str
    topic_id: uuid.UUID
    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    is_new: bool


class LeaderAndIsr(NamedTuple):
    """Lead or follow these partitions. A broker gets this before any client can learn of the change."""

    partitions: Sequence[PartitionState]


class UpdateMetadata(NamedTuple):
    """Answer clients with this. `topics` are new or changed, `deleted` are names of topics that are gone."""

    controller_id: int
    controller_epoch: int
    brokers: Sequence[BrokerImage]
    topics: Sequence[TopicImage] = ()
    deleted: Sequence[str] = ()


class StopReplica(NamedTuple):
    """Stop serving these partitions and delete their logs."""

    partitions: Sequence[TopicPartition]


Command: TypeAlias = LeaderAndIsr | UpdateMetadata | StopReplica


def partition_states(topic: TopicImage, first: int, *, is_new: bool) -> list[PartitionState]:
    """The topic's partitions from number `first` on."""
    return [
        PartitionState(
            topic.name,
            topic.topic_id,
            index,
            partition.leader,
            partition.leader_epoch,
            partition.replicas,
            partition.isr,
            is_new,
        )
        for index, partition in enumerate(topic.partitions)
        if index >= first
    ]
