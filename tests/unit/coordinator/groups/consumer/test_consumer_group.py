from typing import Any

import pytest

from headrace.coordinator.groups.consumer.state import ConsumerGroupState
from headrace.coordinator.groups.records.consumer import ConsumerGroupKey, GroupEpoch, MemberState, RegexKey
from headrace.coordinator.groups.settings import GroupSettings
from headrace.errors import ErrorCode, KafkaError
from tests.unit.coordinator.consumer_driver import REBALANCE_TIMEOUT_MS, Client, ConsumerDriver, partitions
from tests.unit.coordinator.world import refusal


def refused(driver: ConsumerDriver, name: str, **changes: Any) -> KafkaError:
    """Return the error of a heartbeat; a client of an unknown name sends its first one."""
    client = driver.clients.get(name) or Client(name)
    with pytest.raises(KafkaError) as raised:
        driver.beat(client, **changes)
    return raised.value


def shared(consumers: ConsumerDriver) -> tuple[Client, Client]:
    """Return a member that owns all partitions, and one that has joined later and waits for its share."""
    first = consumers.join("a")
    consumers.apply_assignment(first)
    consumers.pass_time(1000)
    return first, consumers.join("b")


def test_a_partition_is_assigned_after_its_owner_revoked_it(consumers: ConsumerDriver) -> None:
    first, second = shared(consumers)
    assert (second.epoch, second.assignment) == (3, frozenset())
    consumers.beat(first)
    assert (first.epoch, len(first.assignment)) == (2, 2)
    assert consumers.beat(second).assignment == frozenset()
    consumers.apply_assignment(first)
    consumers.beat(first)
    assert first.epoch == 3
    consumers.beat(second)
    assert second.assignment == partitions("t", 0, 1, 2, 3) - first.assignment


UNCHANGED: dict[str, Any] = {"topics": None, "owned": None, "rebalance_timeout_ms": -1}
"""Fields of a heartbeat that reports no change."""


def test_the_first_assignment_is_repeated_until_the_member_reports_it_as_owned(consumers: ConsumerDriver) -> None:
    client = consumers.join("a")
    assert (client.epoch, client.assignment) == (2, partitions("t", 0, 1, 2, 3))
    assert consumers.beat(client, **UNCHANGED).assignment == client.assignment
    consumers.apply_assignment(client)
    assert consumers.beat(client, topics=None, rebalance_timeout_ms=-1).assignment is None
    assert consumers.beat(client, **UNCHANGED).assignment is None


def test_a_lost_request_to_revoke_is_repeated_for_a_client_that_reports_no_change(consumers: ConsumerDriver) -> None:
    client, _ = shared(consumers)
    consumers.beat(client, is_lost=True, **UNCHANGED)
    assert len(client.assignment) == 4
    consumers.reload()
    consumers.beat(client, **UNCHANGED)
    assert len(client.assignment) == 2
    consumers.settle()


def test_a_lost_partition_is_assigned_again_for_a_client_that_reports_no_change(consumers: ConsumerDriver) -> None:
    first, second = shared(consumers)
    consumers.beat(first)
    consumers.apply_assignment(first)
    consumers.beat(first)
    consumers.beat(second, is_lost=True, **UNCHANGED)
    assert not second.assignment
    consumers.beat(second, **UNCHANGED)
    assert len(second.assignment) == 2


def test_members_that_join_together_share_one_assignment(consumers: ConsumerDriver) -> None:
    consumers.join("a")
    consumers.join("b")
    consumers.join("c")
    seen = [(consumers.group.known.epoch, consumers.group.known.assignment_epoch, consumers.group.state)]
    consumers.pass_time(1000)
    seen.append((consumers.group.known.epoch, consumers.group.known.assignment_epoch, consumers.group.state))
    assert seen == [(4, 2, ConsumerGroupState.ASSIGNING), (4, 4, ConsumerGroupState.RECONCILING)]


def test_a_lost_response_is_repeated(consumers: ConsumerDriver) -> None:
    client, _ = shared(consumers)
    consumers.beat(client)
    consumers.apply_assignment(client)
    consumers.beat(client, is_lost=True)
    assert client.epoch == 2
    consumers.beat(client)
    assert client.epoch == 3


def test_a_wrong_epoch_or_member_id_is_refused(consumers: ConsumerDriver) -> None:
    consumers.apply_assignment(consumers.join("a"))
    for epoch in (1, 9):
        assert refused(consumers, "a", epoch=epoch).code is ErrorCode.fenced_member_epoch
    assert refused(consumers, "a", member_id="b").code is ErrorCode.unknown_member_id


def test_a_member_without_heartbeats_is_removed(consumers: ConsumerDriver) -> None:
    consumers.join("a")
    consumers.pass_time(45_000)
    assert consumers.group.state is ConsumerGroupState.EMPTY
    assert consumers.group.known.epoch == 3


def test_a_member_that_does_not_revoke_in_time_is_removed(consumers: ConsumerDriver) -> None:
    slow, other = shared(consumers)
    consumers.beat(slow)
    assert consumers.group.known.members["a"].state is MemberState.UNREVOKED_PARTITIONS
    for _ in range(REBALANCE_TIMEOUT_MS // 30_000):
        consumers.pass_time(30_000)
        consumers.beat(other)
        if "a" in consumers.clients:
            consumers.beat(slow)
    assert consumers.group.known.members.keys() == {"b"}
    consumers.settle()
    assert other.owned == partitions("t", 0, 1, 2, 3)


def test_partitions_of_a_leaving_member_go_to_the_others(consumers: ConsumerDriver) -> None:
    first, second = consumers.join("a"), consumers.join("b")
    consumers.settle()
    consumers.leave(first)
    consumers.settle()
    assert second.owned == partitions("t", 0, 1, 2, 3)


def test_a_member_over_the_maximum_is_refused() -> None:
    consumers = ConsumerDriver(GroupSettings(group_consumer_max_size=1))
    consumers.join("a")
    assert refused(consumers, "b").code is ErrorCode.group_max_size_reached


def test_the_assignor_with_most_votes_is_used(consumers: ConsumerDriver) -> None:
    consumers.join("a", "t", "u", assignor="range")
    consumers.join("b", "t", "u")
    consumers.settle()
    assert consumers.group.known.target == {
        "a": partitions("t", 0, 1) | partitions("u", 0, 1),
        "b": partitions("t", 2, 3) | partitions("u", 2),
    }


# Static members


def test_a_returning_static_member_keeps_its_partitions(consumers: ConsumerDriver) -> None:
    first, other = consumers.join("a", instance_id="i"), consumers.join("b")
    consumers.settle()
    epoch, kept = consumers.group.known.epoch, first.owned
    consumers.leave(first)
    consumers.beat(other)
    returned = consumers.join("c", instance_id="i")
    assert (returned.assignment, consumers.group.known.epoch) == (kept, epoch)


def test_an_active_static_member_is_not_replaced(consumers: ConsumerDriver) -> None:
    consumers.join("a", instance_id="i")
    assert refused(consumers, "b", instance_id="i").code is ErrorCode.unreleased_instance_id


def test_a_static_member_that_does_not_return_is_removed(consumers: ConsumerDriver) -> None:
    client = consumers.join("a", instance_id="i")
    consumers.leave(client)
    consumers.pass_time(45_000)
    assert consumers.group.is_empty


def test_the_earlier_id_of_a_static_member_is_fenced(consumers: ConsumerDriver) -> None:
    old = consumers.join("a", instance_id="i")
    consumers.leave(old)
    consumers.join("b", instance_id="i")
    assert refusal(consumers.beat, old, epoch=2) is ErrorCode.fenced_instance_id


# Topics and expressions


def test_new_partitions_are_assigned_and_those_of_a_deleted_topic_revoked(consumers: ConsumerDriver) -> None:
    client = consumers.join("a", "t", "u")
    consumers.apply_assignment(client)
    consumers.topics.set("t", 6)
    consumers.topics.delete("u")
    consumers.settle()
    assert client.owned == partitions("t", *range(6))


def test_partitions_of_an_unsubscribed_topic_are_revoked_before_the_next_assignment(consumers: ConsumerDriver) -> None:
    client = consumers.join("a", "t", "u")
    consumers.apply_assignment(client)
    client.topics = ("t",)
    assert consumers.beat(client).assignment == partitions("t", 0, 1, 2, 3)
    assert (consumers.group.known.epoch, consumers.group.known.assignment_epoch) == (3, 2)


def test_an_expression_is_resolved_when_matching_has_finished(consumers: ConsumerDriver) -> None:
    consumers.topics.is_busy = True
    client = consumers.join("a", regex="t.*")
    client.topics = ()
    consumers.settle()
    assert client.owned == frozenset()
    consumers.topics.is_busy = False
    consumers.settle()
    assert client.owned == partitions("t", 0, 1, 2, 3)


def test_an_expression_keeps_its_topics_until_new_ones_are_matched(consumers: ConsumerDriver) -> None:
    client = consumers.join("a", regex="t.*")
    client.topics = ()
    consumers.settle()
    consumers.topics.is_busy = True
    consumers.topics.set("t-new", 1)
    consumers.settle()
    assert client.owned == partitions("t", 0, 1, 2, 3)
    consumers.topics.is_busy = False
    consumers.settle()
    assert client.owned == partitions("t", 0, 1, 2, 3) | partitions("t-new", 0)
    assert consumers.group.is_subscribed_to("t-new")


def test_an_unused_expression_is_removed(consumers: ConsumerDriver) -> None:
    consumers.leave(consumers.join("a", regex="t.*"))
    assert consumers.records()[-2:] == [
        (RegexKey("g", "t.*"), None),
        (ConsumerGroupKey("g"), GroupEpoch(3, 0)),
    ]
    # The last tombstone is that of the group.
    assert [key for key, _ in consumers.group.tombstones()][-1] == ConsumerGroupKey("g")


def test_an_invalid_expression_is_refused_and_changes_nothing(consumers: ConsumerDriver) -> None:
    assert refused(consumers, "a", regex="(").code is ErrorCode.invalid_regular_expression
    assert consumers.log == []


# Offsets


def test_a_commit_in_the_previous_epoch_is_accepted_for_kept_partitions(consumers: ConsumerDriver) -> None:
    client = consumers.join("a")
    consumers.apply_assignment(client)
    consumers.pass_time(1000)
    consumers.join("b")
    consumers.beat(client)
    consumers.apply_assignment(client)
    consumers.beat(client)
    lost = partitions("t", 0, 1, 2, 3) - client.owned
    assert consumers.group.known.check_offset_commit("a", 2, client.owned) is not None
    for epoch, committed in ((2, lost), (4, client.owned), (1, client.owned)):
        assert refusal(consumers.group.known.check_offset_commit, "a", epoch, committed) is ErrorCode.stale_member_epoch


def test_an_admin_may_commit_to_an_empty_group(consumers: ConsumerDriver) -> None:
    assert consumers.group.known.check_offset_commit("", -1, frozenset()) is None
    consumers.join("a")
    assert refusal(consumers.group.known.check_offset_commit, "", -1, frozenset()) is ErrorCode.unknown_member_id
