"""One step of a member towards its target assignment: first give up what others are to get, then take what is free.

Pure. The states and their transitions are those of `MemberState`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from headrace.coordinator.groups.consumer.member import ConsumerMember
from headrace.coordinator.groups.records.consumer import (
    MemberState,
    Partitions,
    TopicIdPartition,
)
from headrace.errors import ErrorCode, KafkaError


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """Where a member is to go, and what is known of it."""

    target_epoch: int
    target: Partitions
    subscribed: frozenset[bytes]
    """Ids of the topics that it subscribes to now; the target may be older."""
    has_subscription_changed: bool
    is_free: Callable[[TopicIdPartition], bool]
    """Whether no other member has a partition."""
    owned: Partitions | None
    """What it says it reads, None where its heartbeat does not say."""

    def has_given_up(self, partitions: Iterable[TopicIdPartition]) -> bool:
        """Whether it says that it reads none of `partitions`."""
        return self.owned is not None and self.owned.isdisjoint(partitions)


def reconcile(member: ConsumerMember, aim: Aim) -> ConsumerMember:
    """The member after this step.

    Raises KafkaError(fenced_member_epoch) for a member in a state that only a newer coordinator knows.
    """
    if member.is_reconciled_to(aim.target_epoch):
        return _without_unsubscribed(member, aim) if aim.has_subscription_changed else member
    if member.state is MemberState.UNREVOKED_PARTITIONS and not aim.has_given_up(member.revoking):
        return _without_unsubscribed(member, aim) if aim.has_subscription_changed else member
    if member.state is MemberState.UNKNOWN:
        if aim.owned is None or aim.owned:
            raise KafkaError(
                ErrorCode.fenced_member_epoch,
                "The consumer group member is in a unknown state."
                " The member must abandon all its partitions and rejoin.",
            )
        return _next(member, aim.target_epoch, aim)
    return _next(member, member.epoch, aim)


def _without_unsubscribed(member: ConsumerMember, aim: Aim) -> ConsumerMember:
    """What it does not subscribe to any more is taken from it at once, and not with the next target only."""
    kept = {one: since for one, since in member.assigned.items() if one.topic_id in aim.subscribed}
    if len(kept) == len(member.assigned):
        return member
    revoking = {**member.revoking, **{one: since for one, since in member.assigned.items() if one not in kept}}
    if aim.has_given_up(revoking):
        return replace(member, previous_epoch=member.epoch, assigned=kept)
    return replace(
        member,
        state=MemberState.UNREVOKED_PARTITIONS,
        previous_epoch=member.epoch,
        assigned=kept,
        revoking=revoking,
    )


def _next(member: ConsumerMember, epoch: int, aim: Aim) -> ConsumerMember:
    target = {one for one in aim.target if one.topic_id in aim.subscribed}
    kept = {partition: since for partition, since in member.assigned.items() if partition in target}
    revoking = {partition: since for partition, since in member.assigned.items() if partition not in target}
    if revoking and not aim.has_given_up(revoking):
        # It stays in its epoch until it says that it has given them up.
        return replace(
            member,
            state=MemberState.UNREVOKED_PARTITIONS,
            epoch=epoch,
            previous_epoch=member.epoch,
            assigned=kept,
            revoking=revoking,
        )
    missing = target - kept.keys()
    free = {partition: aim.target_epoch for partition in missing if aim.is_free(partition)}
    is_complete = len(free) == len(missing)
    return replace(
        member,
        state=MemberState.STABLE if is_complete else MemberState.UNRELEASED_PARTITIONS,
        epoch=aim.target_epoch,
        previous_epoch=member.epoch,
        assigned=kept | free,
        revoking={},
    )
