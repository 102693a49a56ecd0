"""Members with a group.instance.id keep their place across restarts (KIP-345)."""

from collections import deque

import pytest

from headrace.coordinator.groups.classic.states import GroupState
from headrace.coordinator.groups.effects import Happening
from headrace.errors import ErrorCode
from tests.unit.coordinator.driver import INITIAL_DELAY_MS, REBALANCE_MS, SESSION_MS, Driver, subscription


def test_a_restarted_static_member_keeps_its_assignment_without_a_rebalance(group: Driver) -> None:
    group.static_member("leader")
    old = group.static_member("i")
    generation = group.group.generation
    new = group.join_answer(group.join(instance_id="i"))
    assert (new.error, new.generation) == (ErrorCode.none, generation)
    assert new.member_id != old
    assert group.group.state is GroupState.STABLE
    assert group.sync_answer(group.sync(new.member_id, instance_id="i")).assignment == old.encode()


def test_a_restarted_leader_must_skip_the_assignment(group: Driver) -> None:
    group.static_member("i")
    answer = group.join_answer(group.join(instance_id="i"))
    assert answer.skip_assignment
    assert answer.leader == answer.member_id
    assert [member_id for member_id, _, _ in answer.members] == [answer.member_id]


def test_a_restarted_leader_that_cannot_skip_gets_the_earlier_leader(group: Driver) -> None:
    old = group.static_member("i")
    answer = group.join_answer(group.join(instance_id="i", version=8))
    assert (answer.leader, answer.members, answer.skip_assignment) == (old, (), False)


def test_the_earlier_id_is_fenced(group: Driver) -> None:
    old = group.static_member("i")
    group.join(instance_id="i")
    assert group.heartbeat(old, instance_id="i") is ErrorCode.fenced_instance_id
    assert group.sync_answer(group.sync(old, instance_id="i")).error is ErrorCode.fenced_instance_id
    assert group.join_answer(group.join(old, instance_id="i")).error is ErrorCode.fenced_instance_id
    assert group.commit(old, instance_id="i", generation=1) is ErrorCode.fenced_instance_id
    assert group.leave(old, instance_id="i") is ErrorCode.fenced_instance_id
    assert Happening.FENCED in group.happened()


def test_a_parked_join_of_the_earlier_id_is_fenced(group: Driver) -> None:
    first = group.join(instance_id="i")
    assert group.is_parked(first), "a static member needs no second join"
    second = group.join(instance_id="i")
    assert group.join_answer(first).error is ErrorCode.fenced_instance_id
    group.finish_initial_rebalance()
    assert group.join_answer(second).error is ErrorCode.none
    assert group.join_answer(second).member_id.startswith("i-")


def test_a_parked_sync_of_the_earlier_id_is_fenced(group: Driver) -> None:
    group.become_member()
    group.join(instance_id="i")
    group.finish_initial_rebalance()
    old = group.group.membership.static["i"]
    waiting = group.sync(old, instance_id="i")
    group.join(instance_id="i")
    assert group.sync_answer(waiting).error is ErrorCode.fenced_instance_id
    assert group.group.state is GroupState.PREPARING_REBALANCE, "the leader may only know the earlier id"


def test_a_restart_that_changes_the_chosen_protocol_starts_a_rebalance(group: Driver) -> None:
    both = (("range", subscription("t")), ("sticky", subscription("t")))
    group.static_member("i", protocols=both)
    token = group.join(instance_id="i", protocols=both[::-1])
    assert group.join_answer(token).protocol_name == "sticky"
    assert group.join_answer(token).generation == 2


def test_a_restart_during_a_rebalance_joins_it(group: Driver) -> None:
    leader = group.static_member("leader")
    old = group.static_member("i")
    leading = group.join(leader, instance_id="leader")
    token = group.join(instance_id="i")
    assert group.join_answer(token).generation == group.join_answer(leading).generation
    assert old not in group.group.membership.members


def test_a_static_member_survives_a_rebalance_it_misses(group: Driver) -> None:
    leader = group.static_member("leader", session_ms=REBALANCE_MS * 10)
    absent = group.static_member("i", session_ms=REBALANCE_MS * 10)
    token = group.join(leader, instance_id="leader", session_ms=REBALANCE_MS * 10)
    group.advance(REBALANCE_MS)
    assert absent in {member_id for member_id, _, _ in group.join_answer(token).members}


def test_a_rebalance_without_joins_ends_with_the_sessions(group: Driver) -> None:
    (leader,) = group.stable(1)
    static = group.static_member("i", session_ms=REBALANCE_MS * 3)
    group.leave(leader)
    group.advance(REBALANCE_MS)
    assert Happening.STALLED in group.happened()
    assert static in group.group.membership.members
    group.advance(REBALANCE_MS * 3)
    assert group.group.state is GroupState.EMPTY


def test_an_admin_removes_a_static_member_by_its_instance_id(group: Driver) -> None:
    group.static_member("i")
    assert group.leave("", instance_id="i") is ErrorCode.none
    assert group.group.state is GroupState.EMPTY


def test_a_restart_that_cannot_be_written_is_undone(group: Driver) -> None:
    old = group.static_member("i")
    group.append_error = ErrorCode.coordinator_not_available
    answer = group.join_answer(group.join(instance_id="i"))
    assert answer.error is ErrorCode.coordinator_not_available
    assert group.heartbeat(old, instance_id="i") is ErrorCode.none


def test_a_restart_takes_effect_when_it_is_written(group: Driver) -> None:
    group.static_member("i")
    group.held_appends = deque()
    token = group.join(instance_id="i")
    assert group.is_parked(token)
    group.finish_append()
    assert group.join_answer(token).error is ErrorCode.none


def test_a_restarted_member_has_its_own_session(group: Driver) -> None:
    group.static_member("i")
    group.join(instance_id="i")
    group.advance(SESSION_MS)
    assert group.group.state is GroupState.EMPTY


def test_a_pending_id_cannot_become_static(group: Driver) -> None:
    member_id = group.join_answer(group.join()).member_id
    answer = group.join_answer(group.join(member_id, instance_id="i"))
    assert answer.error is ErrorCode.unknown_member_id


@pytest.mark.parametrize("timeout_ms", [0, -1_000_000])
def test_a_stalled_group_is_checked_once_a_second_and_noted_once(group: Driver, timeout_ms: int) -> None:
    group.static_member("patient")
    group.static_member("impatient", rebalance_ms=timeout_ms)
    assert group.group.state is GroupState.STABLE
    fired_before = len(group.fired)
    group.leave("", instance_id="patient")
    group.advance(SESSION_MS - 1)
    assert group.happened().count(Happening.STALLED) == 1
    assert len(group.fired) - fired_before <= SESSION_MS / 1000
    group.advance(1)
    assert group.group.is_empty


def test_a_member_with_a_rebalance_timeout_of_zero_has_no_time_to_sync(group: Driver) -> None:
    """Apache Kafka since 3.0 also removes the member when its clock advances."""
    member_id, _ = group.become_member(rebalance_ms=0)
    group.advance(INITIAL_DELAY_MS)
    assert group.sync_answer(group.sync(member_id, generation=1)).error is ErrorCode.unknown_member_id
    assert group.group.is_empty
