"""Elections and reassignments in a cluster of one broker."""

import uuid
from typing import Any

import pytest

from headrace.broker.apis.placement import PlacementApis
from headrace.cluster.image import MetadataImage, PartitionImage, TopicImage
from headrace.cluster.metadata_cache import MetadataCache
from headrace.errors import ErrorCode
from headrace.server.context import Handler
from headrace.wire.apis import ApiKey
from tests.unit.broker.asking import ask, versions_around

ELECT, ALTER, LIST = (
    ApiKey.ELECT_LEADERS,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    ApiKey.LIST_PARTITION_REASSIGNMENTS,
)
Routes = dict[ApiKey, Handler]


@pytest.fixture
def routes() -> Routes:
    partition = PartitionImage(leader=5, leader_epoch=0, replicas=(5,), isr=(5,))
    cache = MetadataCache()
    cache.image = MetadataImage().with_topics([TopicImage("t", uuid.uuid4(), (partition, partition))])
    return PlacementApis(cache).routes()


def elect(partitions: dict[str, list[int]] | None, election_type: int = 0) -> dict[str, Any]:
    named = None if partitions is None else [{"topic": t, "partitions": p} for t, p in partitions.items()]
    return {"election_type": election_type, "topic_partitions": named, "timeout": 1000}


async def test_elections_are_not_needed(routes: Routes) -> None:
    for version in versions_around(ELECT):
        response = await ask(routes, ELECT, version, elect({"t": [0, 1, 2], "none": [0]}))
        outcomes = {
            (topic.topic, partition.partition_id): partition.error_code
            for topic in response.replica_election_results
            for partition in topic.partition_result
        }
        assert outcomes == {
            ("t", 0): ErrorCode.election_not_needed,
            ("t", 1): ErrorCode.election_not_needed,
            ("t", 2): ErrorCode.unknown_topic_or_partition,
            ("none", 0): ErrorCode.unknown_topic_or_partition,
        }, version
    assert (await ask(routes, ELECT, 2, elect(None))).replica_election_results == ()


async def test_only_the_current_assignment_is_accepted(routes: Routes) -> None:
    wanted = {0: (5,), 1: (5, 6), 2: (5,)}
    partitions = [{"partition_index": index, "replicas": replicas} for index, replicas in wanted.items()]
    request = {"timeout": 1000, "allow_replication_factor_change": True}
    response = await ask(routes, ALTER, 1, {**request, "topics": [{"name": "t", "partitions": partitions}]})

    assert [partition.error_code for partition in response.responses[0].partitions] == [
        ErrorCode.none,
        ErrorCode.invalid_replica_assignment,
        ErrorCode.unknown_topic_or_partition,
    ]


async def test_no_reassignment_can_be_cancelled_or_listed(routes: Routes) -> None:
    topics = [{"name": "t", "partitions": [{"partition_index": 0, "replicas": None}]}]
    cancelled = await ask(routes, ALTER, 0, {"timeout": 1000, "topics": topics})
    assert cancelled.responses[0].partitions[0].error_code == ErrorCode.no_reassignment_in_progress

    listed = await ask(routes, LIST, 0, {"timeout": 1000, "topics": None})
    assert listed.topics == ()
