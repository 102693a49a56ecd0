"""Joins of new members, rejoins, and joins of restarted static members (KIP-345) in a classic group."""

from dataclasses import dataclass
from functools import partial

from headrace.coordinator.groups.classic.membership import ClassicMember
from headrace.coordinator.groups.classic.rebalance import Rebalance
from headrace.coordinator.groups.classic.states import GroupState
from headrace.coordinator.groups.effects import (
    UNKNOWN_MEMBER_ID,
    Effect,
    Happening,
    JoinResult,
    Note,
    SyncResult,
    Timer,
    TimerKind,
)
from headrace.coordinator.groups.records.classic import GroupKey
from headrace.coordinator.groups.records.embedded import (
    decode_assignment,
    decode_subscription,
    subscribed_topics,
)
from headrace.coordinator.groups.requests import Join, Protocols
from headrace.coordinator.runtime.results import CancelTimer, Complete, ScheduleTimer, Write
from headrace.errors import ErrorCode, KafkaError
from headrace.wording import count

NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000
"""Maximum time that a new member's join stays parked: the member sends no heartbeats before the reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Replaced:
    """The data to complete or undo the replacement of a static member's id."""

    old_member_id: str
    new_member_id: str
    protocols: Protocols
    rebalance_timeout_ms: int
    session_timeout_ms: int
    old_leader_id: str
    supports_skipping_assignment: bool


class Joining:
    """Handles JoinGroup for one group."""

    def __init__(self, rebalance: Rebalance, max_size: int) -> None:
        self._rebalance = rebalance
        self._max_size = max_size

    def join(self, request: Join, now_ms: int) -> list[Effect]:
        """Reply at once with an error, or if a known member rejoins unchanged; otherwise park the request.

        A parked request is answered when the join phase completes, or when a static member's new id has been written.
        """
        out: list[Effect] = []
        rebalance = self._rebalance
        if not self._accepts(request.member_id):
            _refuse(out, request, ErrorCode.group_max_size_reached, UNKNOWN_MEMBER_ID)
            self._drop_surplus(out, request.member_id, now_ms)
        elif rebalance.state is GroupState.DEAD:
            _refuse(out, request, ErrorCode.coordinator_not_available, request.member_id)
        elif not self._supports(request):
            _refuse(out, request, ErrorCode.inconsistent_group_protocol, request.member_id)
        elif request.member_id == UNKNOWN_MEMBER_ID:
            self._join_new(out, request, now_ms)
        elif request.member_id in rebalance.membership.pending_joins and request.instance_id is None:
            self._add(out, request, request.member_id, now_ms)
        else:
            self._rejoin(out, request, now_ms)
        return out

    def _accepts(self, member_id: str) -> bool:
        rebalance = self._rebalance
        if rebalance.state in (GroupState.EMPTY, GroupState.DEAD):
            return True
        member = rebalance.membership.members.get(member_id)
        if rebalance.state is GroupState.PREPARING_REBALANCE:
            # If group.max.size was reduced, the last members to rejoin have to leave: count parked joins.
            if member is not None and member.awaiting_join is not None:
                return True
            return rebalance.membership.awaiting_join_count < self._max_size
        return member is not None or len(rebalance.membership) < self._max_size

    def _supports(self, request: Join) -> bool:
        rebalance = self._rebalance
        if rebalance.state is GroupState.EMPTY:
            return bool(request.protocol_type) and bool(request.protocols)
        if request.protocol_type != rebalance.protocol_type:
            return False
        return rebalance.membership.shares_a_protocol(name for name, _ in request.protocols)

    def _drop_surplus(self, out: list[Effect], member_id: str, now_ms: int) -> None:
        rebalance = self._rebalance
        rebalance.membership.pending_joins.pop(member_id, None)
        member = rebalance.membership.members.get(member_id)
        if member is not None:
            rebalance.drop(out, member, ErrorCode.group_max_size_reached)
            rebalance.note(
                out, Happening.LEFT, member, f"the group is full: {count(self._max_size, 'member')} (group.max.size)"
            )
        rebalance.maybe_complete_join(out, now_ms)

    def _join_new(self, out: list[Effect], request: Join, now_ms: int) -> None:
        rebalance = self._rebalance
        if request.instance_id is not None and request.instance_id in rebalance.membership.static:
            self._replace_static(out, request, rebalance.membership.static[request.instance_id], now_ms)
        elif request.instance_id is None and request.requires_known_member_id:
            rebalance.membership.pending_joins[request.new_member_id] = (request.client_id, request.client_host)
            rebalance.note_pending(out, Happening.MEMBER_ID_ASSIGNED, request.new_member_id, request.reason)
            out.append(ScheduleTimer(Timer(TimerKind.HEARTBEAT, request.new_member_id), request.session_timeout_ms))
            _refuse(out, request, ErrorCode.member_id_required, request.new_member_id)
        else:
            self._add(out, request, request.new_member_id, now_ms)

    def _add(self, out: list[Effect], request: Join, member_id: str, now_ms: int) -> None:
        rebalance = self._rebalance
        member = ClassicMember(
            member_id=member_id,
            instance_id=request.instance_id,
            client_id=request.client_id,
            client_host=request.client_host,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            protocol_type=request.protocol_type,
            protocols=request.protocols,
            is_new=True,
        )
        rebalance.add(member, request.reply_to)
        rebalance.note(out, Happening.JOINED, member, request.reason)
        out.append(ScheduleTimer(Timer(TimerKind.HEARTBEAT, member_id), NEW_MEMBER_JOIN_TIMEOUT_MS))
        rebalance.rebalance_or_complete(out, f"adding member {member_id}; client reason: {request.reason}", now_ms)

    def _rejoin(self, out: list[Effect], request: Join, now_ms: int) -> None:
        rebalance = self._rebalance
        try:
            member = rebalance.check_member(request.member_id, request.instance_id, rebalance.generation)
        except KafkaError as error:
            rebalance.note_fenced(out, error, request.member_id, request.instance_id, "JoinGroup")
            _refuse(out, request, error.code, request.member_id)
            return
        if rebalance.state is GroupState.PREPARING_REBALANCE:
            cause = f"member {member.member_id} rejoined"
        elif member.protocols != request.protocols:
            cause = f"member {member.member_id} changed its metadata"
        elif rebalance.state is GroupState.STABLE and member.member_id == rebalance.membership.leader_id:
            # The leader rejoins to assign partitions again, for example after topics changed.
            cause = f"leader {member.member_id} rejoined"
        else:
            # The member may not have received the reply to its last join: repeat it.
            out.append(Complete(request.reply_to, rebalance.join_result(member)))
            out.append(rebalance.session_timer(member))
            return
        before = member.protocols
        self._park(out, member, request)
        rebalance.note(out, Happening.REJOINED, member, request.reason)
        self._note_subscription(out, member, before)
        rebalance.rebalance_or_complete(out, f"{cause}; client reason: {request.reason}", now_ms)

    def _park(self, out: list[Effect], member: ClassicMember, request: Join) -> None:
        rebalance = self._rebalance
        # Complete an earlier request of this member, which its client has abandoned.
        stale = JoinResult(error=ErrorCode.rebalance_in_progress, member_id=member.member_id)
        rebalance.answer_join(out, member, stale)
        rebalance.membership.update(member, request.protocols, request.rebalance_timeout_ms, request.session_timeout_ms)
        rebalance.membership.park_join(member, request.reply_to)

    def _replace_static(self, out: list[Effect], request: Join, old_id: str, now_ms: int) -> None:
        """Replace the member id of a restarted static member (KIP-345)."""
        rebalance = self._rebalance
        member = rebalance.membership.members[old_id]
        rebalance.note(out, Happening.FENCED, member, f"replaced by {request.new_member_id}")
        rebalance.answer_join(out, member, JoinResult(error=ErrorCode.fenced_instance_id, member_id=old_id))
        rebalance.answer_sync(out, member, SyncResult(error=ErrorCode.fenced_instance_id))
        replaced = _Replaced(
            old_member_id=old_id,
            new_member_id=request.new_member_id,
            protocols=member.protocols,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            session_timeout_ms=member.session_timeout_ms,
            old_leader_id=rebalance.membership.leader_id or "",
            supports_skipping_assignment=request.supports_skipping_assignment,
        )
        was_revoking = _was_revoking(member.metadata(rebalance.protocol_name), member.assignment)
        self._rename(out, member, request.new_member_id)
        member.is_new = False
        self._park(out, member, request)
        # As in Kafka, the member keeps its old client id and host; the timeline shows the new ones.
        out.append(
            Note(
                what=Happening.REPLACED,
                generation=rebalance.generation,
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=request.client_id,
                client_host=request.client_host,
                reason=request.reason,
            )
        )
        is_same_protocol = rebalance.membership.select_protocol() == rebalance.protocol_name
        if rebalance.state is GroupState.STABLE and is_same_protocol and not was_revoking:
            record = GroupKey(rebalance.group_id), rebalance.metadata()
            out.append(Write([record], partial(self._replacement_written, replaced)))
        elif rebalance.state is GroupState.PREPARING_REBALANCE:
            rebalance.maybe_complete_join(out, now_ms)
        else:
            # The protocol changes, or the leader may already be assigning to the old id, or revoked partitions wait for
            # a rebalance that the replaced member would have started.
            rebalance.prepare_rebalance(out, f"static member {request.instance_id} rejoined with a new id", now_ms)

    def _rename(self, out: list[Effect], member: ClassicMember, new_id: str) -> None:
        rebalance = self._rebalance
        out.append(CancelTimer(Timer(TimerKind.HEARTBEAT, member.member_id)))
        rebalance.membership.rename(member.member_id, new_id)
        out.append(rebalance.session_timer(member))

    def _replacement_written(self, replaced: "_Replaced", error: ErrorCode, _now_ms: int) -> list[Effect]:
        out: list[Effect] = []
        rebalance = self._rebalance
        membership = rebalance.membership
        member = membership.members.get(replaced.new_member_id)
        if member is None:
            return out
        if error is not ErrorCode.none:
            rebalance.answer_join(out, member, JoinResult(error=error))
            membership.update(member, replaced.protocols, replaced.rebalance_timeout_ms, replaced.session_timeout_ms)
            self._rename(out, member, replaced.old_member_id)
        elif replaced.supports_skipping_assignment:
            is_leader = member.member_id == membership.leader_id
            rebalance.answer_join(out, member, rebalance.join_result(member, skip_assignment=is_leader))
        else:
            # An older client would assign again if it were the leader: name its old id as the leader (KIP-814).
            rebalance.answer_join(out, member, rebalance.join_result(member, leader=replaced.old_leader_id))
        return out

    def _note_subscription(self, out: list[Effect], member: ClassicMember, before: Protocols) -> None:
        rebalance = self._rebalance
        if rebalance.is_consumer and before and member.protocols and before != member.protocols:
            # A cooperative member's metadata changes with every rejoin: it includes the owned partitions.
            old, new = (subscribed_topics([protocols[0][1]]) for protocols in (before, member.protocols))
            if old is not None and new is not None and old != new:
                rebalance.note(
                    out, Happening.SUBSCRIBED, member, f"{', '.join(sorted(old))} -> {', '.join(sorted(new))}"
                )


def _was_revoking(subscription: bytes, assignment: bytes) -> bool:
    """Return True if a cooperative member joined with partitions that the assignment takes from it. It has to revoke
    them and rejoin, so that others can get them. Kafka forgets this when the member is replaced.
    """
    try:
        owned = {(topic, index) for topic, indexes in decode_subscription(subscription).owned for index in indexes}
        kept = decode_assignment(assignment).partitions if assignment else {}
    except ValueError:
        return False  # another embedded protocol
    return not owned <= {(topic, index) for topic, indexes in kept.items() for index in indexes}


def _refuse(out: list[Effect], request: Join, error: ErrorCode, member_id: str) -> None:
    out.append(Complete(request.reply_to, JoinResult(error=error, member_id=member_id)))
