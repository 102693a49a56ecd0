"""The commands of a controller to the brokers. Pure values.

They mean the same as Kafka's requests of these names. The controller passes them to the broker in its own process.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from headrace.cluster.image import BrokerImage, TopicImage
from headrace.types import PartitionState, TopicPartition


class LeaderAndIsr(NamedTuple):
    """Lead or follow these partitions. Sent to a broker before any client can learn of the change."""

    partitions: Sequence[PartitionState]


class UpdateMetadata(NamedTuple):
    """Update the metadata that clients see. `topics` are new or changed, `deleted` are names of deleted topics."""

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
    """Return the states of the topic's partitions, starting with partition `first`."""
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
            partition_epoch=partition.version,
        )
        for index, partition in enumerate(topic.partitions)
        if index >= first
    ]
