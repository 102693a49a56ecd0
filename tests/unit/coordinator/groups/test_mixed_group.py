"""Classic members in consumer groups, where Headrace is safer than Kafka. Other cases are in tests/parity and
tests/simulation.
"""

from dataclasses import replace
from typing import Any

import pytest

from headrace.coordinator.groups.classic.group import ClassicGroup
from headrace.coordinator.groups.classic.states import GroupState
from headrace.coordinator.groups.consumer.group import ConsumerGroup
from headrace.coordinator.groups.records.consumer import MemberState
from headrace.coordinator.groups.records.embedded import decode_assignment, encode_assignment
from headrace.errors import ErrorCode, KafkaError
from tests.simulation.classic_client import subscription
from tests.unit.coordinator.world import SETTINGS, World, beat

ALL = [("t", index) for index in range(4)]


def cooperative(owned: list[tuple[str, int]], generation: int = -1) -> dict[str, Any]:
    return {"protocols": (("cooperative-sticky", subscription(("t",), owned, generation)),)}


def classic_member(world: World) -> str:
    """Add a member that reads the whole topic in generation 1, and return its id."""
    member_id: str = world.join(**cooperative([])).result.member_id
    world.join(member_id, **cooperative([]))
    world.loop.advance(0)
    world.sync(member_id, 1, {member_id: encode_assignment({"t": range(4)}, 1)})
    return member_id


def test_a_cooperative_member_still_owns_partitions_to_revoke_after_an_upgrade() -> None:
    world = World()
    member_id = classic_member(world)
    world.join(member_id, **cooperative(ALL, 1))
    # The new assignment lacks two partitions, which the member reads until it rejoins without them.
    world.sync(member_id, 2, {member_id: encode_assignment({"t": [0, 1]}, 1)})
    assert beat(world, "modern").assignment == frozenset()
    group = world.coordinator.group("g")
    assert isinstance(group, ConsumerGroup)
    assert group.known.members[member_id].state is MemberState.UNREVOKED_PARTITIONS
    assert {one.partition for one in group.known.members[member_id].revoking} == {2, 3}
    world.join(member_id, **cooperative(ALL[:2], 2))
    assert {one.partition for one in beat(world, "modern", epoch=4).assignment or ()} == {2, 3}


def test_a_refused_upgrade_leaves_the_group_unchanged() -> None:
    world = World(settings=replace(SETTINGS, group_consumer_max_size=1))
    member_id = classic_member(world)
    with pytest.raises(KafkaError, match="maximum capacity"):
        beat(world, "modern")
    assert world.coordinator.heartbeat("g", member_id, None, 1) is ErrorCode.none


def test_a_removed_member_that_still_owns_partitions_is_refused() -> None:
    world = World()
    beat(world, "modern")
    reply = world.join("removed", **cooperative(ALL, 1))
    assert reply.result.error is ErrorCode.unknown_member_id
    assert world.join("new", **cooperative([])).result.error is ErrorCode.none


def test_a_downgraded_group_rebalances_after_a_reload() -> None:
    world = World()
    beat(world, "modern")
    world.join("old", **cooperative([]))
    beat(world, "modern", epoch=-1)
    again = world.restarted()
    group = again.coordinator.classic_group("g")
    assert group.state is GroupState.PREPARING_REBALANCE
    assert again.coordinator.heartbeat("g", "old", None, group.generation) is ErrorCode.rebalance_in_progress


def test_remaining_classic_members_get_all_partitions_and_notice_new_ones() -> None:
    settings = replace(SETTINGS, group_consumer_migration_policy="upgrade", group_consumer_assignment_interval_ms=0)
    world = World(settings=settings)
    beat(world, "modern")
    joined = world.join("old", **cooperative([])).result
    beat(world, "modern", epoch=-1)
    world.loop.advance(1)
    assert world.coordinator.heartbeat("g", "old", None, joined.generation) is ErrorCode.rebalance_in_progress
    generation = world.join("old", **cooperative([])).result.generation
    assert decode_assignment(world.sync("old", generation).result.assignment).partitions == {"t": (0, 1, 2, 3)}
    world.topics.set("t", 5)
    world.loop.advance(1)
    assert world.coordinator.heartbeat("g", "old", None, generation) is ErrorCode.rebalance_in_progress


def test_members_waiting_in_the_join_phase_must_rejoin_after_an_upgrade() -> None:
    world = World()
    member_id = classic_member(world)
    second = world.join(**cooperative([])).result.member_id
    waiting = world.join(second, **cooperative([]))
    beat(world, "modern")
    assert waiting.result.error is ErrorCode.rebalance_in_progress
    assert not isinstance(world.coordinator.group("g"), ClassicGroup)
    assert world.coordinator.heartbeat("g", member_id, None, 1) is ErrorCode.rebalance_in_progress


def test_a_member_that_replaces_a_static_one_during_a_rebalance_gets_partitions() -> None:
    world = World()
    waiting = world.join(instance_id="i", **cooperative([]))
    result = beat(world, "modern", instance_id="i")
    assert waiting.result.error is ErrorCode.rebalance_in_progress
    assert {one.partition for one in result.assignment or ()} == {0, 1, 2, 3}
    assert result.epoch == 1


def test_a_member_that_replaces_a_static_one_gets_new_partitions() -> None:
    world = World()
    joining = world.join(instance_id="i", **cooperative([]))
    world.loop.advance(0)
    member_id = joining.result.member_id
    world.sync(member_id, 1, {member_id: encode_assignment({"t": range(4)}, 1)})
    world.topics.set("t", 5)
    result = beat(world, "modern", instance_id="i")
    assert {one.partition for one in result.assignment or ()} == {0, 1, 2, 3, 4}
