"""The rules for the ISR and the high watermark, one case each."""

from typing import NamedTuple

import pytest

from headrace.errors import ErrorCode, KafkaError
from headrace.replication.leading.leader_state import Committed, LeaderState, Proposal

MAX_LAG_MS = 100


class Leadership(NamedTuple):
    leader_epoch: int = 4
    partition_epoch: int = 10
    replicas: tuple[int, ...] = (1, 2, 3)
    isr: tuple[int, ...] = (1, 2, 3)
    adding_replicas: tuple[int, ...] = ()


class Leader:
    """Broker 1, which leads with followers 2 and 3."""

    def __init__(self, *, isr: tuple[int, ...] = (1, 2, 3), log_end: int = 50, high_watermark: int = 40) -> None:
        self.now_ms = 1000
        self.log_end = log_end
        self.high_watermark = high_watermark
        self.min_isr = 2
        self.dead: set[int] = set()
        self.state = LeaderState(1, max_lag_ms=lambda: MAX_LAG_MS, is_alive=lambda broker: broker not in self.dead)
        self.state.own_end = log_end
        self.lead(isr=isr)

    def lead(self, **changes: object) -> bool:
        return self.state.lead(Leadership(**changes), log_end=self.log_end, now_ms=self.now_ms)  # type: ignore[arg-type]

    def fetch(self, follower: int, offset: int, *, epoch: int = -1) -> Proposal | None:
        self.state.fetched(
            follower, offset=offset, log_start_offset=0, log_end=self.log_end, broker_epoch=epoch, now_ms=self.now_ms
        )
        return self.state.expand(follower, self.high_watermark)

    def append(self, log_end: int) -> None:
        self.log_end = self.state.own_end = log_end

    def end(self) -> int:
        return self.state.committed_end(log_end=self.log_end, min_insync_replicas=self.min_isr, now_ms=self.now_ms)

    def shrink(self) -> Proposal | None:
        return self.state.shrink(self.log_end, self.now_ms)


def expanding() -> tuple[Leader, Proposal]:
    """Return a leader with the ISR 1 and 2, and its proposal to add 3."""
    leader = Leader(isr=(1, 2))
    proposal = leader.fetch(3, 50)
    assert proposal is not None
    return leader, proposal


def committed(proposal: Proposal) -> Committed:
    return Committed(proposal.leader_epoch, proposal.partition_epoch + 1, tuple(sorted(proposal.members)))


# The high watermark


def test_the_high_watermark_is_the_lowest_end_in_the_isr() -> None:
    cases: dict[str, tuple[tuple[int, ...], dict[int, int], int]] = {
        "lowest": ((1, 2, 3), {2: 45, 3: 42}, 42),
        "all": ((1, 2, 3), {2: 50, 3: 50}, 50),
        "silent member": ((1, 2, 3), {2: 45}, -1),
        "lagging outsider": ((1, 2), {2: 45, 3: 42}, 45),
        "silent outsider": ((1, 2), {2: 45}, 45),
        "under min ISR": ((1,), {2: 45}, -1),
    }
    for case, (isr, ends, expected) in cases.items():
        leader = Leader(isr=isr)
        leader.dead = {3} if len(isr) == 2 and 3 in ends else set()
        for follower, end in ends.items():
            leader.fetch(follower, end)
        leader.state.pending = None
        assert leader.end() == expected, case


def test_min_isr_counts_at_most_the_replicas() -> None:
    leader = Leader()
    leader.min_isr = 7
    leader.fetch(2, 50)
    leader.fetch(3, 50)
    assert leader.end() == 50


def test_the_high_watermark_waits_for_a_follower_that_keeps_up_outside_the_isr() -> None:
    leader = Leader(isr=(1, 2), log_end=50, high_watermark=50)
    leader.fetch(2, 50)
    leader.fetch(3, 50)
    leader.state.refused(leader.state.pending, ErrorCode.ineligible_replica)  # type: ignore[arg-type]
    leader.append(60)
    leader.fetch(2, 60)
    assert leader.end() == 50
    leader.now_ms += MAX_LAG_MS + 1
    assert leader.end() == 60


def test_the_high_watermark_stays_while_the_isr_has_a_member_that_was_moved_away() -> None:
    leader = Leader()
    leader.fetch(2, 50)
    leader.lead(leader_epoch=5, partition_epoch=11, replicas=(1, 2))
    leader.fetch(2, 50)
    assert leader.end() == -1
    leader.lead(leader_epoch=6, partition_epoch=12, replicas=(1, 2), isr=(1, 2))
    assert leader.end() == 50


def test_a_dead_follower_outside_the_isr_delays_nothing() -> None:
    leader = Leader(isr=(1, 2), high_watermark=60)
    leader.fetch(3, 50)
    leader.append(60)
    leader.fetch(2, 60)
    leader.dead = {3}
    assert leader.end() == 60


# Joining


def test_a_follower_joins_at_the_high_watermark_and_the_start_of_the_epoch() -> None:
    for case, log_end, high_watermark, offset, joins in (
        ("at both", 50, 50, 50, True),
        ("at the epoch's start", 50, 40, 50, True),
        ("below the epoch's start", 50, 40, 49, False),
        ("below the high watermark", 50, 55, 54, False),
    ):
        leader = Leader(isr=(1, 2), log_end=log_end, high_watermark=high_watermark)
        leader.append(60)
        assert (leader.fetch(3, offset) is not None) is joins, case


def test_a_dead_follower_does_not_join() -> None:
    leader = Leader(isr=(1, 2))
    leader.dead = {3}
    assert leader.fetch(3, 50) is None


def test_a_proposal_has_the_epochs_of_the_followers() -> None:
    leader = Leader(isr=(1, 2))
    leader.fetch(2, 50, epoch=22)
    assert leader.fetch(3, 50, epoch=33) == Proposal(4, 10, ((1, -1), (2, 22), (3, 33)), is_expansion=True)


# Leaving


def test_a_follower_leaves_after_the_lag_time() -> None:
    leader = Leader()
    leader.fetch(2, 50)
    leader.now_ms += MAX_LAG_MS
    assert leader.shrink() is None
    leader.now_ms += 1
    proposal = leader.shrink()
    assert proposal is not None
    assert proposal.members == {1, 2}
    assert not proposal.is_expansion


def test_a_follower_at_the_leaders_end_stays_however_long_it_is_silent() -> None:
    leader = Leader()
    leader.fetch(2, 50)
    leader.fetch(3, 50)
    leader.now_ms += 1_000_000
    assert leader.shrink() is None


def test_a_follower_that_always_reaches_the_previous_end_stays() -> None:
    leader = Leader(isr=(1, 2))
    for end in range(51, 60):
        leader.append(end)
        leader.fetch(2, end - 1)
        leader.now_ms += MAX_LAG_MS // 2
        assert leader.shrink() is None


def test_a_follower_that_fetches_without_keeping_up_leaves() -> None:
    leader = Leader(isr=(1, 2))
    shrunk = []
    for end in range(60, 120, 10):
        leader.append(end)
        leader.fetch(2, 51)
        leader.now_ms += MAX_LAG_MS // 2
        shrunk.append(leader.shrink() is not None)
    assert any(shrunk)


def test_idle_fetches_count_as_caught_up() -> None:
    leader = Leader(isr=(1, 2))
    leader.fetch(2, 50)
    leader.now_ms += 10_000
    leader.state.was_idle(2, leader.now_ms)
    leader.append(60)
    assert leader.shrink() is None


# Answers


def test_only_one_change_is_pending() -> None:
    leader = Leader(isr=(1, 2))
    assert leader.fetch(3, 50) is not None
    leader.append(60)
    leader.now_ms += MAX_LAG_MS + 1
    assert leader.shrink() is None
    assert leader.fetch(3, 60) is None


def test_a_change_that_was_not_applied_is_undone() -> None:
    leader = Leader(isr=(1, 2))
    for error in (ErrorCode.ineligible_replica, ErrorCode.operation_not_attempted):
        proposal = leader.fetch(3, 50)
        assert proposal is not None, error
        assert not leader.state.refused(proposal, error)
        assert leader.state.maximal_isr == {1, 2}
    assert leader.fetch(3, 50) is not None


def test_a_change_of_unknown_outcome_waits_for_leader_and_isr() -> None:
    for error, version in (
        (ErrorCode.unknown_topic_or_partition, 10),
        (ErrorCode.unknown_topic_id, 10),
        (ErrorCode.invalid_request, 10),
        (ErrorCode.fenced_leader_epoch, 11),
        (ErrorCode.invalid_update_version, 11),
        (ErrorCode.new_leader_elected, 11),
    ):
        leader, proposal = expanding()
        assert not leader.state.refused(proposal, error)
        assert leader.fetch(3, 51) is None
        leader.lead(partition_epoch=version - 1, isr=(1, 2))
        assert leader.state.maximal_isr == {1, 2, 3}, error
        leader.lead(partition_epoch=version, isr=(1, 2))
        assert leader.state.maximal_isr == {1, 2}, error


def test_an_answer_after_a_newer_leader_and_isr_is_ignored() -> None:
    leader, proposal = expanding()
    assert leader.lead(partition_epoch=12, isr=(1, 2))
    assert not leader.state.confirmed(proposal, committed(proposal))
    assert not leader.state.refused(proposal, ErrorCode.unknown_server_error)
    assert leader.state.isr == {1, 2}


def test_a_repeated_leader_and_isr_keeps_the_change_pending() -> None:
    # The controller may have applied it after it sent this state.
    leader, proposal = expanding()
    assert leader.lead(isr=(1, 2))
    assert leader.state.maximal_isr == {1, 2, 3}
    assert leader.state.confirmed(proposal, committed(proposal))


def test_the_controller_may_have_made_the_change_before() -> None:
    leader, proposal = expanding()
    assert leader.state.confirmed(proposal, Committed(4, 10, (1, 2, 3)))
    assert leader.state.isr == {1, 2, 3}


def test_a_confirmation_of_another_epoch_or_version_is_ignored() -> None:
    leader, proposal = expanding()
    for answer in (Committed(5, 11, (1,)), Committed(4, 9, (1,))):
        assert not leader.state.confirmed(proposal, answer)
        assert leader.state.maximal_isr == {1, 2, 3}


# LeaderAndIsr


def test_an_older_state_is_ignored() -> None:
    leader = Leader()
    assert not leader.lead(partition_epoch=9, isr=(1,))
    assert leader.state.isr == {1, 2, 3}


def test_a_new_epoch_begins_at_the_log_end_with_the_lag_time_for_members() -> None:
    leader = Leader()
    leader.fetch(2, 40)
    leader.fetch(3, 40)
    leader.append(70)
    leader.now_ms += 10 * MAX_LAG_MS
    assert leader.lead(leader_epoch=5, partition_epoch=11, isr=(1, 2))
    assert leader.state.epoch_start == 70
    assert leader.shrink() is None
    leader.now_ms += MAX_LAG_MS + 1
    assert leader.shrink() is not None


def test_the_ends_of_followers_are_forgotten_if_another_broker_may_have_led() -> None:
    for epoch, expected in ((5, 50), (6, -1)):
        leader = Leader()
        for follower in (2, 3):
            leader.fetch(follower, 50)
        assert leader.lead(leader_epoch=epoch, partition_epoch=11)
        assert leader.end() == expected, epoch


def test_a_replica_that_was_removed_is_forgotten() -> None:
    leader = Leader()
    assert leader.lead(partition_epoch=11, replicas=(1, 2), isr=(1, 2))
    with pytest.raises(KafkaError) as caught:
        leader.fetch(3, 50)
    assert caught.value.code is ErrorCode.unknown_leader_epoch
    assert leader.state.replica_count == 2


def test_fetches_of_a_process_before_its_restart_are_refused() -> None:
    leader = Leader()
    leader.fetch(2, 45, epoch=7)
    with pytest.raises(KafkaError) as caught:
        leader.fetch(2, 50, epoch=6)
    assert caught.value.code is ErrorCode.not_leader_or_follower
    assert leader.state.followers[2].end_offset == 45


def test_deletions_do_not_wait_for_dead_followers() -> None:
    leader = Leader()
    leader.dead = {2, 3}
    assert leader.state.low_watermark(7) == 7
