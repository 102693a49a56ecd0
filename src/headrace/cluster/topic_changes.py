"""Decide the writes that create, grow and delete topics. Pure: no store, no clock.

Validates in the order of Kafka's ReplicationControlManager, with its errors.
"""

import uuid
from collections.abc import Container, Mapping, Sequence
from random import Random
from typing import Final, NamedTuple

from headrace.cluster import topic_names, znodes
from headrace.cluster.drafts import Draft
from headrace.cluster.image import (
    TOPIC_CONFIG,
    ConfigResource,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from headrace.cluster.placement import check_manual, place
from headrace.cluster.store import Create, Delete, Operation, Set
from headrace.config import BrokerConfig, ConfigError, parse_topic_overrides
from headrace.errors import ErrorCode, KafkaError
from headrace.wire.ids import new_id

MAX_PARTITIONS_PER_REQUEST: Final = 10_000
MAX_RECORDS_PER_REQUEST: Final = 10_000
"""As in Kafka (ReplicationControlManager, QuorumController)."""
_RESERVED_IDS: Final = frozenset({uuid.UUID(int=0), uuid.UUID(int=1)})


class NewTopic(NamedTuple):
    """A topic to create. -1 means the broker's default; `assignments` are (partition, replicas) in any order."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    assignments: Sequence[tuple[int, Sequence[int]]] = ()
    configs: Mapping[str, str | None] = {}


class NewPartitions(NamedTuple):
    """A topic to grow to `total` partitions; `assignments` are the new partitions' replicas, or None to place them."""

    name: str
    total: int
    assignments: Sequence[Sequence[int]] | None = None


def check_total(topics: Sequence[NewTopic], config: BrokerConfig) -> None:
    """Raise KafkaError(POLICY_VIOLATION) if a request would create too many partitions."""
    total = 0
    for new in topics:
        if new.assignments:
            total += len(new.assignments)
        else:
            total += config.num_partitions if new.partitions == -1 else max(0, new.partitions)
    if total > MAX_PARTITIONS_PER_REQUEST:
        raise KafkaError(
            ErrorCode.policy_violation,
            f"Excessively large number of partitions per request: {total}, but at most {MAX_PARTITIONS_PER_REQUEST} are"
            " allowed. Use several requests.",
        )


def create_topics(
    draft: Draft, topics: Sequence[NewTopic], config: BrokerConfig, random: Random
) -> list[TopicImage | KafkaError]:
    """Create all valid topics. Return the topic or the error for each.

    Raises KafkaError(POLICY_VIOLATION) if the request is too large: Kafka counts the records of its metadata log, one
    per topic, setting and partition.
    """
    check_total(topics, config)
    results: list[TopicImage | KafkaError] = []
    records = 0
    for new in topics:
        try:
            topic = create_topic(draft, new, config, random)
        except KafkaError as error:
            results.append(error.with_traceback(None))
            continue
        results.append(topic)
        records += 1 + len(new.configs) + len(topic.partitions)
        check_records(records)
    return results


def check_records(records: int) -> None:
    """Raise KafkaError(POLICY_VIOLATION) if one request would write too many metadata records in Kafka."""
    if records > MAX_RECORDS_PER_REQUEST:
        raise KafkaError(
            ErrorCode.policy_violation,
            "Unable to perform excessively large batch operation. A request may contain at most"
            f" {MAX_RECORDS_PER_REQUEST} topics, partitions and settings in total: use several requests.",
        )


def create_topic(draft: Draft, new: NewTopic, config: BrokerConfig, random: Random) -> TopicImage:
    """Create one topic in `draft`, and return it. Raises KafkaError if the request is invalid."""
    topic_names.validate(new.name)
    if new.name == topic_names.RESERVED:
        raise KafkaError(ErrorCode.invalid_request, f"Creation of internal topic {new.name} is prohibited.")
    if new.name in draft.topics:
        raise KafkaError(ErrorCode.topic_already_exists, f"Topic '{new.name}' already exists.")
    other = draft.collision(new.name)
    if other is not None:
        raise KafkaError(ErrorCode.invalid_topic_exception, f"Topic '{new.name}' collides with existing topic: {other}")
    overrides = _overrides(new.configs)
    replicas = _replicas(draft.base, new, config, random)
    topic = TopicImage(new.name, new_topic_id(draft.names), tuple(_new_partition(brokers) for brokers in replicas))
    draft.put(topic, topic_nodes(topic, overrides))
    draft.configure(topic.name, overrides)
    return topic


def internal_topic(name: str, config: BrokerConfig, brokers: int) -> NewTopic:
    """Return the internal topic `name` as the broker is configured to create it.

    Unless set explicitly, the replication factor is at most the number of brokers, so that one broker is enough to
    start. Raises KafkaError(INVALID_TOPIC_EXCEPTION) for another name.
    """
    if name == topic_names.GROUP_OFFSETS:
        factor = _factor("offsets.topic.replication.factor", config, brokers)
        return NewTopic(
            name,
            config.offsets_topic_num_partitions,
            factor,
            configs={
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": str(config.offsets_topic_segment_bytes),
            },
        )
    if name == topic_names.TRANSACTION_STATE:
        factor = _factor("transaction.state.log.replication.factor", config, brokers)
        in_sync = config.transaction_state_log_min_isr
        return NewTopic(
            name,
            config.transaction_state_log_num_partitions,
            factor,
            configs={
                "cleanup.policy": "compact",
                "compression.type": "uncompressed",
                "min.insync.replicas": str(
                    in_sync if config.is_set("transaction.state.log.min.isr") else min(in_sync, factor)
                ),
                "segment.bytes": str(config.transaction_state_log_segment_bytes),
                "unclean.leader.election.enable": "false",
            },
        )
    raise KafkaError(ErrorCode.invalid_topic_exception, f"{name} is not an internal topic of this broker.")


def _factor(setting: str, config: BrokerConfig, brokers: int) -> int:
    factor = config.value(setting)
    assert isinstance(factor, int)
    return factor if config.is_set(setting) else max(1, min(factor, brokers))


def grow_topics(
    draft: Draft, requests: Sequence[NewPartitions], random: Random
) -> list[tuple[TopicImage, int] | KafkaError]:
    """Add partitions for all valid requests. Return the topic and its first new partition, or the error, for each.

    Raises KafkaError(POLICY_VIOLATION) for too many topics.
    """
    check_records(len(requests))
    results: list[tuple[TopicImage, int] | KafkaError] = []
    room = MAX_PARTITIONS_PER_REQUEST
    for new in requests:
        present = len(draft.topics[new.name].partitions) if new.name in draft.topics else 0
        try:
            topic = grow_topic(draft, new, random, room=room)
        except KafkaError as error:
            results.append(error.with_traceback(None))
            continue
        room -= len(topic.partitions) - present
        results.append((topic, present))
    return results


def grow_topic(
    draft: Draft, new: NewPartitions, random: Random, *, room: int = MAX_PARTITIONS_PER_REQUEST
) -> TopicImage:
    """Add partitions to a topic in `draft`, and return it.

    Raises KafkaError if the request is invalid, or adds more than `room` partitions.
    """
    image = draft.base
    old = draft.topics.get(new.name)
    if old is None:
        raise KafkaError(ErrorCode.unknown_topic_or_partition)
    present = len(old.partitions)
    if new.total <= present:
        raise KafkaError(
            ErrorCode.invalid_partitions,
            f"The topic {new.name} currently has {present} partition(s); {new.total} would not be an increase.",
        )
    added = new.total - present
    if added > room:
        raise KafkaError(
            ErrorCode.policy_violation,
            f"More than {MAX_PARTITIONS_PER_REQUEST} partitions in one request are not allowed; use several requests.",
        )
    factor = len(old.partitions[0].replicas)
    if new.assignments is None:
        replicas = place(_racks(image), added, factor, random, first_partition=present)
    else:
        if len(new.assignments) != added:
            raise KafkaError(
                ErrorCode.invalid_replica_assignment,
                f"Attempted to add {added} additional partition(s), but {len(new.assignments)} assignment(s) were"
                " specified.",
            )
        replicas = [check_manual(brokers, image.brokers, factor) for brokers in new.assignments]
    topic = TopicImage(old.name, old.topic_id, (*old.partitions, *(_new_partition(brokers) for brokers in replicas)))
    draft.put(topic, [Set(znodes.topic_path(topic.name), _assignment(topic))])
    return topic


def delete_topics(draft: Draft, names: Sequence[str], ids: Mapping[str, uuid.UUID]) -> list[TopicImage | KafkaError]:
    """Delete all existing topics. Return the deleted topic or the error for each name."""
    results: list[TopicImage | KafkaError] = []
    for name in names:
        try:
            results.append(delete_topic(draft, name, ids.get(name)))
        except KafkaError as error:
            results.append(error.with_traceback(None))
    return results


def delete_topic(draft: Draft, name: str, topic_id: uuid.UUID | None = None) -> TopicImage:
    """Delete a topic and its settings; with `topic_id`, only if it has that id.

    Raises KafkaError(UNKNOWN_TOPIC_OR_PARTITION).
    """
    topic = draft.topics.get(name)
    if topic is None or topic_id not in (None, topic.topic_id):
        raise KafkaError(ErrorCode.unknown_topic_or_partition)
    operations: list[Operation] = []
    for partition in range(len(topic.partitions)):
        operations.append(Delete(znodes.state_path(name, partition)))
        operations.append(Delete(znodes.partition_path(name, partition)))
    operations.append(Delete(znodes.partitions_path(name)))
    operations.append(Delete(znodes.topic_path(name)))
    operations.append(Delete(znodes.config_path(ConfigResource(TOPIC_CONFIG, name))))
    draft.remove(topic, operations)
    return topic


def topic_nodes(topic: TopicImage, overrides: Mapping[str, str]) -> list[Operation]:
    """Return the operations that create a new topic's nodes. The controller adds those of its partitions."""
    return [
        # In Kafka's order: a reader that sees the topic finds its settings.
        Create(znodes.config_path(ConfigResource(TOPIC_CONFIG, topic.name)), znodes.encode_config(overrides)),
        Create(znodes.topic_path(topic.name), _assignment(topic)),
    ]


def _assignment(topic: TopicImage) -> bytes:
    replicas = {index: partition.replicas for index, partition in enumerate(topic.partitions)}
    return znodes.encode_topic(topic.topic_id, replicas)


def _overrides(configs: Mapping[str, str | None]) -> dict[str, str]:
    missing = [key for key, value in configs.items() if value is None]
    if missing:
        raise KafkaError(ErrorCode.invalid_config, "Null value not supported for topic configs: " + ",".join(missing))
    overrides = {key: value for key, value in configs.items() if value is not None}
    try:
        parse_topic_overrides(overrides)
    except ConfigError as error:
        raise KafkaError(ErrorCode.invalid_config, str(error)) from error
    return overrides


def _replicas(image: MetadataImage, new: NewTopic, config: BrokerConfig, random: Random) -> list[tuple[int, ...]]:
    if new.assignments:
        return _manual_replicas(image, new)
    if new.replication_factor < -1 or new.replication_factor == 0:
        raise KafkaError(
            ErrorCode.invalid_replication_factor,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if new.partitions < -1 or new.partitions == 0:
        raise KafkaError(
            ErrorCode.invalid_partitions,
            "Number of partitions was set to an invalid non-positive value.",
        )
    partitions = config.num_partitions if new.partitions == -1 else new.partitions
    factor = config.default_replication_factor if new.replication_factor == -1 else new.replication_factor
    return place(_racks(image), partitions, factor, random)


def _racks(image: MetadataImage) -> dict[int, str | None]:
    return {broker.id: broker.rack for broker in image.brokers.values()}


def _manual_replicas(image: MetadataImage, new: NewTopic) -> list[tuple[int, ...]]:
    for name, value in (("replication factor", new.replication_factor), ("number of partitions", new.partitions)):
        if value != -1:
            raise KafkaError(
                ErrorCode.invalid_request,
                f"With a manual partition assignment the {name} must be -1, but it is {value}.",
            )
    replicas: dict[int, tuple[int, ...]] = {}
    factor: int | None = None
    for partition, brokers in new.assignments:
        if partition in replicas:
            raise KafkaError(ErrorCode.invalid_replica_assignment, f"Partition {partition} is assigned more than once.")
        replicas[partition] = check_manual(brokers, image.brokers, factor)
        factor = len(brokers)
    missing = set(range(len(replicas))) - replicas.keys()
    if missing:
        raise KafkaError(
            ErrorCode.invalid_replica_assignment,
            f"Partitions must be numbered from 0 without gaps, but partition {min(missing)} is not assigned.",
        )
    return [replicas[partition] for partition in range(len(replicas))]


def new_topic_id(taken: Container[uuid.UUID]) -> uuid.UUID:
    """Return a random id that is neither in `taken` nor reserved, and whose text does not begin with a hyphen."""
    while True:
        topic_id = new_id()
        if topic_id not in _RESERVED_IDS and topic_id not in taken and topic_id.bytes[0] >> 2 != 62:
            return topic_id


def _new_partition(replicas: tuple[int, ...]) -> PartitionImage:
    return PartitionImage(leader=replicas[0], leader_epoch=0, replicas=replicas, isr=replicas)
