"""One step of a member towards its target assignment: first revoke partitions, then take free ones.

Pure. The states are those of `MemberState`.
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
    """The target of a member, and the conditions for reaching it."""

    target_epoch: int
    target: Partitions
    subscribed: frozenset[bytes]
    """Ids of currently subscribed topics; the target may be older."""
    has_subscription_changed: bool
    is_free: Callable[[TopicIdPartition], bool]
    """Returns True if no other member owns the partition."""
    owned: Partitions | None
    """The partitions that the member reports; None if the request omits them."""

    def has_revoked(self, partitions: Iterable[TopicIdPartition]) -> bool:
        return self.owned is not None and self.owned.isdisjoint(partitions)


def reconcile(member: ConsumerMember, aim: Aim) -> ConsumerMember:
    """Return the member after this step.

    Raises KafkaError(fenced_member_epoch) if the member's state is UNKNOWN and it may own partitions.
    """
    if member.is_reconciled_to(aim.target_epoch):
        return _without_unsubscribed(member, aim) if aim.has_subscription_changed else member
    if member.state is MemberState.UNREVOKED_PARTITIONS and not aim.has_revoked(member.revoking):
        return _without_unsubscribed(member, aim) if aim.has_subscription_changed else member
    if member.state is MemberState.UNKNOWN:
        if aim.owned is None or aim.owned:
            raise KafkaError(
                ErrorCode.fenced_member_epoch,
                "The consumer group member is in an unknown state."
                " The member must abandon all its partitions and rejoin.",
            )
        return _next(member, aim.target_epoch, aim)
    return _next(member, member.epoch, aim)


def _without_unsubscribed(member: ConsumerMember, aim: Aim) -> ConsumerMember:
    """Revoke partitions of unsubscribed topics at once, without waiting for the next target."""
    kept = {one: since for one, since in member.assigned.items() if one.topic_id in aim.subscribed}
    if len(kept) == len(member.assigned):
        return member
    revoking = {**member.revoking, **{one: since for one, since in member.assigned.items() if one not in kept}}
    if aim.has_revoked(revoking):
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
    if revoking and not aim.has_revoked(revoking):
        # The member stays in its epoch until it reports that it has revoked them.
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
