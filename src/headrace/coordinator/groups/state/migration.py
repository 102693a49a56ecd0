"""Convert a classic group with members to the consumer protocol (KIP-848)."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from headrace.coordinator.groups.classic.group import ClassicGroup
from headrace.coordinator.groups.classic.membership import ClassicMember
from headrace.coordinator.groups.classic.states import GroupState
from headrace.coordinator.groups.consumer.member import ConsumerMember
from headrace.coordinator.groups.consumer.state import ConsumerDecision
from headrace.coordinator.groups.records.consumer import (
    AssignmentEpoch,
    ClassicMemberMetadata,
    ConsumerGroupKey,
    CurrentAssignmentKey,
    GroupEpoch,
    MemberKey,
    MemberState,
    Partitions,
    TargetAssignment,
    TargetAssignmentKey,
    TargetMemberKey,
    TopicIdPartition,
)
from headrace.coordinator.groups.records.embedded import (
    Assignment,
    decode_assignment,
    decode_subscription,
)
from headrace.coordinator.groups.settings import GroupSettings
from headrace.coordinator.groups.subscriptions import Topics, metadata_hash
from headrace.errors import ErrorCode, KafkaError

_UPGRADES: Final = frozenset({"upgrade", "bidirectional"})


def upgrade(group: ClassicGroup, settings: GroupSettings, topics: Topics) -> ConsumerDecision:
    """Return the records of the converted group. Epochs start at its generation, and members keep their assignments.
    The member whose join converts the group starts the first rebalance.

    Raises KafkaError(group_id_not_found) if the group cannot be converted.
    """
    _check(group, settings)
    epoch = group.generation
    members = _unrevoked([_converted(group, member, topics) for member in group.membership.members.values()])
    group_id = group.group_id
    names = {topic for member in members for topic in member.topics}
    decision: ConsumerDecision = [(MemberKey(group_id, item.member_id), item.subscription) for item in members]
    # During a rebalance, or after a topic has grown, members may lack partitions. The join of a member that replaces a
    # static one starts no rebalance, so a raised group epoch must.
    is_settled = group.state is GroupState.STABLE and _are_all_assigned(names, members, topics)
    group_epoch = GroupEpoch(epoch if is_settled else epoch + 1, metadata_hash(names, topics))
    decision.append((ConsumerGroupKey(group_id), group_epoch))
    for item in members:
        decision.append((TargetMemberKey(group_id, item.member_id), TargetAssignment(frozenset(item.assigned))))
    decision.append((TargetAssignmentKey(group_id), AssignmentEpoch(epoch, 0)))
    decision += ((CurrentAssignmentKey(group_id, one.member_id), one.current) for one in members)
    return decision


def _are_all_assigned(names: Iterable[str], members: Iterable[ConsumerMember], topics: Topics) -> bool:
    assigned = {one for member in members for one in member.assigned}
    described = (topics.describe(topic) for topic in names)
    return all(
        TopicIdPartition(topic_id, index) in assigned
        for topic_id, count in filter(None, described)
        for index in range(count)
    )


def _unrevoked(members: list[tuple[ConsumerMember, Partitions]]) -> list[ConsumerMember]:
    """Mark partitions that cooperative members must revoke. A member owns them until it rejoins; Kafka treats them as
    unowned.
    """
    taken = {one for member, _ in members for one in member.assigned}
    out = []
    for member, owned in members:
        revoking = owned - taken
        taken |= revoking
        state = MemberState.UNREVOKED_PARTITIONS if revoking else MemberState.STABLE
        out.append(replace(member, state=state, revoking=dict.fromkeys(revoking, member.epoch)))
    return out


def _check(group: ClassicGroup, settings: GroupSettings) -> None:
    if settings.group_consumer_migration_policy not in _UPGRADES:
        raise _refusal(group, "online upgrade is disabled (group.consumer.migration.policy)")
    if not group.is_consumer:
        raise _refusal(group, "the group does not use the consumer embedded protocol")
    if len(group.membership) > settings.group_consumer_max_size:
        raise _refusal(group, "the group size exceeds the consumer group maximum size (group.consumer.max.size)")


def _converted(group: ClassicGroup, member: ClassicMember, topics: Topics) -> tuple[ConsumerMember, Partitions]:
    """Return the member with its latest assignment, and the partitions that it owned when it joined."""
    # Before the first join phase completes, no protocol is selected; all of a member's protocols have its subscription.
    metadata = member.metadata(group.protocol_name) or member.protocols[0][1]
    try:
        subscription = decode_subscription(metadata)
        assignment = decode_assignment(member.assignment) if member.assignment else Assignment({})
    except ValueError as error:
        raise _refusal(group, "the embedded consumer protocol is malformed") from error
    if assignment.user_data:
        raise KafkaError(
            ErrorCode.group_id_not_found,
            f"Cannot upgrade classic group {group.group_id} to consumer group because an unsupported custom assignor is"
            " in use. Please refer to the documentation or switch to a default assignor before re-attempting the"
            " upgrade.",
        )
    assigned = _with_ids(assignment.partitions, topics)
    converted = ConsumerMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=subscription.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topics=tuple(sorted(set(subscription.topics))),
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        epoch=group.generation,
        previous_epoch=group.generation,
        assigned=dict.fromkeys(assigned, group.generation),
        classic=ClassicMemberMetadata(member.session_timeout_ms, member.protocols),
    )
    return converted, _with_ids(dict(subscription.owned), topics)


def _with_ids(partitions: Mapping[str, tuple[int, ...]], topics: Topics) -> Partitions:
    return frozenset(
        TopicIdPartition(description[0], index)
        for topic, indexes in partitions.items()
        if (description := topics.describe(topic)) is not None
        for index in indexes
    )


def _refusal(group: ClassicGroup, reason: str) -> KafkaError:
    return KafkaError(
        ErrorCode.group_id_not_found,
        f"Cannot upgrade classic group {group.group_id} to consumer group because {reason}.",
    )
