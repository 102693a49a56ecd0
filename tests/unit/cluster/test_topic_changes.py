import uuid
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import pytest

from headrace.cluster import topic_changes
from headrace.cluster.drafts import Draft
from headrace.cluster.image import TOPIC_CONFIG, ConfigResource, MetadataImage
from headrace.cluster.store import Create, Delete, Set
from headrace.cluster.topic_changes import (
    NewPartitions,
    NewTopic,
    create_topic,
    create_topics,
    delete_topic,
    grow_topic,
    grow_topics,
    internal_topic,
)
from headrace.config import BrokerConfig
from headrace.errors import ErrorCode, KafkaError
from tests.unit.cluster.clusters import cluster_of

RANDOM = Random(1)


def with_topic(name: str = "t", partitions: int = 2, *brokers: int) -> MetadataImage:
    image = cluster_of(*(brokers or (0,)))
    return image.with_topics([create_topic(Draft(image), NewTopic(name, partitions), BrokerConfig(), RANDOM)])


def test_the_first_replicas_lead_a_new_topic_with_epoch_0() -> None:
    new = NewTopic("t", assignments=((1, (2, 1)), (0, (1, 2))), configs={"retention.ms": "5"})
    draft = Draft(cluster_of(1, 2))
    topic = create_topic(draft, new, BrokerConfig(), RANDOM)
    assert [(p.leader, p.leader_epoch, p.replicas, p.isr) for p in topic.partitions] == [
        (1, 0, (1, 2), (1, 2)),
        (2, 0, (2, 1), (2, 1)),
    ]
    assert draft.configs == {ConfigResource(TOPIC_CONFIG, "t"): {"retention.ms": "5"}}
    assert [operation.path for operation in draft.operations] == ["/config/topics/t", "/brokers/topics/t"]
    assert all(isinstance(operation, Create) for operation in draft.operations)


def test_a_topic_without_values_uses_the_brokers_defaults() -> None:
    config = BrokerConfig({"num.partitions": "3", "default.replication.factor": "2"})
    topic = create_topic(Draft(cluster_of(1, 2)), NewTopic("t"), config, RANDOM)
    assert [len(partition.replicas) for partition in topic.partitions] == [2, 2, 2]


def test_invalid_topics_are_refused() -> None:
    draft = Draft(with_topic())
    create_topic(draft, NewTopic("a.b"), BrokerConfig(), RANDOM)
    refused: Sequence[tuple[dict[str, Any], ErrorCode]] = [
        ({"name": "a b"}, ErrorCode.invalid_topic_exception),
        ({"name": "t"}, ErrorCode.topic_already_exists),
        ({"name": "a_b"}, ErrorCode.invalid_topic_exception),
        ({"name": "__cluster_metadata"}, ErrorCode.invalid_request),
        ({"partitions": 0}, ErrorCode.invalid_partitions),
        ({"partitions": -2}, ErrorCode.invalid_partitions),
        ({"replication_factor": 0}, ErrorCode.invalid_replication_factor),
        ({"replication_factor": 3}, ErrorCode.invalid_replication_factor),
        ({"configs": {"nothing": "1"}}, ErrorCode.invalid_config),
        ({"configs": {"retention.ms": "x"}}, ErrorCode.invalid_config),
        ({"configs": {"retention.ms": None}}, ErrorCode.invalid_config),
        ({"partitions": 1, "assignments": ((0, (0,)),)}, ErrorCode.invalid_request),
        ({"replication_factor": 1, "assignments": ((0, (0,)),)}, ErrorCode.invalid_request),
        ({"assignments": ((1, (0,)),)}, ErrorCode.invalid_replica_assignment),
        ({"assignments": ((0, (0,)), (0, (0,)))}, ErrorCode.invalid_replica_assignment),
        ({"assignments": ((0, (0,)), (1, ()))}, ErrorCode.invalid_replica_assignment),
    ]
    for arguments, code in refused:
        with pytest.raises(KafkaError) as caught:
            create_topic(draft, NewTopic(**{"name": "new", **arguments}), BrokerConfig(), RANDOM)
        assert caught.value.code == code, arguments


ASSIGNED = tuple((index, (0,)) for index in range(51))


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit requests to 100 partitions and records."""
    assert topic_changes.MAX_PARTITIONS_PER_REQUEST == topic_changes.MAX_RECORDS_PER_REQUEST == 10_000
    monkeypatch.setattr(topic_changes, "MAX_PARTITIONS_PER_REQUEST", 100)
    monkeypatch.setattr(topic_changes, "MAX_RECORDS_PER_REQUEST", 100)


def outcome(topics: list[NewTopic]) -> int | ErrorCode:
    """Return the number of results of one creation request, or the error that refuses all of it."""
    try:
        return len(create_topics(Draft(cluster_of(0)), topics, BrokerConfig(), RANDOM))
    except KafkaError as error:
        return error.code


@pytest.mark.usefixtures("small_limits")
def test_one_creation_request_is_limited_as_in_kafka() -> None:
    """tests/parity has Kafka's limits."""
    requests = [
        ([NewTopic("a", 99)], False),
        ([NewTopic("a", 100)], True),
        ([NewTopic("a", 101)], True),
        ([NewTopic("a", 51), NewTopic("b", 51)], True),
        ([NewTopic("not legal!", 51), NewTopic("b", 51)], True),
        ([NewTopic("a", 50), NewTopic("b", assignments=ASSIGNED)], True),
        ([NewTopic("a", 98), NewTopic("b", -1)], True),
        ([NewTopic("a", 98), NewTopic("b", -5)], False),
        ([NewTopic(f"t{number}", 1) for number in range(50)], False),
        ([NewTopic(f"t{number}", 1) for number in range(51)], True),
        ([NewTopic(f"t{number}", 1, configs={"retention.ms": "1"}) for number in range(34)], True),
        ([NewTopic(f"t{number}", -5) for number in range(101)], False),
    ]
    for topics, refused in requests:
        assert outcome(topics) == (ErrorCode.policy_violation if refused else len(topics)), topics


@pytest.mark.usefixtures("small_limits")
def test_the_growth_of_one_request_is_limited() -> None:
    draft = Draft(with_topic("t", 1))
    create_topic(draft, NewTopic("u", 1), BrokerConfig(), RANDOM)
    first, second = grow_topics(draft, [NewPartitions("t", 52), NewPartitions("u", 52)], RANDOM)
    assert not isinstance(first, KafkaError)
    assert isinstance(second, KafkaError)
    assert second.code == ErrorCode.policy_violation
    with pytest.raises(KafkaError, match="excessively large"):
        grow_topics(draft, [NewPartitions(f"n{number}", 5) for number in range(101)], RANDOM)


def test_names_that_differ_only_in_dots_and_underscores_collide() -> None:
    draft = Draft(with_topic("a_b.c"))
    assert draft.collision("a.b_c") == "a_b.c"
    assert draft.collision("abc") is None
    create_topic(draft, NewTopic("x.y"), BrokerConfig(), RANDOM)
    assert (draft.collision("x_y"), draft.collision("x.y")) == ("x.y", None)


def test_a_topic_with_another_id_is_not_deleted() -> None:
    with pytest.raises(KafkaError) as caught:
        delete_topic(Draft(with_topic("t", 1)), "t", uuid.uuid4())
    assert caught.value.code == ErrorCode.unknown_topic_or_partition


def test_new_partitions_have_as_many_replicas() -> None:
    draft = Draft(with_topic("t", 1))
    topic = grow_topic(draft, NewPartitions("t", 3), RANDOM)
    assert [partition.replicas for partition in topic.partitions] == [(0,)] * 3
    (operation,) = draft.operations
    assert isinstance(operation, Set)
    assert b'"partitions":{"0":[0],"1":[0],"2":[0]}' in operation.data


def test_invalid_growth_is_refused() -> None:
    refused: Sequence[tuple[str, int, Sequence[Sequence[int]] | None, ErrorCode]] = [
        ("nothing", 3, None, ErrorCode.unknown_topic_or_partition),
        ("t", 2, None, ErrorCode.invalid_partitions),
        ("t", -1, None, ErrorCode.invalid_partitions),
        ("t", 20_000, None, ErrorCode.policy_violation),
        ("t", 4, [[0]], ErrorCode.invalid_replica_assignment),
        ("t", 3, [[7]], ErrorCode.invalid_replica_assignment),
        ("t", 3, [[0, 1]], ErrorCode.invalid_replica_assignment),
    ]
    for name, total, assignments, code in refused:
        with pytest.raises(KafkaError) as caught:
            grow_topic(Draft(with_topic()), NewPartitions(name, total, assignments), RANDOM)
        assert caught.value.code == code, (name, total, assignments)


def test_a_deleted_topic_is_removed_completely() -> None:
    draft = Draft(with_topic("t", 1))
    topic = delete_topic(draft, "t")
    assert (draft.topics, draft.names) == ({}, {})
    assert draft.operations == [
        Delete("/brokers/topics/t/partitions/0/state"),
        Delete("/brokers/topics/t/partitions/0"),
        Delete("/brokers/topics/t/partitions"),
        Delete("/brokers/topics/t"),
        Delete("/config/topics/t"),
    ]
    assert topic.name == "t"
    with pytest.raises(KafkaError):
        delete_topic(draft, "t")


def test_internal_topics_fit_a_small_cluster_by_default() -> None:
    cases: Sequence[tuple[Mapping[str, str], int, int, str]] = [
        ({}, 1, 1, "1"),
        ({}, 2, 2, "2"),
        ({}, 5, 3, "2"),
        ({"transaction.state.log.replication.factor": "3", "transaction.state.log.min.isr": "2"}, 1, 3, "2"),
    ]
    for settings, brokers, factor, in_sync in cases:
        topic = internal_topic("__transaction_state", BrokerConfig(settings), brokers)
        assert (topic.partitions, topic.replication_factor) == (50, factor), brokers
        assert topic.configs["min.insync.replicas"] == in_sync
        assert topic.configs["cleanup.policy"] == "compact"


def test_the_offsets_topic_is_compacted() -> None:
    topic = internal_topic("__consumer_offsets", BrokerConfig({"offsets.topic.num.partitions": "7"}), 1)
    assert (topic.partitions, topic.replication_factor, topic.configs["cleanup.policy"]) == (7, 1, "compact")
    with pytest.raises(KafkaError, match="not an internal topic"):
        internal_topic("orders", BrokerConfig(), 1)
