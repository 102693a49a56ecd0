"""Decide how to adopt directories without Headrace's metadata, such as Kafka's. Pure.

If the directories cannot be adopted, an error says what to do. Nothing has been changed at this point.
"""

import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from headrace.adoption.kafka_cluster import KafkaCluster, KafkaPartition
from headrace.cluster import topic_names, znodes
from headrace.cluster.image import (
    BROKER_CONFIG,
    GROUP_CONFIG,
    TOPIC_CONFIG,
    ConfigResource,
    PartitionImage,
    TopicImage,
)
from headrace.cluster.store import Create, Operation, Set
from headrace.cluster.topic_changes import internal_topic, new_topic_id, topic_nodes
from headrace.config import BrokerConfig, ConfigError, check_dynamic, parse_topic_overrides
from headrace.config.group import parse_client_metrics, parse_group_overrides
from headrace.errors import ErrorCode, KafkaError
from headrace.wire.ids import id_to_text
from headrace.wording import count

PARTIAL: Final = "headrace.adopt.partial"
_UNASSIGNED_DIRECTORIES: Final = 100
"""Smaller ids are Kafka's reserved ids for 'unassigned', 'lost' and 'migrating'."""
_SHOWN: Final = 5
_NO_CONTROLLER_YET: Final = 0
"""The controller epoch of states not written by a controller."""
_KEEP_EVERYTHING: Final[Mapping[str, str]] = {"retention.ms": "-1", "retention.bytes": "-1"}
"""For a topic with unknown settings, because records that the default retention deletes cannot be restored."""
_TRANSACTION_VERSION: Final = "transaction.version"
_COMPACT: Final[Mapping[str, str]] = {"cleanup.policy": "compact"}


class FoundPartition(NamedTuple):
    """A partition in a log directory. `topic_id` is None and `leader_epoch` -1 if its files do not contain them.

    `is_compacted` is True if the checkpoint file of the log cleaner lists it.
    """

    topic: str
    partition: int
    topic_id: uuid.UUID | None
    leader_epoch: int
    is_compacted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """The contents of a new metadata store. `left_out` has a line for each thing that was found but not adopted."""

    source: str
    topics: tuple[TopicImage, ...] = ()
    configs: Mapping[ConfigResource, Mapping[str, str]] = field(default_factory=dict)
    next_producer_id: int | None = None
    features: Mapping[str, int] = field(default_factory=dict)
    """Finalized feature levels; empty if the cluster has none."""
    left_out: tuple[str, ...] = ()

    def summary(self) -> str:
        """Describe the adoption to the operator: numbers of topics, partitions and settings, and their source."""
        partitions = sum(len(topic.partitions) for topic in self.topics)
        settings = sum(map(len, self.configs.values()))
        return (
            f"{count(len(self.topics), 'topic')}, {count(partitions, 'partition')} and {count(settings, 'setting')}"
            f" from {self.source}"
        )


def adopt(
    found: Iterable[FoundPartition],
    cluster: KafkaCluster | None,
    config: BrokerConfig,
    directory_ids: Collection[uuid.UUID],
) -> Adoption:
    """Plan the adoption of log directories (with the ids `directory_ids`); this broker becomes the only replica.

    `cluster` is Kafka's metadata, if present. Without it, retention deletes nothing until the topics get settings.
    Raises KafkaError if the directories cannot be adopted.
    """
    partitions: dict[str, dict[int, FoundPartition]] = {}
    for item in found:
        if topic_names.is_valid(item.topic) and item.topic != topic_names.RESERVED:
            partitions.setdefault(item.topic, {})[item.partition] = item
    if cluster is None:
        return _adopt_directories(partitions, config)
    return _adopt_cluster(partitions, cluster, config, directory_ids)


def adopted(adoption: Adoption, broker_id: int) -> list[Operation]:
    """Return the operations that write the adoption to a new metadata store, which contains only the fixed nodes."""
    operations: list[Operation] = []
    for resource, values in adoption.configs.items():
        if resource.kind != TOPIC_CONFIG:
            operations.append(Create(znodes.config_path(resource), znodes.encode_config(values)))
    for topic in adoption.topics:
        overrides = adoption.configs.get(ConfigResource(TOPIC_CONFIG, topic.name), {})
        operations += [*topic_nodes(topic, overrides), *_state_nodes(topic)]
    if adoption.next_producer_id:
        block = znodes.encode_producer_ids(broker_id, 0, adoption.next_producer_id - 1)
        operations.append(Set(znodes.PRODUCER_ID_BLOCK, block))
    if adoption.features:
        operations.append(Create(znodes.FEATURES, znodes.encode_features(adoption.features)))
    return operations


def _state_nodes(topic: TopicImage) -> list[Operation]:
    """Return the operations that create the nodes of the topic's partitions."""
    operations: list[Operation] = [Create(znodes.partitions_path(topic.name))]
    for index, partition in enumerate(topic.partitions):
        operations.append(Create(znodes.partition_path(topic.name, index)))
        state = znodes.encode_state(partition, _NO_CONTROLLER_YET)
        operations.append(Create(znodes.state_path(topic.name, index), state))
    return operations


def _features(cluster: KafkaCluster) -> Mapping[str, int]:
    """Return the levels of supported features. Kafka stores no level for a feature that is not in use."""
    if not cluster.features:
        return {}
    return {_TRANSACTION_VERSION: cluster.features.get(_TRANSACTION_VERSION, 0)}


# -- without metadata --------------------------------------------------------------------------------------------------


def _adopt_directories(partitions: Mapping[str, Mapping[int, FoundPartition]], config: BrokerConfig) -> Adoption:
    topics: list[TopicImage] = []
    configs: dict[ConfigResource, Mapping[str, str]] = {}
    gaps: list[str] = []
    taken: dict[uuid.UUID, str] = {}
    for name, present in partitions.items():
        ids = {item.topic_id for item in present.values() if item.topic_id is not None}
        if len(ids) > 1:
            raise _refused(
                f"the directories of topic {name} have different topic ids ({', '.join(sorted(map(str, ids)))}): some "
                "belong to a deleted topic of the same name. Move the deleted topic's directories away"
            )
        topic_id = ids.pop() if ids else new_topic_id(taken)
        if topic_id in taken:
            raise _refused(f"topics {taken[topic_id]} and {name} have the same topic id {topic_id}: move one away")
        taken[topic_id] = name
        gaps += [f"{name}-{index}" for index in range(max(present)) if index not in present]
        epochs = [present[index].leader_epoch if index in present else -1 for index in range(max(present) + 1)]
        topics.append(_on_this_broker(name, topic_id, epochs, config))
        overrides = _KEEP_EVERYTHING
        if name in (topic_names.GROUP_OFFSETS, topic_names.TRANSACTION_STATE):
            known = internal_topic(name, config, 1).configs
            overrides = {key: value for key, value in known.items() if value}
        elif any(item.is_compacted for item in present.values()):
            overrides = _COMPACT
        configs[ConfigResource(TOPIC_CONFIG, name)] = overrides
    if gaps and not config.headrace_adopt_partial:
        raise _refused(
            f"the directories of {_listed(gaps)} are missing, but a later partition is present: set log.dirs to "
            f"all directories of the broker, or start with {PARTIAL}=true to create the missing partitions empty"
        )
    unknown_settings = (
        "the settings of topics, which are not stored in the directories: nothing expires until retention.ms is set. "
        "`headrace takeover` reads them from ZooKeeper; for a KRaft metadata log in another directory, set "
        "metadata.log.dir"
    )
    unknown_ends = (
        "numbers of partitions: a topic ends with the last partition found. If a log directory was lost with later "
        "ones, add them again"
    )
    return Adoption(
        source="the log directories",
        topics=tuple(topics),
        configs=configs,
        left_out=(unknown_settings, unknown_ends) if topics else (),
    )


# -- with the cluster's metadata ---------------------------------------------------------------------------------------


def _adopt_cluster(
    partitions: Mapping[str, Mapping[int, FoundPartition]],
    cluster: KafkaCluster,
    config: BrokerConfig,
    directory_ids: Collection[uuid.UUID],
) -> Adoption:
    left_out = [count(len(items), what) for what, items in cluster.left_behind.items() if items]
    configs = _usable_configs(cluster, config, left_out)
    _check_tiers(cluster)
    _check_known(partitions, cluster)
    _check_replicas(partitions, cluster, config, directory_ids)
    topics = []
    for name, topic_id in cluster.topics.items():
        members = cluster.partitions[topic_id]
        if sorted(members) != list(range(len(members))):
            raise _refused(
                f"the partitions of topic {name} in the cluster's metadata have a gap: {sorted(members)}. The"
                " metadata is incomplete: restore it from a backup"
            )
        present = partitions.get(name, {})
        epochs = [
            max(members[index].leader_epoch, present[index].leader_epoch if index in present else -1)
            for index in range(len(members))
        ]
        topics.append(_on_this_broker(name, topic_id, epochs, config))
    return Adoption(
        source=cluster.source,
        topics=tuple(topics),
        configs=configs,
        next_producer_id=cluster.next_producer_id,
        features=_features(cluster),
        left_out=tuple(left_out),
    )


def _check_tiers(cluster: KafkaCluster) -> None:
    tiered = [
        resource.name
        for resource, values in cluster.configs.items()
        if resource.kind == TOPIC_CONFIG and values.get("remote.storage.enable", "").strip().lower() == "true"
    ]
    if tiered:
        raise _refused(
            f"Headrace cannot read tiered storage, which may hold older records of {_listed(tiered)} "
            "(remote.storage.enable=true). Restore the records with Kafka: copy them into a topic without tiered "
            "storage, then delete the tiered one"
        )


def _check_known(partitions: Mapping[str, Mapping[int, FoundPartition]], cluster: KafkaCluster) -> None:
    """Raise KafkaError for partitions that are neither in the metadata nor left over from a deleted topic."""
    unknown = []
    for name, present in partitions.items():
        topic_id = cluster.topics.get(name)
        members = cluster.partitions[topic_id] if topic_id is not None else {}
        for index, each in present.items():
            is_left_over = each.topic_id is not None and each.topic_id in cluster.removed
            is_member = index in members and each.topic_id in (None, topic_id)
            if not is_left_over and not is_member:
                unknown.append(f"{name}-{index}")
    if unknown:
        raise _refused(
            f"the directories contain {_listed(unknown)}, but the cluster's metadata does not. Move away partitions of "
            "other clusters; if the partitions belong to this one, restore the metadata from a backup"
        )


def _check_replicas(
    partitions: Mapping[str, Mapping[int, FoundPartition]],
    cluster: KafkaCluster,
    config: BrokerConfig,
    directory_ids: Collection[uuid.UUID],
) -> None:
    shared, elsewhere, missing = [], [], []
    for name, topic_id in cluster.topics.items():
        for index, partition in cluster.partitions[topic_id].items():
            if config.node_id not in partition.replicas:
                elsewhere.append(f"{name}-{index}")
                continue
            if len(partition.replicas) > 1:
                shared.append(f"{name}-{index}")
            if index not in partitions.get(name, {}):
                missing.append((f"{name}-{index}", _directory_of(partition, config.node_id)))
    if (shared or elsewhere) and not config.headrace_adopt_partial:
        what = [f"only other brokers have {_listed(elsewhere)}"] if elsewhere else []
        what += [f"other brokers also have replicas of {_listed(shared)}"] if shared else []
        raise _refused(
            f"the directory belongs to one of several brokers: {', and '.join(what)}. Move all partitions to "
            f"broker {config.node_id} alone first (kafka-reassign-partitions.sh) and stop it cleanly, or start with "
            f"{PARTIAL}=true to use only the replicas in the directory; partitions without a replica start empty"
        )
    for name, directory in missing:
        if directory is not None and directory not in directory_ids:
            raise _refused(
                f"{name} is in the log directory with id {id_to_text(directory)} (see directory.id in "
                "meta.properties), which is not in log.dirs. List all directories of the broker"
            )
    if missing and not config.headrace_adopt_partial:
        names = [name for name, _ in missing]
        raise _refused(
            f"the directories of {_listed(names)}, which belong to this broker, are missing. Restore them, set "
            f"log.dirs to all directories of the broker, or start with {PARTIAL}=true to create the partitions empty"
        )


def _directory_of(partition: KafkaPartition, broker_id: int) -> uuid.UUID | None:
    if len(partition.directories) != len(partition.replicas):
        return None
    directory = partition.directories[partition.replicas.index(broker_id)]
    return directory if directory.int >= _UNASSIGNED_DIRECTORIES else None


def _usable_configs(
    cluster: KafkaCluster, config: BrokerConfig, left_out: list[str]
) -> dict[ConfigResource, Mapping[str, str]]:
    """Return the settings that this broker supports; the others are added to `left_out`."""
    configs: dict[ConfigResource, Mapping[str, str]] = {}
    for resource, values in cluster.configs.items():
        if resource.kind == TOPIC_CONFIG and resource.name not in cluster.topics:
            continue
        if resource.kind == BROKER_CONFIG and resource.name not in ("", str(config.node_id)):
            continue
        check = _CHECKS.get(resource.kind, parse_client_metrics)
        usable = {}
        for key, value in values.items():
            try:
                if resource.kind == BROKER_CONFIG:
                    check_dynamic(key, value, per_broker=bool(resource.name))
                elif key != "remote.storage.enable":
                    check({key: value})
            except ConfigError as error:
                left_out.append(f"{key}={value} of {resource.kind} {resource.name or '(default)'}: {error}")
            else:
                usable[key] = value
        if usable:
            configs[resource] = usable
    return configs


_CHECKS: Final[Mapping[str, Callable[[Mapping[str, str]], object]]] = {
    TOPIC_CONFIG: parse_topic_overrides,
    GROUP_CONFIG: parse_group_overrides,
}


def _on_this_broker(name: str, topic_id: uuid.UUID, epochs: Iterable[int], config: BrokerConfig) -> TopicImage:
    replicas = (config.node_id,)
    partitions = tuple(PartitionImage(config.node_id, max(epoch, 0), replicas, replicas) for epoch in epochs)
    return TopicImage(name, topic_id, partitions)


def _listed(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _refused(why: str) -> KafkaError:
    return KafkaError(ErrorCode.kafka_storage_error, f"The directory cannot be adopted and was not changed: {why}.")
