"""OffsetCommit, OffsetFetch and OffsetDelete."""

import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from headrace.coordinator.groups.records.offsets import CommittedOffset, OffsetKey
from headrace.errors import ErrorCode
from headrace.wire.apis import ApiKey
from tests.unit.broker.asking import versions_around
from tests.unit.broker.group_world import TOPIC_ID, GroupWorld


@pytest.fixture
async def world() -> AsyncIterator[GroupWorld]:
    world = GroupWorld()
    yield world
    world.coordinator.close()


def errors(response: Any) -> list[ErrorCode]:
    return [partition.error_code for topic in response.topics for partition in topic.partitions]


def offsets(response: Any) -> list[tuple[int, str]]:
    return [(p.committed_offset, p.metadata) for topic in response.topics for p in topic.partitions]


async def test_committed_offsets_can_be_fetched(world: GroupWorld) -> None:
    unknown = ErrorCode.unknown_topic_or_partition
    for version in versions_around(ApiKey.OFFSET_COMMIT, 3, 6, 8, 10):
        response = await world.commit(version, (0, version, "note"), (1, 6, None), (3, 1, ""), (-1, 1, ""))
        assert errors(response) == [ErrorCode.none, ErrorCode.none, unknown, unknown], version
        assert offsets(await world.fetch(8)) == [(version, "note"), (6, "")]
        if version >= 10:
            assert response.topics[0].topic_id == TOPIC_ID
        committed = world.coordinator.committed_offsets("g")["t"][0]
        assert committed.leader_epoch == (4 if version >= 6 else -1), version
        assert committed.topic_id == TOPIC_ID.bytes, version


async def test_offsets_are_fetched(world: GroupWorld) -> None:
    await world.commit(8, (0, 5, "note"))
    for version in versions_around(ApiKey.OFFSET_FETCH, 2, 8, 10):
        response = await world.fetch(version)
        assert offsets(response) == [(5, "note"), (-1, "")], version
        assert errors(response) == [ErrorCode.none, ErrorCode.none], version
        if version >= 2:
            assert response.error_code is ErrorCode.none, version
        if version >= 5:
            assert [p.committed_leader_epoch for p in response.topics[0].partitions] == [4, -1], version
        if version >= 10:
            assert response.topics[0].topic_id == TOPIC_ID


async def test_all_offsets_of_a_group_are_fetched(world: GroupWorld) -> None:
    await world.commit(8, (0, 5, ""), (2, 7, ""))
    for version in (2, 7, 8, 10):
        response = await world.fetch(version, None)
        assert {p.partition_index: p.committed_offset for p in response.topics[0].partitions} == {0: 5, 2: 7}, version
        assert (await world.fetch(version, None, group_id="nobody")).topics == (), version


async def test_several_groups_are_fetched_at_once(world: GroupWorld) -> None:
    await world.commit(8, (0, 5, ""))
    await world.commit(8, (0, 6, ""), group_id="h")
    topics = [{"name": "t", "partition_indexes": [0]}]
    response = await world.ask(
        ApiKey.OFFSET_FETCH, 9, groups=[{"group_id": name, "topics": topics} for name in ("g", "h", "nobody")]
    )
    assert [(group.group_id, offsets(group)[0][0]) for group in response.groups] == [("g", 5), ("h", 6), ("nobody", -1)]


async def test_unknown_topics_are_refused(world: GroupWorld) -> None:
    partitions = [{"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}]
    by_name = await world.commit(8, topics=[{"name": "u", "partitions": partitions}])
    by_id = await world.commit(10, topics=[{"topic_id": uuid.UUID(int=9), "partitions": partitions}])
    fetched = await world.fetch(10, [{"topic_id": uuid.UUID(int=9), "partition_indexes": [0]}])
    assert errors(by_name) == [ErrorCode.unknown_topic_or_partition]
    assert errors(by_id) == errors(fetched) == [ErrorCode.unknown_topic_id]
    assert not world.log.stored


async def test_a_fetch_by_id_ignores_offsets_of_earlier_and_deleted_topics(world: GroupWorld) -> None:
    await world.commit(10, (0, 5, ""))
    world.topics["t"] = (uuid.UUID(int=8), 3)
    response = await world.fetch(10, [{"topic_id": uuid.UUID(int=8), "partition_indexes": [0]}])
    assert offsets(response) == [(-1, "")]
    assert offsets(await world.fetch(9)) == [(5, ""), (-1, "")]
    del world.topics["t"]
    assert (await world.fetch(10, None)).topics == ()
    assert len((await world.fetch(9, None)).topics) == 1


async def test_members_commit_with_their_generation(world: GroupWorld) -> None:
    member_id = await world.member()

    async def commit(version: int, **fields: Any) -> ErrorCode:
        request = {"member_id": member_id, "generation_id_or_member_epoch": 1, **fields}
        (code,) = errors(await world.commit(version, (0, 5, ""), **request))
        return code

    for version in versions_around(ApiKey.OFFSET_COMMIT, 9):
        assert [
            await commit(version),
            await commit(version, generation_id_or_member_epoch=2),
            await commit(version, member_id="stranger"),
            await commit(version, group_id="nobody"),
        ] == [
            ErrorCode.none,
            ErrorCode.illegal_generation,
            ErrorCode.unknown_member_id,
            ErrorCode.group_id_not_found if version >= 9 else ErrorCode.illegal_generation,
        ], version


async def test_the_clients_retention_time_is_stored(world: GroupWorld) -> None:
    for version, retention_ms in ((2, 60_000), (4, 90_000)):
        await world.commit(version, (0, 5, ""), retention_time=retention_ms)
        committed = world.coordinator.committed_offsets("g")["t"][0]
        assert abs(committed.expire_timestamp - committed.commit_timestamp - retention_ms) < 5_000, version


async def test_an_empty_commit_is_accepted(world: GroupWorld) -> None:
    assert (await world.commit(9, topics=[])).topics == ()


async def test_an_offset_with_an_open_transaction_is_unstable(world: GroupWorld) -> None:
    await world.commit(8, (0, 5, ""))
    shard = world.coordinator._shards.of("g")
    shard.state.replay(OffsetKey("g", "t", 0), CommittedOffset(6, -1, "", 0), now_ms=0, producer_id=1)
    assert errors(await world.fetch(8, require_stable=True)) == [ErrorCode.unstable_offset_commit, ErrorCode.none]
    assert offsets(await world.fetch(8, require_stable=False))[0] == (5, "")


async def test_offsets_of_a_known_group_are_deleted(world: GroupWorld) -> None:
    await world.commit(8, (0, 5, ""), (1, 6, ""))
    topics = [
        {"name": "t", "partitions": [{"partition_index": 0}, {"partition_index": 9}]},
        {"name": "u", "partitions": [{"partition_index": 0}]},
    ]
    response = await world.ask(ApiKey.OFFSET_DELETE, 0, group_id="g", topics=topics)
    unknown = ErrorCode.unknown_topic_or_partition
    assert (response.error_code, errors(response)) == (ErrorCode.none, [ErrorCode.none, unknown, unknown])
    assert offsets(await world.fetch(8)) == [(-1, ""), (6, "")]
    for group_id, error in (("", ErrorCode.invalid_group_id), ("nobody", ErrorCode.group_id_not_found)):
        response = await world.ask(ApiKey.OFFSET_DELETE, 0, group_id=group_id, topics=topics)
        assert response.error_code is error, group_id
