"""The members of a group and what they read, in one form for both protocols. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias
from uuid import UUID

from headrace.coordinator.groups.classic.group import ClassicGroup
from headrace.coordinator.groups.classic.states import GroupState
from headrace.coordinator.groups.consumer.group import ConsumerGroup
from headrace.coordinator.groups.consumer_protocol import decode_assignment
from headrace.coordinator.groups.shard import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberView:
    """One member; `partitions` is topic to what it reads, `waiting_for` whether the group waits for it now."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    is_waited_for: bool
    partitions: Mapping[str, Sequence[int]] = field(default_factory=dict)


def members_of(group: Group, topic_name: Callable[[UUID | None], str | None]) -> list[MemberView]:
    """The members of the group, in the order in which they joined."""
    if isinstance(group, ConsumerGroup):
        return _consumer_members(group, topic_name)
    return _classic_members(group)


Reads: TypeAlias = Mapping[str, frozenset[int] | None]
"""Topic to the partitions that the members of a group read; None for all partitions."""


def reads_of(group: Group) -> Reads:
    """Subscribed topics, and partitions of others that a client's own assignor has given to a member."""
    if isinstance(group, ConsumerGroup):
        # The broker assigns, and from subscribed topics only.
        return dict.fromkeys(group.subscribed_topics)
    if not group.is_consumer:
        return {}
    assigned: dict[str, set[int]] = {}
    for member in group.membership.members.values():
        for topic, partitions in _assigned(member.assignment).items():
            assigned.setdefault(topic, set()).update(partitions)
    reads: dict[str, frozenset[int] | None] = {topic: frozenset(found) for topic, found in assigned.items()}
    reads.update(dict.fromkeys(group.subscribed_topics or ()))
    return reads


def member_count(group: Group) -> int:
    return len(group.members) if isinstance(group, ConsumerGroup) else len(group.membership)


def type_of(group: Group) -> str:
    """As ListGroups names it."""
    return "consumer" if isinstance(group, ConsumerGroup) else "classic"


def _classic_members(group: ClassicGroup) -> list[MemberView]:
    membership = group.membership
    views = []
    for member in membership.members.values():
        if group.state is GroupState.PREPARING_REBALANCE:
            is_waited_for = member.awaiting_join is None
        elif group.state is GroupState.COMPLETING_REBALANCE:
            is_waited_for = member.member_id == membership.leader_id
        else:
            is_waited_for = member.member_id in membership.pending_syncs
        views.append(
            MemberView(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                host=member.client_host.removeprefix("/"),
                is_waited_for=is_waited_for,
                partitions=_assigned(member.assignment) if group.is_consumer else {},
            )
        )
    for member_id, (client_id, host) in membership.pending_joins.items():
        views.append(
            MemberView(
                member_id=member_id,
                instance_id=None,
                client_id=client_id,
                host=host.removeprefix("/"),
                is_waited_for=group.state is GroupState.PREPARING_REBALANCE,
            )
        )
    return views


def _assigned(assignment: bytes) -> Mapping[str, Sequence[int]]:
    try:
        return decode_assignment(assignment).partitions if assignment else {}
    except ValueError:
        return {}  # an assignor of the clients' own makes


def _consumer_members(group: ConsumerGroup, topic_name: Callable[[UUID | None], str | None]) -> list[MemberView]:
    views = []
    for member in group.members.values():
        partitions: dict[str, list[int]] = {}
        for one in sorted(member.assigned):
            name = topic_name(UUID(bytes=one.topic_id))
            if name is not None:
                partitions.setdefault(name, []).append(one.partition)
        views.append(
            MemberView(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                host=member.client_host.removeprefix("/"),
                is_waited_for=not member.is_reconciled_to(group.assignment_epoch),
                partitions=partitions,
            )
        )
    return views
