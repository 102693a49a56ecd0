"""Metadata, DescribeCluster and DescribeTopicPartitions, compatible with Kafka."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.apis import metadata
from headrace.broker.apis.metadata import CLUSTER_OPERATIONS, TOPIC_OPERATIONS, UNKNOWN_OPERATIONS, MetadataApis
from headrace.cluster.commands import UpdateMetadata
from headrace.cluster.image import PartitionImage, TopicImage
from headrace.cluster.metadata_cache import MetadataCache
from headrace.cluster.stores.embedded import EmbeddedStore
from headrace.cluster.topic_changes import NewTopic
from headrace.config import BrokerConfig
from headrace.errors import ErrorCode
from headrace.server.context import Handler
from headrace.server.frames import InvalidRequestError
from headrace.wire.apis import ApiKey
from tests.unit.broker.asking import ask, raises_code, versions_around
from tests.unit.cluster.clusters import Cluster, broker, started

METADATA, CLUSTER, PARTITIONS = ApiKey.METADATA, ApiKey.DESCRIBE_CLUSTER, ApiKey.DESCRIBE_TOPIC_PARTITIONS
Routes = dict[ApiKey, Handler]
BROKERS = (broker(0),)
TOPICS = tuple(
    TopicImage(name, uuid.UUID(int=count), (PartitionImage(0, 0, (0,), (0,)),) * count)
    for name, count in (("t", 2), ("u", 3))
)
T, U = (topic.topic_id for topic in TOPICS)


@pytest.fixture
async def cache() -> MetadataCache:
    """The metadata of broker 0 with the topics t and u."""
    cache = MetadataCache()
    cache.begin("the cluster", {})
    await cache.apply(UpdateMetadata(0, 1, BROKERS, TOPICS))
    return cache


def routes_of(cache: MetadataCache, config: BrokerConfig | None = None, admin: Any = None) -> Routes:
    return MetadataApis(cache, admin, config or BrokerConfig()).routes()


@pytest.fixture
def routes(cache: MetadataCache) -> Routes:
    """The APIs of a broker that can create no topics."""
    return routes_of(cache)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    cluster = await started(EmbeddedStore(tmp_path / "metadata.db", durable=False))
    await cluster.admin.create_topics([NewTopic("t", 2)])
    yield cluster
    await cluster.close()


def request_for(*names: str | None, create: bool = False, **fields: Any) -> dict[str, Any]:
    return {
        "topics": [{"name": name, "topic_id": None} for name in names],
        "allow_auto_topic_creation": create,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
        **fields,
    }


def request_by_id(*ids: uuid.UUID, name: str | None = None) -> dict[str, Any]:
    return request_for(topics=[{"name": name, "topic_id": item} for item in ids])


async def test_topics_are_described(routes: Routes) -> None:
    for version in versions_around(METADATA, 9):
        response = await ask(routes, METADATA, version, request_for("t"))
        (node,) = response.brokers
        assert (node.node_id, node.host, node.port) == (0, "192.0.2.1", 19092), version
        (topic,) = response.topics
        assert (topic.error_code, topic.name, len(topic.partitions)) == (ErrorCode.none, "t", 2), version
        first = topic.partitions[0]
        assert (first.error_code, first.leader_id, first.replica_nodes, first.isr_nodes) == (
            ErrorCode.none, 0, (0,), (0,)
        ), version  # fmt: skip
        if version >= 10:
            assert topic.topic_id == T, version


async def test_a_null_list_means_all_topics_and_an_empty_one_none(routes: Routes) -> None:
    for version in versions_around(METADATA, 1):
        empty = await ask(routes, METADATA, version, request_for())
        assert len(empty.topics) == (2 if version == 0 else 0), version
        if version > 0:
            everything = await ask(routes, METADATA, version, request_for(topics=None))
            assert {topic.name for topic in everything.topics} == {"t", "u"}, version


async def test_a_broker_without_metadata_answers_once_it_has_some() -> None:
    cache = MetadataCache()
    routes = routes_of(cache)
    described = asyncio.ensure_future(ask(routes, METADATA, 12, request_for("t")))
    cluster = asyncio.ensure_future(ask(routes, CLUSTER, 0, {"include_cluster_authorized_operations": False}))
    await asyncio.sleep(0)
    assert not described.done()
    assert not cluster.done()
    await cache.apply(UpdateMetadata(1, 1, BROKERS, TOPICS))
    reply = await described
    assert [broker.node_id for broker in reply.brokers] == [0]
    assert [topic.name for topic in reply.topics] == ["t"]
    assert ((await cluster).controller_id, len((await cluster).brokers)) == (1, 1)


async def test_a_starting_broker_waits_for_the_existing_topics() -> None:
    """A new controller sends the brokers first, and topics with elections before the others."""
    cache = MetadataCache()
    cache.await_topics(["t"])
    await cache.apply(UpdateMetadata(1, 1, BROKERS, ()))
    answer = asyncio.ensure_future(ask(routes_of(cache), METADATA, 12, request_for("t")))
    await asyncio.sleep(0)
    assert not answer.done()
    await cache.apply(UpdateMetadata(1, 1, BROKERS, TOPICS))
    assert [topic.error_code for topic in (await answer).topics] == [ErrorCode.none]


async def test_a_broker_does_not_wait_long_for_topics_that_were_deleted_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metadata, "_FIRST_METADATA_S", 0.01)
    cache = MetadataCache()
    cache.await_topics(["t"])
    await cache.apply(UpdateMetadata(1, 1, BROKERS, ()))
    routes = routes_of(cache)
    for _ in range(2):
        reply = await ask(routes, METADATA, 12, request_for("t"))
        assert [topic.error_code for topic in reply.topics] == [ErrorCode.unknown_topic_or_partition]
    assert cache.is_complete


async def test_a_broker_that_gets_no_metadata_closes_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "_FIRST_METADATA_S", 0.01)
    with pytest.raises(InvalidRequestError, match="the controller has not sent metadata"):
        await ask(routes_of(MetadataCache()), METADATA, 12, request_for("t"))


async def test_missing_and_invalid_topics_have_different_errors(routes: Routes) -> None:
    response = await ask(routes, METADATA, 12, request_for("t", "nothing", "a b", "__consumer_offsets", "t"))
    described = {topic.name: (topic.error_code, topic.is_internal) for topic in response.topics}
    assert described == {
        "t": (ErrorCode.none, False),
        "nothing": (ErrorCode.unknown_topic_or_partition, False),
        "a b": (ErrorCode.invalid_topic_exception, False),
        "__consumer_offsets": (ErrorCode.unknown_topic_or_partition, True),
    }
    assert len(response.topics) == 4


async def test_a_missing_topic_is_created_if_client_and_broker_allow_it(cluster: Cluster) -> None:
    routes = routes_of(cluster.cache, admin=cluster.admin)
    response = await ask(routes, METADATA, 12, request_for("new", "a b", "t", create=True))
    described = {topic.name: (topic.error_code, len(topic.partitions)) for topic in response.topics}
    assert described == {
        "new": (ErrorCode.none, 1),
        "a b": (ErrorCode.invalid_topic_exception, 0),
        "t": (ErrorCode.none, 2),
    }
    old_client = await ask(routes, METADATA, 3, request_for("of-an-old-client"))
    assert old_client.topics[0].error_code == ErrorCode.none
    config = BrokerConfig({"auto.create.topics.enable": "false"})
    response = await ask(routes_of(cluster.cache, config), METADATA, 12, request_for("newer", create=True))
    assert response.topics[0].error_code == ErrorCode.unknown_topic_or_partition
    assert set(cluster.image.topics) == {"t", "new", "of-an-old-client"}


async def test_the_offsets_topic_is_created_as_an_internal_topic(cluster: Cluster) -> None:
    routes = routes_of(cluster.cache, admin=cluster.admin)
    response = await ask(routes, METADATA, 12, request_for("__consumer_offsets", create=True))
    assert (response.topics[0].is_internal, len(response.topics[0].partitions)) == (True, 50)
    assert cluster.image.config("topics", "__consumer_offsets")["cleanup.policy"] == "compact"


async def test_a_topic_that_cannot_be_created_has_an_error(cluster: Cluster) -> None:
    config = BrokerConfig({"default.replication.factor": "3"})
    cluster.admin._config = config
    routes = routes_of(cluster.cache, config, cluster.admin)
    response = await ask(routes, METADATA, 12, request_for("new", create=True))
    assert response.topics[0].error_code == ErrorCode.invalid_replication_factor


async def test_topics_are_described_by_id(routes: Routes) -> None:
    unknown = uuid.uuid4()
    response = await ask(routes, METADATA, 12, request_by_id(U, unknown))
    assert [(topic.name, topic.topic_id, topic.error_code) for topic in response.topics] == [
        ("u", U, ErrorCode.none),
        (None, unknown, ErrorCode.unknown_topic_id),
    ]


async def test_invalid_topic_identifiers_are_refused(routes: Routes) -> None:
    for version, request in (
        (10, request_by_id(uuid.uuid4(), name="u")),
        (11, request_by_id(uuid.uuid4())),
        (12, request_for(None)),
    ):
        response = await ask(routes, METADATA, version, request)
        assert response.topics[0].error_code == ErrorCode.invalid_request, version
        assert (response.brokers, response.controller_id) == ((), -1), version


async def test_authorized_operations_are_optional(routes: Routes) -> None:
    without = await ask(routes, METADATA, 9, request_for("t"))
    assert without.cluster_authorized_operations == without.topics[0].topic_authorized_operations == UNKNOWN_OPERATIONS
    wanted = request_for("t", include_cluster_authorized_operations=True, include_topic_authorized_operations=True)
    response = await ask(routes, METADATA, 9, wanted)
    assert (response.cluster_authorized_operations, response.topics[0].topic_authorized_operations) == (8096, 3576)


async def test_clients_get_the_advertised_address_of_their_listener(cache: MetadataCache) -> None:
    routes = routes_of(cache, BrokerConfig({"advertised.listeners": "PLAINTEXT://public:1"}))
    response = await ask(routes, METADATA, 12, request_for())
    assert (response.brokers[0].host, response.brokers[0].port) == ("host0", 9092)
    for version, code in ((5, ErrorCode.leader_not_available), (6, ErrorCode.listener_not_found)):
        response = await ask(routes, METADATA, version, request_for("t"), listener="OTHER")
        assert response.brokers == (), version
        assert {partition.error_code for partition in response.topics[0].partitions} == {code}, version


async def test_a_partition_without_a_live_leader_has_an_error(routes: Routes, cache: MetadataCache) -> None:
    cache.image = cache.image.with_brokers([broker(1)])
    response = await ask(routes, METADATA, 12, request_for("t"))
    partition = response.topics[0].partitions[0]
    assert (partition.error_code, partition.leader_id) == (ErrorCode.leader_not_available, -1)
    assert partition.offline_replicas == (0,)


async def test_the_cluster_is_described(routes: Routes) -> None:
    request = {"include_cluster_authorized_operations": True, "endpoint_type": 1, "include_fenced_brokers": False}
    for version in versions_around(CLUSTER):
        response = await ask(routes, CLUSTER, version, request)
        assert (response.cluster_id, response.controller_id) == ("the cluster", 0), version
        assert response.cluster_authorized_operations == CLUSTER_OPERATIONS, version
        assert [(node.broker_id, node.host) for node in response.brokers] == [(0, "192.0.2.1")], version


async def test_other_endpoint_types_are_refused(routes: Routes) -> None:
    request = {"include_cluster_authorized_operations": False, "include_fenced_brokers": False}
    for endpoint_type, code in ((2, ErrorCode.mismatched_endpoint_type), (0, ErrorCode.unsupported_endpoint_type)):
        with raises_code(code):
            await ask(routes, CLUSTER, 2, {**request, "endpoint_type": endpoint_type})


async def pages(routes: Routes, names: list[str], limit: int) -> list[list[tuple[str, list[int]]]]:
    """Return the partition numbers by topic, page by page."""
    found = []
    cursor = None
    while True:
        request = {"topics": [{"name": name} for name in names], "response_partition_limit": limit, "cursor": cursor}
        response = await ask(routes, PARTITIONS, 0, request)
        found.append([(t.name, [partition.partition_index for partition in t.partitions]) for t in response.topics])
        assert all(topic.topic_authorized_operations == TOPIC_OPERATIONS for topic in response.topics)
        if response.next_cursor is None:
            return found
        cursor = {
            "topic_name": response.next_cursor.topic_name, "partition_index": response.next_cursor.partition_index
        }  # fmt: skip


async def test_pages_are_in_order_of_topics_and_partitions(routes: Routes) -> None:
    assert await pages(routes, [], 2) == [[("t", [0, 1])], [("u", [0, 1])], [("u", [2])]]
    assert await pages(routes, ["u", "t"], 4) == [[("t", [0, 1]), ("u", [0, 1])], [("u", [2])]]
    assert await pages(routes, ["t"], -5) == [[("t", [0])], [("t", [1])]]


async def test_missing_topics_are_described_among_the_others(routes: Routes) -> None:
    request = {"topics": [{"name": n} for n in ("z", "t", "a b")], "response_partition_limit": 9, "cursor": None}
    response = await ask(routes, PARTITIONS, 0, request)
    assert [(topic.name, topic.error_code) for topic in response.topics] == [
        ("a b", ErrorCode.invalid_topic_exception),
        ("t", ErrorCode.none),
        ("z", ErrorCode.unknown_topic_or_partition),
    ]


async def test_an_invalid_cursor_is_refused(routes: Routes) -> None:
    for name, index in (("v", 0), ("t", -1)):
        cursor = {"topic_name": name, "partition_index": index}
        request = {"topics": [{"name": "t"}], "response_partition_limit": 9, "cursor": cursor}
        response = await ask(routes, PARTITIONS, 0, request)
        assert [topic.error_code for topic in response.topics] == [ErrorCode.invalid_request], name
