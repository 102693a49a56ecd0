"""From the join phase to a stable group: assignments, heartbeats and leaving."""

from collections import deque
from typing import Any

from headrace.coordinator.groups.classic.states import GroupState
from headrace.coordinator.groups.effects import Happening
from headrace.errors import ErrorCode
from tests.unit.coordinator.driver import REBALANCE_MS, SESSION_MS, Driver


def two_in_sync_phase(group: Driver) -> tuple[str, str]:
    leader, _ = group.become_member()
    follower, _ = group.become_member()
    group.finish_initial_rebalance()
    assert group.group.state is GroupState.COMPLETING_REBALANCE
    return leader, follower


def test_members_get_what_the_leader_assigned(group: Driver) -> None:
    leader, follower = two_in_sync_phase(group)
    waiting = group.sync(follower)
    assert group.is_parked(waiting)
    leading = group.sync(leader, {leader: b"L", follower: b"F"})
    assert group.sync_answer(leading).assignment == b"L"
    assert group.sync_answer(waiting).assignment == b"F"
    assert group.group.state is GroupState.STABLE


def test_members_without_an_assignment_get_an_empty_one(group: Driver) -> None:
    leader, follower = two_in_sync_phase(group)
    group.sync(leader, {leader: b"L", "stranger": b"S"})
    assert group.sync_answer(group.sync(follower)).assignment == b""


def test_the_assignment_takes_effect_when_it_is_written(group: Driver) -> None:
    group.held_appends = deque()
    leader, _ = group.become_member()
    group.finish_initial_rebalance()
    token = group.sync(leader, {leader: b"L"})
    assert group.is_parked(token)
    assert group.group.state is GroupState.COMPLETING_REBALANCE
    group.finish_append()
    assert group.sync_answer(token).assignment == b"L"


def test_an_assignment_that_cannot_be_written_starts_another_rebalance(group: Driver) -> None:
    leader, follower = two_in_sync_phase(group)
    waiting = group.sync(follower)
    group.append_error = ErrorCode.not_coordinator
    leading = group.sync(leader, {leader: b"L"})
    assert {group.sync_answer(leading).error, group.sync_answer(waiting).error} == {ErrorCode.not_coordinator}
    assert group.group.state is GroupState.PREPARING_REBALANCE


def test_an_assignment_written_during_the_next_rebalance_is_ignored(group: Driver) -> None:
    leader, follower = two_in_sync_phase(group)
    group.held_appends = deque()
    token = group.sync(leader, {leader: b"L"})
    group.leave(follower)
    assert group.sync_answer(token).error is ErrorCode.rebalance_in_progress
    group.finish_append()
    assert group.group.state is GroupState.PREPARING_REBALANCE


def test_an_assignment_written_in_the_next_generation_is_ignored(group: Driver) -> None:
    leader, follower = two_in_sync_phase(group)
    group.held_appends = deque()
    group.sync(leader, {leader: b"old"})
    group.leave(follower)
    group.join(leader)
    token = group.sync(leader, {leader: b"new"})
    group.finish_append()
    assert group.is_parked(token)
    group.finish_append()
    assert group.sync_answer(token).assignment == b"new"


def test_the_record_has_the_generation_and_all_members(group: Driver) -> None:
    leader, follower = group.stable(2)
    record = group.records[-1]
    assert (record.generation, record.leader, record.protocol, record.protocol_type) == (
        1,
        leader,
        "range",
        "consumer",
    )
    assert {member.member_id: member.assignment for member in record.members} == {
        leader: leader.encode(),
        follower: follower.encode(),
    }


def test_a_mismatched_sync_or_heartbeat_is_refused(group: Driver) -> None:
    (member_id,) = group.stable()
    syncs: list[tuple[ErrorCode, dict[str, Any]]] = [
        (ErrorCode.illegal_generation, {"generation": 7}),
        (ErrorCode.inconsistent_group_protocol, {"protocol_name": "roundrobin"}),
        (ErrorCode.inconsistent_group_protocol, {"protocol_type": "connect"}),
        (ErrorCode.unknown_member_id, {"instance_id": "nobody"}),
    ]
    for error, fields in syncs:
        assert group.sync_answer(group.sync(member_id, **fields)).error is error, fields
    assert group.heartbeat(member_id, generation=0) is ErrorCode.illegal_generation
    assert group.heartbeat(member_id, instance_id="nobody") is ErrorCode.unknown_member_id
    assert group.heartbeat("stranger") is ErrorCode.unknown_member_id


def test_a_sync_during_a_rebalance_is_refused(group: Driver) -> None:
    leader, follower = group.stable(2)
    group.join(leader)
    assert group.sync_answer(group.sync(follower)).error is ErrorCode.rebalance_in_progress


def test_a_sync_in_an_empty_group_is_refused(group: Driver) -> None:
    assert group.sync_answer(group.sync("stranger")).error is ErrorCode.unknown_member_id


def test_members_that_never_sync_are_removed(group: Driver) -> None:
    leader, follower = two_in_sync_phase(group)
    group.sync(leader, {})
    for _ in range(0, REBALANCE_MS, SESSION_MS // 2):
        group.advance(SESSION_MS // 2)
        group.heartbeat(leader)
        group.heartbeat(follower)
    assert follower not in group.group.membership.members
    assert leader in group.group.membership.members
    assert group.group.state is GroupState.PREPARING_REBALANCE


def test_a_heartbeat_keeps_a_member_alive(group: Driver) -> None:
    (member_id,) = group.stable()
    for _ in range(5):
        group.advance(SESSION_MS - 1)
        assert group.heartbeat(member_id) is ErrorCode.none


def test_a_member_without_heartbeats_is_removed(group: Driver) -> None:
    leader, follower = group.stable(2)
    group.advance(SESSION_MS // 2)
    group.heartbeat(leader)
    group.advance(SESSION_MS // 2)
    assert list(group.group.membership.members) == [leader]
    assert group.heartbeat(leader) is ErrorCode.rebalance_in_progress
    (note,) = [note for note in group.notes if note.what is Happening.TIMED_OUT]
    assert note.member_id == follower
    assert str(SESSION_MS) in note.reason


def test_a_waiting_member_needs_no_heartbeats(group: Driver) -> None:
    leader, follower = group.stable(2, rebalance_ms=REBALANCE_MS)
    token = group.join(leader)
    for _ in range(4):
        group.advance(SESSION_MS - 1)
        group.heartbeat(follower)
    assert group.is_parked(token)
    group.join(follower)
    assert group.join_answer(token).generation == 2


def test_a_group_is_empty_in_the_next_generation_after_the_last_member_left(group: Driver) -> None:
    (member_id,) = group.stable()
    assert group.leave(member_id) is ErrorCode.none
    assert group.group.state is GroupState.EMPTY
    record = group.records[-1]
    assert (record.generation, record.members, record.leader, record.protocol) == (2, (), None, None)
    assert record.protocol_type == "consumer"


def test_leaving_starts_a_rebalance(group: Driver) -> None:
    leader, follower = group.stable(2)
    group.leave(leader)
    assert group.heartbeat(follower) is ErrorCode.rebalance_in_progress
    token = group.join(follower)
    assert group.join_answer(token).leader == follower


def test_leaving_ends_a_waiting_join(group: Driver) -> None:
    member_id, token = group.become_member()
    group.leave(member_id)
    assert group.join_answer(token).error is ErrorCode.unknown_member_id


def test_a_pending_member_can_leave(group: Driver) -> None:
    member_id = group.join_answer(group.join()).member_id
    assert group.leave(member_id) is ErrorCode.none
    assert group.join_answer(group.join(member_id)).error is ErrorCode.unknown_member_id


def test_unknown_members_cannot_leave(group: Driver) -> None:
    group.stable()
    assert group.leave("stranger") is ErrorCode.unknown_member_id
    assert group.leave("", instance_id="nobody") is ErrorCode.unknown_member_id
    assert group.leave("") is ErrorCode.unknown_member_id


def test_the_rebalance_ends_when_the_last_missing_member_leaves(group: Driver) -> None:
    leader, follower = group.stable(2)
    token = group.join(leader)
    group.leave(follower)
    assert group.join_answer(token).generation == 2


def test_a_pending_id_delays_a_rebalance_until_it_expires(group: Driver) -> None:
    leader, _ = group.stable(2)
    group.join()
    follower = next(member_id for member_id in group.group.membership.members if member_id != leader)
    token = group.join(leader)
    other = group.join(follower)
    assert group.is_parked(token)
    group.advance(SESSION_MS)
    assert group.join_answer(token).generation == group.join_answer(other).generation == 2


def test_an_unloaded_group_completes_all_requests_and_is_dead(group: Driver) -> None:
    leader, follower = group.stable(2)
    token = group.join(leader)
    group._do(group.group.unload(ErrorCode.not_coordinator, group.now))
    assert group.join_answer(token).error is ErrorCode.not_coordinator
    assert group.heartbeat(follower) is ErrorCode.coordinator_not_available
    assert group.join_answer(group.join()).error is ErrorCode.coordinator_not_available
    assert group.sync_answer(group.sync(follower)).error is ErrorCode.coordinator_not_available


def test_a_group_loaded_from_its_record_continues(group: Driver) -> None:
    leader, follower = group.stable(2)
    again = Driver()
    again.group.restore(group.records[-1])
    again._do(again.group.loaded(again.now))
    assert again.heartbeat(leader, generation=1) is ErrorCode.none
    assert again.sync_answer(again.sync(follower)).assignment == follower.encode()
    assert again.group.is_subscribed_to("t")
    again.advance(SESSION_MS)
    assert not again.group.membership.members
