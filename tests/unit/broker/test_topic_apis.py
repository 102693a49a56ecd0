"""CreateTopics, DeleteTopics and CreatePartitions, compatible with Kafka."""

import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.apis.topics import TopicApis
from headrace.cluster.metadata_cache import MetadataCache
from headrace.cluster.stores.embedded import EmbeddedStore
from headrace.config import BrokerConfig
from headrace.errors import ErrorCode, KafkaError
from headrace.server.context import Handler
from headrace.wire.apis import ApiKey
from tests.unit.broker.asking import ask, versions_around
from tests.unit.cluster.clusters import Cluster, started

CREATE, DELETE, GROW = ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.CREATE_PARTITIONS
Routes = dict[ApiKey, Handler]


def topic(name: str, partitions: int = 1, **fields: Any) -> dict[str, Any]:
    return {
        "name": name, "num_partitions": partitions, "replication_factor": -1, "assignments": (), "configs": (), **fields
    }  # fmt: skip


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    cluster = await started(EmbeddedStore(tmp_path / "metadata.db", durable=False))
    yield cluster
    await cluster.close()


@pytest.fixture
def routes(cluster: Cluster) -> Routes:
    return TopicApis(cluster.cache, cluster.admin, BrokerConfig()).routes()


async def create(routes: Routes, *topics: dict[str, Any], validate_only: bool = False) -> Any:
    request = {"topics": topics, "timeout": 1000, "validate_only": validate_only}
    return {result.name: result for result in (await ask(routes, CREATE, 7, request)).topics}


async def test_topics_are_created_unless_the_request_only_validates(routes: Routes, cluster: Cluster) -> None:
    results = await create(routes, topic("t"), topic("u", 0), validate_only=True)
    assert (results["t"].error_code, results["u"].error_code) == (ErrorCode.none, ErrorCode.invalid_partitions)
    assert not cluster.image.topics
    for version in versions_around(CREATE):
        request = {"topics": [topic(f"t{version}", 2), topic("a b")], "timeout": 1000, "validate_only": False}
        response = await ask(routes, CREATE, version, request)
        codes = [result.error_code for result in response.topics]
        assert codes == [ErrorCode.none, ErrorCode.invalid_topic_exception], version
        assert len(cluster.image.topics[f"t{version}"].partitions) == 2, version


async def test_a_response_has_id_partitions_replicas_and_settings(routes: Routes, cluster: Cluster) -> None:
    results = await create(routes, topic("t", 3, configs=[{"name": "retention.ms", "value": "5"}]))
    result = results["t"]
    assert result.topic_id == cluster.image.topics["t"].topic_id
    assert (result.num_partitions, result.replication_factor, result.topic_config_error_code) == (3, 1, 0)
    settings = {config.name: (config.value, config.config_source) for config in result.configs}
    assert len(settings) == 33
    assert settings["retention.ms"] == ("5", 1)
    assert settings["segment.bytes"] == ("1073741824", 5)


async def test_errors_say_what_is_wrong_and_do_not_affect_other_topics(routes: Routes) -> None:
    results = await create(
        routes,
        topic("t"),
        topic("t"),
        topic("a", configs=[{"name": "retention.sm", "value": "5"}]),
        topic("b", configs=[{"name": "retention.ms", "value": "soon"}]),
        topic("u"),
    )
    assert (results["t"].error_code, results["t"].error_message) == (ErrorCode.invalid_request, "Duplicate topic name.")
    assert results["a"].error_message == "Unknown topic config name: retention.sm. Did you mean retention.ms?"
    assert "'soon' for retention.ms: must be a whole number" in results["b"].error_message
    assert results["u"].error_code == ErrorCode.none


async def test_replicas_may_be_assigned_manually(routes: Routes, cluster: Cluster) -> None:
    chosen = [{"partition_index": 1, "broker_ids": [0]}, {"partition_index": 0, "broker_ids": [0]}]
    await create(routes, topic("t", -1, assignments=chosen))
    assert len(cluster.image.topics["t"].partitions) == 2


async def test_topics_are_deleted_by_name_or_id(routes: Routes, cluster: Cluster) -> None:
    for version in versions_around(DELETE, 6):
        await create(routes, topic("t"))
        names = ["t", "nothing"]
        topics = [{"name": name, "topic_id": None} for name in names]
        response = await ask(routes, DELETE, version, {"topic_names": names, "topics": topics, "timeout": 1000})
        codes = {result.name: result.error_code for result in response.responses}
        assert codes == {"t": ErrorCode.none, "nothing": ErrorCode.unknown_topic_or_partition}, version
        assert not cluster.image.topics, version
    await create(routes, topic("t"))
    known, unknown = cluster.image.topics["t"].topic_id, uuid.uuid4()
    by_id = [{"name": None, "topic_id": item} for item in (known, unknown)]
    response = await ask(routes, DELETE, 6, {"topics": by_id, "timeout": 1000})
    found = {result.topic_id: (result.name, result.error_code) for result in response.responses}
    assert found == {known: ("t", ErrorCode.none), unknown: (None, ErrorCode.unknown_topic_id)}


async def test_ambiguous_and_duplicate_topics_are_refused(routes: Routes, cluster: Cluster) -> None:
    await create(routes, topic("t"))
    topic_id = cluster.image.topics["t"].topic_id
    for named in (
        [{"name": None, "topic_id": None}],
        [{"name": "t", "topic_id": topic_id}],
        [{"name": "t", "topic_id": None}] * 2,
        [{"name": None, "topic_id": topic_id}] * 2,
        [{"name": "t", "topic_id": None}, {"name": None, "topic_id": topic_id}],
    ):
        response = await ask(routes, DELETE, 6, {"topics": named, "timeout": 1000})
        assert [result.error_code for result in response.responses] == [ErrorCode.invalid_request]
    assert "t" in cluster.image.topics


async def test_deletion_can_be_switched_off() -> None:
    admin: Any = None
    routes = TopicApis(MetadataCache(), admin, BrokerConfig({"delete.topic.enable": "false"})).routes()
    for version, code in ((2, ErrorCode.invalid_request), (3, ErrorCode.topic_deletion_disabled)):
        with pytest.raises(KafkaError, match=r"delete\.topic\.enable") as caught:
            await ask(routes, DELETE, version, {"topic_names": ["t"], "timeout": 1000})
        assert caught.value.code == code, version


async def test_topics_grow_but_only_once_per_request(routes: Routes, cluster: Cluster) -> None:
    await create(routes, topic("t"), topic("u"))
    for version, count in zip(versions_around(GROW), (3, 4), strict=True):
        wanted = [
            {"name": "t", "count": count, "assignments": None},
            {"name": "u", "count": 2, "assignments": [{"broker_ids": [7]}]},
            {"name": "nothing", "count": 2, "assignments": None},
        ]
        response = await ask(routes, GROW, version, {"topics": wanted, "timeout": 1000, "validate_only": False})
        assert {result.name: result.error_code for result in response.results} == {
            "t": ErrorCode.none,
            "u": ErrorCode.invalid_replica_assignment,
            "nothing": ErrorCode.unknown_topic_or_partition,
        }, version
        assert len(cluster.image.topics["t"].partitions) == count, version
    twice = [{"name": "u", "count": count, "assignments": None} for count in (2, 3)]
    response = await ask(routes, GROW, 3, {"topics": twice, "timeout": 1000, "validate_only": False})
    assert [result.error_code for result in response.results] == [ErrorCode.invalid_request]
    assert len(cluster.image.topics["u"].partitions) == 1
