"""Commands from the controller to a broker. Pure.

They mean the same as Kafka's requests of these names. A single broker's controller passes them on in its process; in a
cluster, a broker makes them from the controller's requests.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from headrace.cluster.image import BrokerImage, TopicImage
from headrace.types import PartitionState, TopicPartition

DURING_DELETION: Final = -2
"""The leader, and the leader epoch, of a partition whose topic is being deleted."""


class LeaderAndIsr(NamedTuple):
    """Lead or follow these partitions. Sent to a broker before any client can learn of the change."""

    partitions: Sequence[PartitionState]


class UpdateMetadata(NamedTuple):
    """Update the metadata that clients see. `topics` are new or changed; `deleted` has names of deleted topics."""

    controller_id: int
    controller_epoch: int
    brokers: Sequence[BrokerImage]
    topics: Sequence[TopicImage] = ()
    deleted: Sequence[str] = ()


class StoppedReplica(NamedTuple):
    """A replica to stop, and to delete if `delete` is True."""

    topic_partition: TopicPartition
    leader_epoch: int = DURING_DELETION
    """The leader epoch; a replica with a later one is not stopped. Negative epochs override all others (KIP-570)."""
    delete: bool = True


class StopReplica(NamedTuple):
    """Stop serving these replicas."""

    replicas: Sequence[StoppedReplica]


Command: TypeAlias = LeaderAndIsr | UpdateMetadata | StopReplica
