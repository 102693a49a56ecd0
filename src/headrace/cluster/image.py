"""The cluster's metadata as one immutable value. Every change creates a new image."""

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from headrace.types import TopicPartition

NO_LEADER: Final = -1
NEVER_WRITTEN: Final = -1
"""Version of a partition without a state node."""


class Endpoint(NamedTuple):
    """A broker's address on one listener."""

    listener: str
    host: str
    port: int
    security_protocol: str


class BrokerImage(NamedTuple):
    """A live broker."""

    id: int
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    epoch: int = -1
    """The czxid of its registration, which rises with every start; -1 if unknown."""

    def endpoint(self, listener: str) -> Endpoint | None:
        return next((endpoint for endpoint in self.endpoints if endpoint.listener == listener), None)


class PartitionImage(NamedTuple):
    """One partition. `version` is the version of its state node, for the next conditional write."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    version: int = 0
    zxid: int = -1
    """The transaction that wrote the state; -1 if unknown. Brokers with a later epoch have restarted since."""
    offline: tuple[int, ...] = ()
    """Offline replicas according to the controller: on dead brokers, or in failed log directories."""


class Assignment(NamedTuple):
    """The replicas of a partition, including those that a reassignment is `adding` and `removing` (KIP-455)."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def origin(self) -> tuple[int, ...]:
        return tuple(replica for replica in self.replicas if replica not in self.adding)

    @property
    def target(self) -> tuple[int, ...]:
        return tuple(replica for replica in self.replicas if replica not in self.removing)

    @property
    def is_moving(self) -> bool:
        return bool(self.adding or self.removing)

    def reassigned_to(self, target: Iterable[int]) -> "Assignment":
        """Return the assignment during a reassignment to `target`, which replaces any reassignment in progress."""
        before, after = dict.fromkeys(self.origin), dict.fromkeys(target)
        replicas = tuple(after | before)
        return Assignment(
            replicas,
            tuple(replica for replica in replicas if replica not in before),
            tuple(replica for replica in replicas if replica not in after),
        )

    def without(self, broker: int) -> "Assignment":
        return Assignment(*(tuple(replica for replica in part if replica != broker) for part in self))


class LeaderState(NamedTuple):
    """The leader and the in-sync replicas of a partition, as in its state node."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    version: int
    """The version of the node, which is the partition epoch."""
    controller_epoch: int
    """The epoch of the controller that wrote the state."""
    recovery: int = 0
    """1 while the partition recovers from an unclean election (KIP-704)."""
    zxid: int = -1
    """The transaction that wrote the state; -1 if this controller wrote it."""

    def elected(self, leader: int, isr: tuple[int, ...], *, recovery: int | None = None) -> "LeaderState":
        """Return the state under the next leader epoch. Writing it sets the version and the controller's epoch."""
        return self._replace(
            leader=leader,
            leader_epoch=self.leader_epoch + 1,
            isr=isr,
            recovery=self.recovery if recovery is None else recovery,
        )


class TopicImage(NamedTuple):
    """A topic; its partitions are numbered from 0 without gaps."""

    name: str
    topic_id: uuid.UUID
    partitions: tuple[PartitionImage, ...]


class ConfigResource(NamedTuple):
    """The owner of a set of dynamic settings. `kind` is its path below /config; `name` is empty for the default."""

    kind: str
    name: str


TOPIC_CONFIG: Final = "topics"
BROKER_CONFIG: Final = "brokers"
GROUP_CONFIG: Final = "groups"
CLIENT_METRICS_CONFIG: Final = "client-metrics"

_NO_CONFIG: Final[Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True)
class MetadataImage:
    """A snapshot of the metadata tree."""

    cluster_id: str = ""
    controller_id: int = NO_LEADER
    controller_epoch: int = 0
    brokers: Mapping[int, BrokerImage] = field(default_factory=dict)
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    names: Mapping[uuid.UUID, str] = field(default_factory=dict)
    configs: Mapping[ConfigResource, Mapping[str, str]] = field(default_factory=dict)

    def topic_by_id(self, topic_id: uuid.UUID) -> TopicImage | None:
        name = self.names.get(topic_id)
        return self.topics[name] if name is not None else None

    def topic_id_of(self, topic_partition: TopicPartition) -> uuid.UUID | None:
        """Return the id of the partition's topic; None if the partition does not exist."""
        topic = self.topics.get(topic_partition.topic)
        return topic.topic_id if topic is not None and topic_partition.partition < len(topic.partitions) else None

    def is_new(self, topic_partition: TopicPartition) -> bool:
        """Return True if the broker has not restarted since the partition's creation: starts raise the leader epoch."""
        return self.topics[topic_partition.topic].partitions[topic_partition.partition].leader_epoch == 0

    def config(self, kind: str, name: str) -> Mapping[str, str]:
        return self.configs.get(ConfigResource(kind, name), _NO_CONFIG)

    def with_topics(self, topics: Iterable[TopicImage]) -> "MetadataImage":
        """Return an image with `topics` added, in place of topics with the same names."""
        topics = tuple(topics)
        return replace(
            self,
            topics={**self.topics, **{topic.name: topic for topic in topics}},
            names={**self.names, **{topic.topic_id: topic.name for topic in topics}},
        )

    def without_topics(self, names: Iterable[str], *, recreated: Iterable[str] = ()) -> "MetadataImage":
        """Return an image without these topics and their settings.

        The settings of `recreated` are kept: they are already those of new topics with the same names.
        """
        gone = set(names)
        without_settings = gone.difference(recreated)
        return replace(
            self,
            topics={name: topic for name, topic in self.topics.items() if name not in gone},
            names={topic_id: name for topic_id, name in self.names.items() if name not in gone},
            configs={
                resource: values
                for resource, values in self.configs.items()
                if resource.kind != TOPIC_CONFIG or resource.name not in without_settings
            },
        )

    def with_configs(self, configs: Mapping[ConfigResource, Mapping[str, str]]) -> "MetadataImage":
        """Return an image with these settings; empty settings remove a resource."""
        merged = {**self.configs, **configs}
        return replace(self, configs={resource: values for resource, values in merged.items() if values})

    def with_brokers(self, brokers: Iterable[BrokerImage]) -> "MetadataImage":
        """Return an image in which exactly `brokers` are alive."""
        return replace(self, brokers={broker.id: broker for broker in sorted(brokers)})
