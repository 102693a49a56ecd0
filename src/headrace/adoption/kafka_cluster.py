"""What a Kafka cluster knew of its topics, read from where it kept that: a KRaft metadata log, or ZooKeeper. Pure."""

import uuid
from collections import Counter
from typing import NamedTuple

from headrace.cluster.image import ConfigResource


class KafkaPartition(NamedTuple):
    """`directories` has the id of the log directory of each of `replicas`; empty where brokers had only one."""

    replicas: tuple[int, ...]
    leader_epoch: int
    directories: tuple[uuid.UUID, ...] = ()


class KafkaCluster:
    """Built up by those who read it; `source` names where that was, for the operator."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.topics: dict[str, uuid.UUID] = {}
        self.partitions: dict[uuid.UUID, dict[int, KafkaPartition]] = {}
        self.removed: set[uuid.UUID] = set()
        """Topics that were deleted; their directories may still be there."""
        self.configs: dict[ConfigResource, dict[str, str]] = {}
        self.next_producer_id: int | None = None
        self.features: dict[str, int] = {}
        self.left_behind: Counter[str] = Counter()
        """What there is and cannot be adopted."""
