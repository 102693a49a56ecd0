"""Commands from the controller to a broker. Pure.

They correspond to Kafka's requests with the same names. A single broker's controller passes them on within the process;
in a cluster with ZooKeeper, a broker decodes them from the controller's requests.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from headrace.cluster.image import BrokerImage, TopicImage
from headrace.types import PartitionState, TopicPartition

DURING_DELETION: Final = -2
"""The leader in UpdateMetadata, and the leader epoch in StopReplica, of a partition whose topic is being deleted."""


class LeaderAndIsr(NamedTuple):
    """Lead or follow these partitions. Sent to a broker before clients can see the change."""

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
    """A replica with a later leader epoch is not stopped. A negative epoch stops every replica (KIP-570)."""
    delete: bool = True


class StopReplica(NamedTuple):
    """Stop serving these replicas."""

    replicas: Sequence[StoppedReplica]


Command: TypeAlias = LeaderAndIsr | UpdateMetadata | StopReplica
