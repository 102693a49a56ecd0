"""FindCoordinator, JoinGroup, SyncGroup, Heartbeat, LeaveGroup and the admin APIs."""

from collections.abc import AsyncIterator

import pytest

from headrace.coordinator.groups.classic.group import ClassicGroup
from headrace.errors import ErrorCode, KafkaError
from headrace.wire.apis import ApiKey
from tests.unit.broker.asking import raises_code, versions_around
from tests.unit.broker.group_world import GroupWorld


@pytest.fixture
async def world() -> AsyncIterator[GroupWorld]:
    world = GroupWorld()
    yield world
    for group in world.coordinator.groups():
        group.check()
    world.coordinator.close()


async def test_this_broker_coordinates_all_groups(world: GroupWorld) -> None:
    for version in versions_around(ApiKey.FIND_COORDINATOR, 4):
        for key_type in (0, 1):
            response = await world.ask(
                ApiKey.FIND_COORDINATOR, version, key="g", key_type=key_type, coordinator_keys=["g", "h"]
            )
            found = response.coordinators if version >= 4 else (response,)
            assert {(item.error_code, item.node_id, item.host, item.port) for item in found} == {
                (ErrorCode.none, 3, "192.0.2.1", 19092)
            }, version
            if version >= 4:
                assert [item.key for item in found] == ["g", "h"], version


async def test_the_offsets_topic_is_created_for_the_first_group(world: GroupWorld) -> None:
    await world.ask(ApiKey.FIND_COORDINATOR, 6, key_type=1, coordinator_keys=["transaction"])
    assert world.created == 0
    await world.ask(ApiKey.FIND_COORDINATOR, 6, key_type=0, coordinator_keys=["g"])
    assert world.created == 1


async def test_the_error_is_retriable_if_the_offsets_topic_cannot_be_created(world: GroupWorld) -> None:
    world.creation_error = KafkaError(ErrorCode.invalid_replication_factor)
    with pytest.raises(KafkaError, match="__consumer_offsets cannot be created") as raised:
        await world.ask(ApiKey.FIND_COORDINATOR, 6, key_type=0, coordinator_keys=["g"])
    assert raised.value.code is ErrorCode.coordinator_not_available


async def test_keys_of_other_types_have_no_coordinator(world: GroupWorld) -> None:
    with raises_code(ErrorCode.invalid_request):
        await world.ask(ApiKey.FIND_COORDINATOR, 6, key_type=2, coordinator_keys=["share"])


async def test_a_member_joins(world: GroupWorld) -> None:
    for version in versions_around(ApiKey.JOIN_GROUP, 1, 4):
        group_id = f"g{version}"
        response = await world.join(version, group_id=group_id)
        if version >= 4:
            assert response.error_code is ErrorCode.member_id_required, version
            response = await world.join(version, response.member_id, group_id=group_id)
        member_id = response.member_id
        assert member_id.startswith("me-"), version
        assert (response.error_code, response.generation_id, response.protocol_name, response.leader) == (
            ErrorCode.none, 1, "range", member_id
        ), version  # fmt: skip
        assert [member.member_id for member in response.members] == [member_id], version
        group = world.coordinator.group(group_id)
        assert isinstance(group, ClassicGroup), version
        member = group.membership.members[member_id]
        assert (member.client_id, member.client_host, member.rebalance_timeout_ms) == (
            "me", "/192.0.2.9", 60_000 if version >= 1 else 10_000
        ), version  # fmt: skip


async def test_an_invalid_join_is_refused(world: GroupWorld) -> None:
    for version in versions_around(ApiKey.JOIN_GROUP, 7):
        answers = [
            await world.join(version, "stranger"),
            await world.join(version, session_timeout=1),
            await world.join(version, group_id=""),
            await world.join(version, protocols=[]),
        ]
        assert [answer.error_code for answer in answers] == [
            ErrorCode.unknown_member_id,
            ErrorCode.invalid_session_timeout,
            ErrorCode.invalid_group_id,
            ErrorCode.inconsistent_group_protocol,
        ], version


async def test_a_member_gets_its_assignment(world: GroupWorld) -> None:
    member_id = (await world.join(3)).member_id
    for version in versions_around(ApiKey.SYNC_GROUP, 5):
        response = await world.sync(version, member_id)
        assert (response.error_code, response.assignment) == (ErrorCode.none, b"mine"), version
        if version >= 5:
            assert (response.protocol_type, response.protocol_name) == ("consumer", "range")
        refused = [await world.sync(version, "stranger"), await world.sync(version, member_id, group_id="")]
        assert [answer.error_code for answer in refused] == [
            ErrorCode.unknown_member_id, ErrorCode.invalid_group_id
        ], version  # fmt: skip


async def test_protocol_type_and_name_are_mandatory_since_version_5(world: GroupWorld) -> None:
    joined = await world.join(3)
    for fields in ({"protocol_type": None}, {"protocol_name": None}):
        response = await world.sync(5, joined.member_id, **fields)
        assert response.error_code is ErrorCode.inconsistent_group_protocol


async def test_heartbeats_are_validated(world: GroupWorld) -> None:
    member_id = await world.member()
    for version in versions_around(ApiKey.HEARTBEAT):
        assert [
            await world.heartbeat(version, member_id),
            await world.heartbeat(version, member_id, generation_id=9),
            await world.heartbeat(version, "stranger"),
            await world.heartbeat(version, member_id, group_id="h"),
            await world.heartbeat(version, member_id, group_id=""),
        ] == [
            ErrorCode.none,
            ErrorCode.illegal_generation,
            ErrorCode.unknown_member_id,
            ErrorCode.unknown_member_id,
            ErrorCode.invalid_group_id,
        ], version


async def test_a_member_leaves(world: GroupWorld) -> None:
    async def leave(version: int, member: str, group_id: str = "g") -> ErrorCode:
        members = [{"member_id": member, "group_instance_id": None, "reason": "closing"}]
        response = await world.ask(ApiKey.LEAVE_GROUP, version, group_id=group_id, member_id=member, members=members)
        code: ErrorCode = response.members[0].error_code if version >= 3 and response.members else response.error_code
        return code

    for version in versions_around(ApiKey.LEAVE_GROUP, 3):
        member_id = (await world.join(3)).member_id
        assert [
            await leave(version, "stranger"),
            await leave(version, member_id, "h"),
            await leave(version, member_id, ""),
            await leave(version, member_id),
        ] == [
            ErrorCode.unknown_member_id,
            ErrorCode.unknown_member_id,
            ErrorCode.invalid_group_id,
            ErrorCode.none,
        ], version
        assert world.coordinator.group("g").state == "Empty", version


async def test_a_static_member_is_identified_by_its_instance(world: GroupWorld) -> None:
    first = await world.join(group_instance_id="i")
    await world.sync(5, first.member_id, group_instance_id="i")
    second = await world.join(group_instance_id="i")
    assert first.member_id.startswith("i-")
    assert second.member_id != first.member_id
    assert await world.heartbeat(4, first.member_id, group_instance_id="i") is ErrorCode.fenced_instance_id
    response = await world.ask(
        ApiKey.LEAVE_GROUP, 5, group_id="g", members=[{"member_id": "", "group_instance_id": "i", "reason": None}]
    )
    assert response.members[0].error_code is ErrorCode.none


async def test_groups_are_listed(world: GroupWorld) -> None:
    await world.member()
    for version in versions_around(ApiKey.LIST_GROUPS, 5):
        (group,) = (await world.ask(ApiKey.LIST_GROUPS, version)).groups
        assert (group.group_id, group.protocol_type) == ("g", "consumer"), version
        if version >= 4:
            assert group.group_state == "Stable", version
        if version >= 5:
            assert group.group_type == "classic"


async def test_groups_are_listed_by_state_and_type(world: GroupWorld) -> None:
    await world.member()
    expected = {
        (("stable ",), ()): True,
        (("EMPTY", "Stable"), ()): True,
        (("Empty",), ()): False,
        (("nonsense",), ()): False,
        ((), ("Classic",)): True,
        ((), ("consumer",)): False,
        (("Stable",), ("share", "classic")): True,
    }
    listed = {}
    for states, types in expected:
        response = await world.ask(ApiKey.LIST_GROUPS, 5, states_filter=states, types_filter=types)
        listed[states, types] = bool(response.groups)
    assert listed == expected


async def test_groups_are_described(world: GroupWorld) -> None:
    member_id = await world.member()
    await world.commit(8, (0, 1, ""), group_id="simple")
    for version in versions_around(ApiKey.DESCRIBE_GROUPS, 6):
        response = await world.ask(
            ApiKey.DESCRIBE_GROUPS, version, groups=["g", "simple", "gone"], include_authorized_operations=True
        )
        stable, simple, gone = response.groups
        assert (stable.error_code, stable.group_state, stable.protocol_type, stable.protocol_data) == (
            ErrorCode.none, "Stable", "consumer", "range"
        ), version  # fmt: skip
        (member,) = stable.members
        assert (member.member_id, member.client_id, member.client_host, member.member_assignment) == (
            member_id, "me", "/192.0.2.9", b"mine"
        ), version  # fmt: skip
        assert b"t" in member.member_metadata, version
        assert (simple.group_state, simple.protocol_type, simple.members) == ("Empty", "", ()), version
        missing = ErrorCode.group_id_not_found if version >= 6 else ErrorCode.none
        assert (gone.group_state, gone.error_code) == ("Dead", missing), version
        if version >= 3:
            assert stable.authorized_operations == 3400, version


async def test_authorized_operations_are_optional(world: GroupWorld) -> None:
    await world.member()
    response = await world.ask(ApiKey.DESCRIBE_GROUPS, 5, groups=["g"], include_authorized_operations=False)
    assert response.groups[0].authorized_operations == -(2**31)


async def test_groups_are_deleted(world: GroupWorld) -> None:
    await world.member()
    for version in versions_around(ApiKey.DELETE_GROUPS):
        await world.commit(8, (0, 1, ""), group_id="idle")
        response = await world.ask(ApiKey.DELETE_GROUPS, version, groups_names=["g", "idle", "gone", "idle"])
        assert {result.group_id: result.error_code for result in response.results} == {
            "g": ErrorCode.non_empty_group,
            "idle": ErrorCode.none,
            "gone": ErrorCode.group_id_not_found,
        }, version
        assert len(response.results) == 3, version
        assert (await world.fetch(8, group_id="idle")).topics[0].partitions[0].committed_offset == -1, version


class TestWhileLoading:
    """The group's shard is still loading, or led by another broker."""

    @pytest.fixture
    def world(self, world: GroupWorld) -> GroupWorld:
        world.coordinator.resigned(0)
        return world

    async def test_members_get_not_coordinator(self, world: GroupWorld) -> None:
        not_coordinator = ErrorCode.not_coordinator
        assert (await world.join()).error_code is not_coordinator
        assert (await world.sync(5, "m")).error_code is not_coordinator
        assert await world.heartbeat(4, "m") is not_coordinator
        for version in (0, 5):
            response = await world.ask(
                ApiKey.LEAVE_GROUP,
                version,
                group_id="g",
                member_id="m",
                members=[{"member_id": "m", "group_instance_id": None}],
            )
            assert response.error_code is not_coordinator
        assert (await world.commit(8, (0, 1, ""))).topics[0].partitions[0].error_code is not_coordinator

    async def test_offset_fetches_get_not_coordinator(self, world: GroupWorld) -> None:
        assert (await world.fetch(1)).topics[0].partitions[0].error_code is ErrorCode.not_coordinator
        for version in (2, 7, 8):
            assert (await world.fetch(version)).error_code is ErrorCode.not_coordinator

    async def test_admin_requests_get_an_error_per_group(self, world: GroupWorld) -> None:
        described = await world.ask(ApiKey.DESCRIBE_GROUPS, 5, groups=["g"], include_authorized_operations=False)
        deleted = await world.ask(ApiKey.DELETE_GROUPS, 2, groups_names=["g"])
        assert described.groups[0].error_code is deleted.results[0].error_code is ErrorCode.not_coordinator
