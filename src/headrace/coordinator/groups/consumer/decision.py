"""What groups of the consumer protocol decide, and the group as it will be once that is written."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.coordinator.groups.consumer.member import ConsumerMember
from headrace.coordinator.groups.consumer.records import MemberSubscription, ResolvedRegex
from headrace.coordinator.groups.consumer.requests import ConsumerHeartbeatResult
from headrace.coordinator.groups.consumer.state import ConsumerDecision
from headrace.coordinator.groups.effects import CancelTimer, Effect, Timer, TimerKind
from headrace.coordinator.groups.records import GroupMetadata


@dataclass(frozen=True, slots=True, kw_only=True)
class Downgrade:
    """The group is one of the classic protocol as soon as the decision is in the log. Timeouts and `protocols` are
    soft state: members have told them, and tell them again after a restart.
    """

    metadata: GroupMetadata
    protocols: Mapping[str, tuple[tuple[str, bytes], ...]]
    """Member id to the names of its assignors and its subscription for each."""
    reason: str | None
    """Why it has to rebalance; None where its members keep what they have."""


@dataclass(slots=True)
class Outcome:
    """What is to be written and done, and the answer of a heartbeat."""

    decision: ConsumerDecision = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    result: ConsumerHeartbeatResult | None = None
    downgrade: Downgrade | None = None


@dataclass(slots=True)
class Draft:
    """The group as it will be once the decision so far is in the log."""

    members: dict[str, ConsumerMember]
    epoch: int
    metadata_hash: int
    regexes: dict[str, ResolvedRegex]


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
