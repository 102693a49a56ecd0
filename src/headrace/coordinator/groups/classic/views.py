"""Views of a classic group's members and assignments, in the form that both protocols share. Pure."""

from collections.abc import Iterator, Mapping, Sequence

from headrace.coordinator.groups.classic.rebalance import Rebalance
from headrace.coordinator.groups.classic.states import GroupState
from headrace.coordinator.groups.group import MemberView, Reads
from headrace.coordinator.groups.records.embedded import decode_assignment


def reads_of(group: Rebalance) -> Reads:
    """Return the subscribed topics, and the partitions of other topics that a client-side assignor assigned."""
    if not group.is_consumer:
        return {}
    assigned: dict[str, set[int]] = {}
    for member in group.membership.members.values():
        for topic, partitions in _assigned(member.assignment).items():
            assigned.setdefault(topic, set()).update(partitions)
    reads: dict[str, frozenset[int] | None] = {topic: frozenset(found) for topic, found in assigned.items()}
    reads.update(dict.fromkeys(group.subscribed_topics or ()))
    return reads


def views_of(group: Rebalance) -> Iterator[MemberView]:
    """Yield the members in the order in which they joined, then pending ones, as they were at the first step."""
    membership, state = group.membership, group.state
    pending = list(membership.pending_joins.items())
    for member in list(membership.members.values()):
        if state is GroupState.PREPARING_REBALANCE:
            is_waited_for = member.awaiting_join is None
        elif state is GroupState.COMPLETING_REBALANCE:
            is_waited_for = member.member_id == membership.leader_id
        else:
            is_waited_for = member.member_id in membership.pending_syncs
        yield MemberView(
            member_id=member.member_id,
            instance_id=member.instance_id,
            client_id=member.client_id,
            host=member.client_host.removeprefix("/"),
            is_waited_for=is_waited_for,
            partitions=_assigned(member.assignment) if group.is_consumer else {},
        )
    for member_id, (client_id, host) in pending:
        yield MemberView(
            member_id=member_id,
            instance_id=None,
            client_id=client_id,
            host=host.removeprefix("/"),
            is_waited_for=state is GroupState.PREPARING_REBALANCE,
        )


def _assigned(assignment: bytes) -> Mapping[str, Sequence[int]]:
    try:
        return decode_assignment(assignment).partitions if assignment else {}
    except ValueError:
        return {}  # a custom assignor's format
