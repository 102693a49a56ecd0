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
from headrace.cluster.metadata_cache import MetadataCache
from headrace.cluster.stores.embedded import EmbeddedStore
from headrace.cluster.topic_changes import NewTopic
from headrace.config import BrokerConfig
from headrace.errors import ErrorCode, KafkaError
from headrace.server.context import Handler
from headrace.server.frames import InvalidRequestError
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


@every_version(METADATA)
async def test_topics_are_described_in_every_version(version: int, routes: Routes, cluster: Cluster) -> None:
    response = await ask(routes, METADATA, version, request_for("t"))
    (node,) = response.brokers
    assert (node.node_id, node.host, node.port) == (0, "192.0.2.1", 19092)
    (topic,) = response.topics
    assert (topic.error_code, topic.name, len(topic.partitions)) == (ErrorCode.none, "t", 2)
    first = topic.partitions[0]
    assert (first.error_code, first.leader_id, first.replica_nodes, first.isr_nodes) == (ErrorCode.none, 0, (0,), (0,))
    if version >= 10:
        assert topic.topic_id == cluster.image.topics["t"].topic_id


@every_version(METADATA)
async def test_a_null_list_means_all_topics_and_an_empty_one_none(version: int, routes: Routes) -> None:
    empty = await ask(routes, METADATA, version, request_for())
    assert len(empty.topics) == (2 if version == 0 else 0)
    if version > 0:
        everything = await ask(routes, METADATA, version, request_for(topics=None))
        assert {topic.name for topic in everything.topics} == {"t", "u"}


async def test_a_broker_without_metadata_answers_once_it_has_some(cluster: Cluster) -> None:
    cache = MetadataCache()
    routes = MetadataApis(cache, cluster.admin, BrokerConfig()).routes()
    answer = asyncio.ensure_future(ask(routes, METADATA, 12, request_for("t")))
    await asyncio.sleep(0)
    assert not answer.done()
    image = cluster.cache.image
    await cache.apply(UpdateMetadata(1, 1, tuple(image.brokers.values()), tuple(image.topics.values()), ()))
    reply = await answer
    assert [broker.node_id for broker in reply.brokers] == list(image.brokers)
    assert [topic.name for topic in reply.topics] == ["t"]


async def test_a_broker_without_metadata_describes_the_cluster_once_it_knows_the_controller(cluster: Cluster) -> None:
    cache = MetadataCache()
    routes = MetadataApis(cache, cluster.admin, BrokerConfig()).routes()
    request = {"include_cluster_authorized_operations": False}
    answer = asyncio.ensure_future(ask(routes, CLUSTER, 0, request))
    await asyncio.sleep(0)
    assert not answer.done()
    brokers = tuple(cluster.cache.image.brokers.values())
    await cache.apply(UpdateMetadata(1, 1, brokers, (), ()))
    reply = await answer
    assert (reply.controller_id, len(reply.brokers)) == (1, len(brokers))


async def test_a_broker_that_starts_waits_for_the_topics_that_there_are(cluster: Cluster) -> None:
    """A new controller sends the brokers first, and topics with elections before the others."""
    cache, image = MetadataCache(), cluster.cache.image
    cache.await_topics(["t"])
    routes = MetadataApis(cache, cluster.admin, BrokerConfig()).routes()
    await cache.apply(UpdateMetadata(1, 1, tuple(image.brokers.values()), (), ()))
    answer = asyncio.ensure_future(ask(routes, METADATA, 12, request_for("t")))
    await asyncio.sleep(0)
    assert not answer.done()
    await cache.apply(UpdateMetadata(1, 1, tuple(image.brokers.values()), tuple(image.topics.values()), ()))
    assert [topic.error_code for topic in (await answer).topics] == [ErrorCode.none]


async def test_a_broker_does_not_wait_long_for_topics_that_were_deleted_meanwhile(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "_FIRST_METADATA_S", 0.01)
    cache = MetadataCache()
    cache.await_topics(["t"])
    routes = MetadataApis(cache, cluster.admin, BrokerConfig()).routes()
    await cache.apply(UpdateMetadata(1, 1, tuple(cluster.cache.image.brokers.values()), (), ()))
    for _ in range(2):
        reply = await ask(routes, METADATA, 12, request_for("t"))
        assert [topic.error_code for topic in reply.topics] == [ErrorCode.unknown_topic_or_partition]
    assert cache.is_complete


async def test_a_broker_that_gets_no_metadata_closes_the_connection(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "_FIRST_METADATA_S", 0.01)
    routes = MetadataApis(MetadataCache(), cluster.admin, BrokerConfig()).routes()
    with pytest.raises(InvalidRequestError, match="the controller has not sent metadata"):
        await ask(routes, METADATA, 12, request_for("t"))


async def test_missing_and_invalid_topics_have_different_errors(routes: Routes, cluster: Cluster) -> None:
    response = await ask(routes, METADATA, 12, request_for("t", "nothing", "a b", "__consumer_offsets", "t"))
    described = {topic.name: (topic.error_code, topic.is_internal) for topic in response.topics}
    assert described == {
        "t": (ErrorCode.none, False),
        "nothing": (ErrorCode.unknown_topic_or_partition, False),
        "a b": (ErrorCode.invalid_topic_exception, False),
        "__consumer_offsets": (ErrorCode.unknown_topic_or_partition, True),
    }
    assert len(response.topics) == 4
    assert set(cluster.image.topics) == {"t", "u"}


async def test_a_missing_topic_is_created_if_client_and_broker_allow_it(routes: Routes, cluster: Cluster) -> None:
    response = await ask(routes, METADATA, 12, request_for("new", "a b", "t", create=True))
    described = {topic.name: (topic.error_code, len(topic.partitions)) for topic in response.topics}
    assert described == {
        "new": (ErrorCode.none, 1),
        "a b": (ErrorCode.invalid_topic_exception, 0),
        "t": (ErrorCode.none, 2),
    }
    assert "new" in cluster.image.topics


async def test_old_clients_always_allow_creation(routes: Routes) -> None:
    response = await ask(routes, METADATA, 3, request_for("new"))
    assert response.topics[0].error_code == ErrorCode.none


async def test_creation_can_be_switched_off(cluster: Cluster) -> None:
    routes = MetadataApis(cluster.cache, cluster.admin, BrokerConfig({"auto.create.topics.enable": "false"})).routes()
    response = await ask(routes, METADATA, 12, request_for("new", create=True))
    assert response.topics[0].error_code == ErrorCode.unknown_topic_or_partition


async def test_the_offsets_topic_is_created_as_an_internal_topic(routes: Routes, cluster: Cluster) -> None:
    response = await ask(routes, METADATA, 12, request_for("__consumer_offsets", create=True))
    assert (response.topics[0].is_internal, len(response.topics[0].partitions)) == (True, 50)
    assert cluster.image.config("topics", "__consumer_offsets")["cleanup.policy"] == "compact"


async def test_a_topic_that_cannot_be_created_has_an_error(cluster: Cluster) -> None:
    config = BrokerConfig({"default.replication.factor": "3"})
    cluster.admin._config = config
    response = await ask(
        MetadataApis(cluster.cache, cluster.admin, config).routes(), METADATA, 12, request_for("new", create=True)
    )
    assert response.topics[0].error_code == ErrorCode.invalid_replication_factor


async def test_topics_are_described_by_id(routes: Routes, cluster: Cluster) -> None:
    known, unknown = cluster.image.topics["u"].topic_id, uuid.uuid4()
    response = await ask(routes, METADATA, 12, request_by_id(known, unknown))
    assert [(topic.name, topic.topic_id, topic.error_code) for topic in response.topics] == [
        ("u", known, ErrorCode.none),
        (None, unknown, ErrorCode.unknown_topic_id),
    ]


@pytest.mark.parametrize(("version", "name"), [(10, "u"), (11, None), (12, None)])
async def test_invalid_topic_identifiers_are_refused(version: int, name: str | None, routes: Routes) -> None:
    request = request_for(None) if version == 12 else request_by_id(uuid.uuid4(), name=name)
    response = await ask(routes, METADATA, version, request)
    assert response.topics[0].error_code == ErrorCode.invalid_request
    assert (response.brokers, response.controller_id) == ((), -1)


async def test_authorized_operations_are_optional(routes: Routes) -> None:
    without = await ask(routes, METADATA, 9, request_for("t"))
    assert without.cluster_authorized_operations == without.topics[0].topic_authorized_operations == UNKNOWN_OPERATIONS
    wanted = request_for("t", include_cluster_authorized_operations=True, include_topic_authorized_operations=True)
    response = await ask(routes, METADATA, 9, wanted)
    assert (response.cluster_authorized_operations, response.topics[0].topic_authorized_operations) == (8096, 3576)


async def test_clients_get_advertised_listeners(cluster: Cluster) -> None:
    config = BrokerConfig({"advertised.listeners": "PLAINTEXT://public:1"})
    response = await ask(MetadataApis(cluster.cache, cluster.admin, config).routes(), METADATA, 12, request_for())
    assert (response.brokers[0].host, response.brokers[0].port) == ("host0", 9092)


async def test_a_broker_without_the_clients_listener_is_omitted(cluster: Cluster) -> None:
    config = BrokerConfig({"advertised.listeners": "PLAINTEXT://public:1"})
    routes = MetadataApis(cluster.cache, cluster.admin, config).routes()
    for version, code in ((5, ErrorCode.leader_not_available), (6, ErrorCode.listener_not_found)):
        response = await ask(routes, METADATA, version, request_for("t"), listener="OTHER")
        assert response.brokers == ()
        assert {partition.error_code for partition in response.topics[0].partitions} == {code}


async def test_a_partition_without_a_live_leader_has_an_error(routes: Routes, cluster: Cluster) -> None:
    cluster.cache.image = cluster.image.with_brokers([broker(1)])
    response = await ask(routes, METADATA, 12, request_for("t"))
    partition = response.topics[0].partitions[0]
    assert (partition.error_code, partition.leader_id) == (ErrorCode.leader_not_available, -1)
    assert partition.offline_replicas == (0,)


@every_version(CLUSTER)
async def test_the_cluster_is_described_in_every_version(version: int, routes: Routes, cluster: Cluster) -> None:
    request = {"include_cluster_authorized_operations": True, "endpoint_type": 1, "include_fenced_brokers": False}
    response = await ask(routes, CLUSTER, version, request)
    assert (response.cluster_id, response.controller_id) == (cluster.image.cluster_id, 0)
    assert response.cluster_authorized_operations == CLUSTER_OPERATIONS
    assert [(node.broker_id, node.host) for node in response.brokers] == [(0, "192.0.2.1")]


@pytest.mark.parametrize(
    ("endpoint_type", "code"), [(2, ErrorCode.mismatched_endpoint_type), (0, ErrorCode.unsupported_endpoint_type)]
)
async def test_other_endpoint_types_are_refused(endpoint_type: int, code: ErrorCode, routes: Routes) -> None:
    request = {
        "include_cluster_authorized_operations": False, "endpoint_type": endpoint_type, "include_fenced_brokers": False
    }  # fmt: skip
    with pytest.raises(KafkaError) as caught:
        await ask(routes, CLUSTER, 2, request)
    assert caught.value.code == code


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


@pytest.mark.parametrize("cursor", [("v", 0), ("t", -1)])
async def test_an_invalid_cursor_is_refused(cursor: tuple[str, int], routes: Routes) -> None:
    where = {"topic_name": cursor[0], "partition_index": cursor[1]}
    request = {"topics": [{"name": "t"}], "response_partition_limit": 9, "cursor": where}
    response = await ask(routes, PARTITIONS, 0, request)
    assert [topic.error_code for topic in response.topics] == [ErrorCode.invalid_request]
