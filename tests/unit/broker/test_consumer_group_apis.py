"""ConsumerGroupHeartbeat, ConsumerGroupDescribe, and the admin APIs for groups of both protocols."""

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest

from headrace.broker.apis.consumer_groups import ConsumerGroupApis
from headrace.coordinator.groups.classic.group import ClassicGroup
from headrace.errors import ErrorCode, KafkaError
from headrace.wire.apis import ApiKey
from tests.unit.broker.asking import versions_around
from tests.unit.broker.group_world import GroupWorld
from tests.unit.coordinator.fake_topics import topic_id

TOPIC = UUID(bytes=topic_id("t"))


class World(GroupWorld):
    """Topic `t` has four partitions."""

    def __init__(self) -> None:
        super().__init__()
        self.topics["t"] = (TOPIC, 4)
        self.routes |= ConsumerGroupApis(self.coordinator, self).routes()

    async def beat(self, version: int = 1, member_id: str = "a", epoch: int = 0, **fields: Any) -> Any:
        return await self.ask(
            ApiKey.CONSUMER_GROUP_HEARTBEAT,
            version,
            **{
                "group_id": "g",
                "member_id": member_id,
                "member_epoch": epoch,
                "instance_id": None,
                "rack_id": None,
                "rebalance_timeout": 60_000,
                "subscribed_topic_names": ["t"],
                "subscribed_topic_regex": None,
                "server_assignor": None,
                "topic_partitions": [],
                **fields,
            },
        )


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    for group in world.coordinator.groups():
        group.check()
    world.coordinator.close()


async def test_a_member_joins_and_leaves(world: World) -> None:
    joined = await world.beat()
    assert (joined.error_code, joined.member_id, joined.member_epoch) == (ErrorCode.none, "a", 2)
    (assigned,) = joined.assignment.topic_partitions
    assert (assigned.topic_id, assigned.partitions) == (TOPIC, (0, 1, 2, 3))
    kept = await world.beat(epoch=2, rebalance_timeout=-1, subscribed_topic_names=None, topic_partitions=None)
    assert (kept.member_epoch, kept.assignment) == (2, None)
    left = await world.beat(epoch=-1)
    assert (left.error_code, left.member_epoch) == (ErrorCode.none, -1)


async def test_only_version_0_lets_the_coordinator_choose_the_member_id(world: World) -> None:
    joined = await world.beat(0, member_id="")
    assert (len(joined.member_id), joined.member_epoch) == (22, 2)
    assert (await world.beat(1, member_id="")).error_code is ErrorCode.invalid_request


async def test_an_error_has_a_message(world: World) -> None:
    answer = await world.beat(epoch=7)
    assert (answer.error_code, answer.error_message) == (
        ErrorCode.group_id_not_found,
        "Consumer group g not found.",
    )


async def test_owned_partitions_are_validated(world: World) -> None:
    await world.beat()
    owned = [{"topic_id": TOPIC, "partitions": [0]}]
    assert (await world.beat(epoch=9, topic_partitions=owned)).error_code is ErrorCode.fenced_member_epoch


async def test_a_group_is_described(world: World) -> None:
    await world.beat(instance_id="i", rack_id="r")
    answer = await world.ask(
        ApiKey.CONSUMER_GROUP_DESCRIBE, 1, group_ids=["g", "missing", ""], include_authorized_operations=True
    )
    nameless, group, missing = answer.groups
    assert (nameless.error_code, missing.error_code) == (ErrorCode.invalid_group_id, ErrorCode.group_id_not_found)
    assert (group.group_state, group.group_epoch, group.assignment_epoch, group.assignor_name) == (
        "Stable",
        2,
        2,
        "uniform",
    )
    (member,) = group.members
    assert (member.member_id, member.instance_id, member.rack_id, member.member_epoch) == ("a", "i", "r", 2)
    assert (member.subscribed_topic_names, member.client_id, member.client_host) == (("t",), "me", "/192.0.2.9")
    assert member.assignment.topic_partitions == member.target_assignment.topic_partitions
    (partitions,) = member.assignment.topic_partitions
    assert (partitions.topic_id, partitions.topic_name, partitions.partitions) == (TOPIC, "t", (0, 1, 2, 3))


async def test_a_classic_group_is_not_described_as_a_consumer_group(world: World) -> None:
    await world.join()
    answer = await world.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, group_ids=["g"], include_authorized_operations=False)
    assert answer.groups[0].error_code is ErrorCode.group_id_not_found
    assert isinstance(world.coordinator.group("g"), ClassicGroup)


async def test_groups_are_listed_by_type(world: World) -> None:
    await world.beat()
    await world.join(group_id="h")
    for types, expected in ((["consumer"], {("g", "consumer")}), (["Classic"], {("h", "classic")})):
        answer = await world.ask(ApiKey.LIST_GROUPS, 5, states_filter=[], types_filter=types)
        assert {(group.group_id, group.group_type) for group in answer.groups} == expected


async def test_a_consumer_group_is_described_as_a_dead_classic_group(world: World) -> None:
    await world.beat()
    for version in versions_around(ApiKey.DESCRIBE_GROUPS, 6):
        answer = await world.ask(ApiKey.DESCRIBE_GROUPS, version, groups=["g"], include_authorized_operations=False)
        (group,) = answer.groups
        missing = ErrorCode.group_id_not_found if version >= 6 else ErrorCode.none
        assert (group.group_state, group.error_code) == ("Dead", missing), version


async def test_a_heartbeat_that_cannot_be_written_is_refused(world: World) -> None:
    world.log.error = KafkaError(ErrorCode.kafka_storage_error)
    assert (await world.beat()).error_code is ErrorCode.not_coordinator
