"""A working copy of a consumer group's state, with the changes that a decision has made so far."""

from collections.abc import Iterator
from dataclasses import dataclass

from headrace.coordinator.groups.consumer.member import ConsumerMember
from headrace.coordinator.groups.effects import (
    Effect,
    Timer,
    TimerKind,
)
from headrace.coordinator.groups.records.consumer import (
    ConsumerKey,
    CurrentAssignmentKey,
    MemberKey,
    ResolvedRegex,
    TargetMemberKey,
)
from headrace.coordinator.runtime.results import CancelTimer


@dataclass(slots=True)
class Draft:
    """The parts of the state that a decision may change. The group itself changes only by replay."""

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


def topics_of_member(member: ConsumerMember, draft: Draft) -> set[str]:
    resolved = draft.regexes.get(member.regex)
    return set(member.topics) if resolved is None else {*member.topics, *resolved.topics}


def topics_of(draft: Draft) -> set[str]:
    return {topic for member in draft.members.values() for topic in topics_of_member(member, draft)}
