import pytest

from headrace.errors import ErrorCode
from tests.unit.coordinator.driver import Driver


def test_any_client_may_commit_to_an_empty_group(group: Driver) -> None:
    assert group.commit() is ErrorCode.none
    assert group.commit("anyone", generation=-1) is ErrorCode.none


def test_a_member_commits_with_its_generation(group: Driver) -> None:
    (member_id,) = group.stable()
    assert group.commit(member_id, generation=1) is ErrorCode.none


@pytest.mark.parametrize(
    ("member_id", "generation", "error"),
    [
        ("", -1, ErrorCode.unknown_member_id),
        ("stranger", 1, ErrorCode.unknown_member_id),
        (None, 0, ErrorCode.illegal_generation),
        (None, -1, ErrorCode.illegal_generation),
    ],
)
def test_other_commits_to_a_group_with_members_are_refused(
    group: Driver, member_id: str | None, generation: int, error: ErrorCode
) -> None:
    (member,) = group.stable()
    assert group.commit(member if member_id is None else member_id, generation=generation) is error


def test_an_empty_group_refuses_earlier_members(group: Driver) -> None:
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


def test_a_transaction_may_commit_without_a_member_id(group: Driver) -> None:
    group.stable()
    assert group.commit(transactional=True) is ErrorCode.none
