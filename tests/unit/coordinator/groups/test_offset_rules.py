from headrace.errors import ErrorCode
from tests.unit.coordinator.driver import Driver


def test_any_client_but_no_earlier_member_may_commit_to_an_empty_group(group: Driver) -> None:
    assert group.commit() is ErrorCode.none
    assert group.commit("anyone", generation=-1) is ErrorCode.none
    (member,) = group.stable()
    group.leave(member)
    assert group.commit(member, generation=1) is ErrorCode.unknown_member_id


def test_a_commit_between_join_and_sync_is_refused(group: Driver) -> None:
    member_id, _ = group.become_member()
    group.finish_initial_rebalance()
    assert group.commit(member_id, generation=1) is ErrorCode.rebalance_in_progress
    assert group.commit(member_id, generation=1, transactional=True) is ErrorCode.none


def test_a_commit_of_the_ending_generation_is_accepted_during_a_rebalance(group: Driver) -> None:
    leader, follower = group.stable(2)
    group.join(leader)
    assert group.commit(follower, generation=1) is ErrorCode.none


def test_only_members_and_transactions_commit_to_a_group_with_members(group: Driver) -> None:
    (member_id,) = group.stable()
    expected = {
        (member_id, 1): ErrorCode.none,
        (member_id, 0): ErrorCode.illegal_generation,
        (member_id, -1): ErrorCode.illegal_generation,
        ("", -1): ErrorCode.unknown_member_id,
        ("stranger", 1): ErrorCode.unknown_member_id,
    }
    assert {(member, at): group.commit(member, generation=at) for member, at in expected} == expected
    assert group.commit(transactional=True) is ErrorCode.none
