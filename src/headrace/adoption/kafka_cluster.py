"""A Kafka cluster's metadata, read from a KRaft metadata log or from ZooKeeper. Pure."""

import uuid
from collections import defaultdict
from typing import NamedTuple

from headrace.cluster.image import ConfigResource


class KafkaPartition(NamedTuple):
    """A partition of the Kafka cluster.

    `directories` has the ids of the replicas' log directories, in the order of `replicas`; empty if unknown.
    """

    replicas: tuple[int, ...]
    leader_epoch: int
    directories: tuple[uuid.UUID, ...] = ()


class KafkaCluster:
    """The metadata of a Kafka cluster. `source` is its place, for messages."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.topics: dict[str, uuid.UUID] = {}
        self.partitions: dict[uuid.UUID, dict[int, KafkaPartition]] = {}
        self.removed: set[uuid.UUID] = set()
        """Deleted topics, whose directories may still exist."""
        self.configs: dict[ConfigResource, dict[str, str]] = {}
        self.next_producer_id: int | None = None
        self.features: dict[str, int] = {}
        self.left_behind: defaultdict[str, set[str]] = defaultdict(set)
        """ACLs and other objects that cannot be adopted, by kind; the texts only distinguish them."""
