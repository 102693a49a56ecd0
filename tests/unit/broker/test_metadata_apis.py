"""Metadata, DescribeCluster, DescribeTopicPartitions, as Kafka answers them."""

import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.apis.metadata import CLUSTER_OPERATIONS, TOPIC_OPERATIONS, UNKNOWN_OPERATIONS, MetadataApis
from headrace.cluster.stores.embedded import EmbeddedStore
from headrace.cluster.topic_changes import NewTopic
from headrace.config import BrokerConfig
from headrace.errors import ErrorCode, KafkaError
from headrace.server.context import Handler
from headrace.wire.apis import ApiKey
from tests.unit.broker.asking import ask, every_version
from tests.unit.cluster.clusters import Cluster, broker, started

METADATA, CLUSTER, PARTITIONS = ApiKey.METADATA, ApiKey.DESCRIBE_CLUSTER, ApiKey.DESCRIBE_TOPIC_PARTITIONS
Routes = dict[ApiKey, Handler]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    cluster = await started(EmbeddedStore(tmp_path / "metadata.db", durable=False))
    await cluster.admin.create_topics([NewTopic("t", 2), NewTopic("u", 3)])
    yield cluster
    await cluster.close()


@pytest.fixture
def routes(cluster: Cluster) -> Routes:
    return MetadataApis(cluster.cache, cluster.admin, BrokerConfig()).routes()


def asked(*names: str | None, create: bool = False, **fields: Any) -> dict[str, Any]:
    return {
        "topics": [{"name": name, "topic_id": None} for name in names],
        "allow_auto_topic_creation": create,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
        **fields,
    }


def asked_by_id(*ids: uuid.UUID, name: str | None = None) -> dict[str, Any]:
    return asked(topics=[{"name": name, "topic_id": each} for each in ids])


@every_version(METADATA)
async def test_topics_are_described_in_every_version(version: int, routes: Routes, cluster: Cluster) -> None:
    answer = await ask(routes, METADATA, version, asked("t"))
    (node,) = answer.brokers
    assert (node.node_id, node.host, node.port) == (0, "192.0.2.1", 19092)
    (topic,) = answer.topics
    assert (topic.error_code, topic.name, len(topic.partitions)) == (ErrorCode.none, "t", 2)
    first = topic.partitions[0]
    assert (first.error_code, first.leader_id, first.replica_nodes, first.isr_nodes) == (ErrorCode.none, 0, (0,), (0,))
    if version >= 10:
        assert topic.topic_id == cluster.image.topics["t"].topic_id


@every_version(METADATA)
async def test_a_null_list_asks_for_all_topics_and_an_empty_one_for_none(version: int, routes: Routes) -> None:
    empty = await ask(routes, METADATA, version, asked())
    assert len(empty.topics) == (2 if version == 0 else 0)
    if version > 0:
        everything = await ask(routes, METADATA, version, asked(topics=None))
        assert {topic.name for topic in everything.topics} == {"t", "u"}


async def test_missing_and_impossible_topics_are_told_apart(routes: Routes, cluster: Cluster) -> None:
    answer = await ask(routes, METADATA, 12, asked("t", "nothing", "a b", "__consumer_offsets", "t"))
    described = {topic.name: (topic.error_code, topic.is_internal) for topic in answer.topics}
    assert described == {
        "t": (ErrorCode.none, False),
        "nothing": (ErrorCode.unknown_topic_or_partition, False),
        "a b": (ErrorCode.invalid_topic_exception, False),
        "__consumer_offsets": (ErrorCode.unknown_topic_or_partition, True),
    }
    assert len(answer.topics) == 4
    assert set(cluster.image.topics) == {"t", "u"}


async def test_a_missing_topic_is_created_where_client_and_broker_allow_it(routes: Routes, cluster: Cluster) -> None:
    answer = await ask(routes, METADATA, 12, asked("new", "a b", "t", create=True))
    described = {topic.name: (topic.error_code, len(topic.partitions)) for topic in answer.topics}
    assert described == {
        "new": (ErrorCode.none, 1),
        "a b": (ErrorCode.invalid_topic_exception, 0),
        "t": (ErrorCode.none, 2),
    }
    assert "new" in cluster.image.topics


async def test_old_clients_always_allow_creation(routes: Routes) -> None:
    answer = await ask(routes, METADATA, 3, asked("new"))
    assert answer.topics[0].error_code == ErrorCode.none


async def test_creation_can_be_switched_off(cluster: Cluster) -> None:
    routes = MetadataApis(cluster.cache, cluster.admin, BrokerConfig({"auto.create.topics.enable": "false"})).routes()
    answer = await ask(routes, METADATA, 12, asked("new", create=True))
    assert answer.topics[0].error_code == ErrorCode.unknown_topic_or_partition


async def test_the_offsets_topic_is_created_as_such(routes: Routes, cluster: Cluster) -> None:
    answer = await ask(routes, METADATA, 12, asked("__consumer_offsets", create=True))
    assert (answer.topics[0].is_internal, len(answer.topics[0].partitions)) == (True, 50)
    assert cluster.image.config("topics", "__consumer_offsets")["cleanup.policy"] == "compact"


async def test_a_topic_that_cannot_be_created_says_why(cluster: Cluster) -> None:
    config = BrokerConfig({"default.replication.factor": "3"})
    cluster.admin._config = config
    answer = await ask(
        MetadataApis(cluster.cache, cluster.admin, config).routes(), METADATA, 12, asked("new", create=True)
    )
    assert answer.topics[0].error_code == ErrorCode.invalid_replication_factor


async def test_topics_are_described_by_id(routes: Routes, cluster: Cluster) -> None:
    known, unknown = cluster.image.topics["u"].topic_id, uuid.uuid4()
    answer = await ask(routes, METADATA, 12, asked_by_id(known, unknown))
    assert [(topic.name, topic.topic_id, topic.error_code) for topic in answer.topics] == [
        ("u", known, ErrorCode.none),
        (None, unknown, ErrorCode.unknown_topic_id),
    ]


@pytest.mark.parametrize(("version", "name"), [(10, "u"), (11, None), (12, None)])
async def test_topics_that_cannot_be_named_so_are_refused(version: int, name: str | None, routes: Routes) -> None:
    request = asked(None) if version == 12 else asked_by_id(uuid.uuid4(), name=name)
    answer = await ask(routes, METADATA, version, request)
    assert answer.topics[0].error_code == ErrorCode.invalid_request
    assert (answer.brokers, answer.controller_id) == ((), -1)


async def test_operations_are_told_to_those_who_ask(routes: Routes) -> None:
    quiet = await ask(routes, METADATA, 9, asked("t"))
    assert quiet.cluster_authorized_operations == quiet.topics[0].topic_authorized_operations == UNKNOWN_OPERATIONS
    wanted = asked("t", include_cluster_authorized_operations=True, include_topic_authorized_operations=True)
    answer = await ask(routes, METADATA, 9, wanted)
    assert (answer.cluster_authorized_operations, answer.topics[0].topic_authorized_operations) == (8096, 3576)


async def test_clients_are_sent_where_listeners_are_advertised(cluster: Cluster) -> None:
    config = BrokerConfig({"advertised.listeners": "PLAINTEXT://public:1"})
    answer = await ask(MetadataApis(cluster.cache, cluster.admin, config).routes(), METADATA, 12, asked())
    assert (answer.brokers[0].host, answer.brokers[0].port) == ("host0", 9092)


async def test_a_broker_without_the_clients_listener_is_not_shown(cluster: Cluster) -> None:
    config = BrokerConfig({"advertised.listeners": "PLAINTEXT://public:1"})
    routes = MetadataApis(cluster.cache, cluster.admin, config).routes()
    for version, code in ((5, ErrorCode.leader_not_available), (6, ErrorCode.listener_not_found)):
        answer = await ask(routes, METADATA, version, asked("t"), listener="OTHER")
        assert answer.brokers == ()
        assert {partition.error_code for partition in answer.topics[0].partitions} == {code}


async def test_a_partition_whose_leader_is_gone_has_none(routes: Routes, cluster: Cluster) -> None:
    cluster.cache.image = cluster.image.with_brokers([broker(1)])
    answer = await ask(routes, METADATA, 12, asked("t"))
    partition = answer.topics[0].partitions[0]
    assert (partition.error_code, partition.leader_id) == (ErrorCode.leader_not_available, -1)
    assert partition.offline_replicas == (0,)


@every_version(CLUSTER)
async def test_the_cluster_is_described_in_every_version(version: int, routes: Routes, cluster: Cluster) -> None:
    request = {"include_cluster_authorized_operations": True, "endpoint_type": 1, "include_fenced_brokers": False}
    answer = await ask(routes, CLUSTER, version, request)
    assert (answer.cluster_id, answer.controller_id) == (cluster.image.cluster_id, 0)
    assert answer.cluster_authorized_operations == CLUSTER_OPERATIONS
    assert [(node.broker_id, node.host) for node in answer.brokers] == [(0, "192.0.2.1")]


@pytest.mark.parametrize(
    ("endpoint_type", "code"), [(2, ErrorCode.mismatched_endpoint_type), (0, ErrorCode.unsupported_endpoint_type)]
)
async def test_there_are_only_brokers_endpoints(endpoint_type: int, code: ErrorCode, routes: Routes) -> None:
    request = {
        "include_cluster_authorized_operations": False, "endpoint_type": endpoint_type, "include_fenced_brokers": False
    }  # fmt: skip
    with pytest.raises(KafkaError) as caught:
        await ask(routes, CLUSTER, 2, request)
    assert caught.value.code == code


async def pages(routes: Routes, names: list[str], limit: int) -> list[list[tuple[str, list[int]]]]:
    """Partition numbers by topic, page by page."""
    found = []
    cursor = None
    while True:
        request = {"topics": [{"name": name} for name in names], "response_partition_limit": limit, "cursor": cursor}
        answer = await ask(routes, PARTITIONS, 0, request)
        found.append([(t.name, [partition.partition_index for partition in t.partitions]) for t in answer.topics])
        assert all(topic.topic_authorized_operations == TOPIC_OPERATIONS for topic in answer.topics)
        if answer.next_cursor is None:
            return found
        cursor = {
            "topic_name": answer.next_cursor.topic_name, "partition_index": answer.next_cursor.partition_index
        }  # fmt: skip


async def test_partitions_come_page_by_page_in_order_of_topics(routes: Routes) -> None:
    assert await pages(routes, [], 2) == [[("t", [0, 1])], [("u", [0, 1])], [("u", [2])]]
    assert await pages(routes, ["u", "t"], 4) == [[("t", [0, 1]), ("u", [0, 1])], [("u", [2])]]
    assert await pages(routes, ["t"], -5) == [[("t", [0])], [("t", [1])]]


async def test_missing_topics_are_described_among_the_others(routes: Routes) -> None:
    request = {"topics": [{"name": n} for n in ("z", "t", "a b")], "response_partition_limit": 9, "cursor": None}
    answer = await ask(routes, PARTITIONS, 0, request)
    assert [(topic.name, topic.error_code) for topic in answer.topics] == [
        ("a b", ErrorCode.invalid_topic_exception),
        ("t", ErrorCode.none),
        ("z", ErrorCode.unknown_topic_or_partition),
    ]


@pytest.mark.parametrize("cursor", [("v", 0), ("t", -1)])
async def test_a_cursor_that_points_nowhere_is_refused(cursor: tuple[str, int], routes: Routes) -> None:
    where = {"topic_name": cursor[0], "partition_index": cursor[1]}
    request = {"topics": [{"name": "t"}], "response_partition_limit": 9, "cursor": where}
    answer = await ask(routes, PARTITIONS, 0, request)
    assert [topic.error_code for topic in answer.topics] == [ErrorCode.invalid_request]
