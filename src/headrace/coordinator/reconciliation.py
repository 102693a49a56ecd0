"""One step of a member towards its target assignment: first give up what others are to get, then take what is free.

Pure. The states and their transitions are those of `MemberState`.
"""

from collections.abc import Callable
from dataclasses import replace

from headrace.coordinator.consumer_member import ConsumerMember, MemberState, Partitions, TopicIdPartition
from headrace.errors import ErrorCode, KafkaError


def reconcile(
    member: ConsumerMember,
    *,
    target_epoch: int,
    target: Partitions,
    is_free: Callable[[TopicIdPartition], bool],
    owned: Partitions | None,
) -> ConsumerMember:
    """The member after this step. `owned` is what it says it reads, None where its heartbeat does not say;
    `is_free` whether no other member has a partition.

    Raises KafkaError(fenced_member_epoch) for a member in a state that only a newer coordinator knows.
    """
    if member.is_reconciled_to(target_epoch):
        return member
    if member.state is MemberState.UNREVOKED_PARTITIONS:
        if owned is None or not owned.isdisjoint(member.revoking):
            return member
        return _next(member, member.epoch + 1, target_epoch, target, is_free, owned)
    if member.state is MemberState.UNKNOWN:
        if owned is None or owned:
            raise KafkaError(
                ErrorCode.fenced_member_epoch,
                "The consumer group member is in a unknown state."
                " The member must abandon all its partitions and rejoin.",
            )
        return _next(member, target_epoch, target_epoch, target, is_free, owned)
    return _next(member, member.epoch, target_epoch, target, is_free, owned)


def _next(
    member: ConsumerMember,
    epoch: int,
    target_epoch: int,
    target: Partitions,
    is_free: Callable[[TopicIdPartition], bool],
    owned: Partitions | None,
) -> ConsumerMember:
    kept = {partition: since for partition, since in member.assigned.items() if partition in target}
    revoking = {partition: since for partition, since in member.assigned.items() if partition not in target}
    if revoking and (owned is None or not owned.isdisjoint(revoking)):
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
    free = {partition: target_epoch for partition in missing if is_free(partition)}
    is_complete = len(free) == len(missing)
    return replace(
        member,
        state=MemberState.STABLE if is_complete else MemberState.UNRELEASED_PARTITIONS,
        epoch=target_epoch,
        previous_epoch=member.epoch,
        assigned=kept | free,
        revoking={},
    )
