"""A group of the consumer protocol as it will be once the decision so far is in the log."""

from collections.abc import Iterator
from dataclasses import dataclass

from headrace.coordinator.groups.consumer.member import ConsumerMember
from headrace.coordinator.groups.consumer.records import (
    ConsumerKey,
    CurrentAssignmentKey,
    MemberKey,
    MemberSubscription,
    ResolvedRegex,
    TargetMemberKey,
)
from headrace.coordinator.groups.effects import Effect, Timer, TimerKind
from headrace.coordinator.runtime.results import CancelTimer


@dataclass(slots=True)
class Draft:
    """What of the group is replayed from the decision."""

    members: dict[str, ConsumerMember]
    epoch: int
    metadata_hash: int
    regexes: dict[str, ResolvedRegex]


def member_tombstones(group_id: str, member_id: str) -> Iterator[tuple[ConsumerKey, None]]:
    for kind in (CurrentAssignmentKey, TargetMemberKey, MemberKey):
        yield kind(group_id, member_id), None


def no_more_timers(member_id: str) -> list[Effect]:
    kinds = (TimerKind.HEARTBEAT, TimerKind.REVOCATION, TimerKind.JOIN, TimerKind.SYNC)
    return [CancelTimer(Timer(kind, member_id)) for kind in kinds]


def subscription_of(member: ConsumerMember) -> MemberSubscription:
    return MemberSubscription(
        member.instance_id,
        member.rack_id,
        member.client_id,
        member.client_host,
        member.topics,
        member.regex,
        member.rebalance_timeout_ms,
        member.assignor,
        member.classic,
    )


def topics_of_member(member: ConsumerMember, draft: Draft) -> set[str]:
    resolved = draft.regexes.get(member.regex)
    return set(member.topics) if resolved is None else {*member.topics, *resolved.topics}


def topics_of(draft: Draft) -> set[str]:
    return {topic for member in draft.members.values() for topic in topics_of_member(member, draft)}
