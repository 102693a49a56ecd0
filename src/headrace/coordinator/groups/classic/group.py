"""One group of the classic protocol (JoinGroup, SyncGroup, Heartbeat, LeaveGroup) as a pure machine.

Requests and fired timers go in with the time; a list of effects comes out. The machine does no I/O, reads no clock and
draws no random numbers: the shell passes `now_ms` (wall clock) and the ids of new members, starts the timers it is
asked for, and tells it when a record is in the log. Whom to answer (`reply_to`) is opaque here.

A member's life: join without an id -> MEMBER_ID_REQUIRED with one (KIP-394) -> join again, parked until the join phase
completes -> sync, parked until the leader's assignment is in the log -> heartbeats. Static members (KIP-345) keep
their place by instance id: a new join takes over the place and the assignment, and fences the earlier member id.
"""

from collections.abc import Mapping, Sequence

from headrace.coordinator.groups.classic.membership import ClassicMember, Protocols
from headrace.coordinator.groups.classic.rebalance import Rebalance
from headrace.coordinator.groups.classic.requests import Join, Leaver, Sync
from headrace.coordinator.groups.classic.states import GroupState
from headrace.coordinator.groups.consumer_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    decode_assignment,
    decode_subscription,
    subscribed_topics,
)
from headrace.coordinator.groups.effects import (
    UNKNOWN_MEMBER_ID,
    AppendCause,
    AppendMetadata,
    CancelTimer,
    CompleteJoin,
    CompleteSync,
    Effect,
    Happening,
    JoinResult,
    LeaderAssigned,
    Note,
    ScheduleTimer,
    StaticMemberReplaced,
    SyncResult,
    Timer,
    TimerKind,
)
from headrace.coordinator.groups.records import NO_TIMESTAMP
from headrace.errors import ErrorCode, KafkaError
from headrace.wording import count

NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000
"""How long a new member's join may stay parked: it has no id to send heartbeats with, and may be long gone."""


class ClassicGroup(Rebalance):
    """A group of the classic protocol: what members ask of it, checked and carried out."""

    def __init__(self, group_id: str, *, max_size: int, initial_rebalance_delay_ms: int, now_ms: int) -> None:
        super().__init__(group_id, initial_rebalance_delay_ms=initial_rebalance_delay_ms, now_ms=now_ms)
        self._max_size = max_size

    # Events

    def join(self, request: Join, now_ms: int) -> list[Effect]:
        """Answers at once with an error, or parks the request until the join phase completes."""
        out: list[Effect] = []
        if not self._accepts(request.member_id):
            _refuse(out, request, ErrorCode.group_max_size_reached, UNKNOWN_MEMBER_ID)
            self._drop_surplus(out, request.member_id, now_ms)
        elif self.state is GroupState.DEAD:
            _refuse(out, request, ErrorCode.coordinator_not_available, request.member_id)
        elif not self._supports(request):
            _refuse(out, request, ErrorCode.inconsistent_group_protocol, request.member_id)
        elif request.member_id == UNKNOWN_MEMBER_ID:
            self._join_new(out, request, now_ms)
        elif request.member_id in self.membership.pending_joins and request.instance_id is None:
            self._add(out, request, request.member_id, now_ms)
        else:
            self._rejoin(out, request, now_ms)
        return out

    def sync(self, request: Sync) -> list[Effect]:
        """Answers at once with an error or the assignment, or parks the request until the leader's is in the log."""
        out: list[Effect] = []
        try:
            self._check_sync(request)
        except KafkaError as error:
            self._note_fenced(out, error, request.member_id, request.instance_id, "SyncGroup")
            out.append(CompleteSync(request.reply_to, SyncResult(error=error.code)))
            return out
        member = self.membership.members[request.member_id]
        self.membership.pending_syncs.discard(member.member_id)
        if self.state is GroupState.STABLE:
            out.append(CompleteSync(request.reply_to, self.sync_result(member)))
            out.append(self.session_timer(member))
            return out
        # Where a client gave up on an earlier request, nobody reads this answer.
        self.answer_sync(out, member, SyncResult(error=ErrorCode.rebalance_in_progress))
        member.awaiting_sync = request.reply_to
        if member.member_id == self.membership.leader_id:
            members = self.membership.members
            assignments = {member_id: request.assignments.get(member_id, b"") for member_id in members}
            missing = sum(not assignment for assignment in assignments.values())
            self.note(out, Happening.ASSIGNED, member, f"{count(len(members), 'member')}, {missing} without partitions")
            cause = LeaderAssigned(generation=self.generation, leader_id=member.member_id, assignments=assignments)
            out.append(AppendMetadata(self.metadata(assignments), cause))
        return out

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int) -> list[Effect]:
        """Keeps the member alive; the answer to it is `heartbeat_answer`.

        Raises KafkaError: unknown_member_id, fenced_instance_id, illegal_generation, coordinator_not_available.
        """
        return [self.session_timer(self._check_member(member_id, instance_id, generation))]

    @property
    def heartbeat_answer(self) -> ErrorCode:
        return ErrorCode.rebalance_in_progress if self.state is GroupState.PREPARING_REBALANCE else ErrorCode.none

    def leave(self, leavers: Sequence[Leaver], now_ms: int) -> tuple[list[ErrorCode], list[Effect]]:
        """Removes members; one error code each. Raises KafkaError(coordinator_not_available) for a dead group."""
        self._check_alive()
        out: list[Effect] = []
        errors = [self._leave(out, leaver) for leaver in leavers]
        if ErrorCode.none in errors:
            if self.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
                left = errors.count(ErrorCode.none)
                self.prepare_rebalance(out, f"explicit LeaveGroup request for {count(left, 'member')}", now_ms)
            else:
                self.maybe_complete_join(out, now_ms)
        return errors, out

    def timer_fired(self, timer: Timer, now_ms: int) -> list[Effect]:
        """A timer that was scheduled and not cancelled has run out."""
        out: list[Effect] = []
        if timer.kind is TimerKind.HEARTBEAT:
            self.session_expired(out, timer.member_id, now_ms)
        elif timer.kind is TimerKind.SYNC:
            self.sync_expired(out, now_ms)
        else:
            self.join_expired(out, now_ms)
        return out

    def append_finished(self, cause: AppendCause, error: ErrorCode, now_ms: int) -> list[Effect]:
        """The record of an AppendMetadata is in the log, or could not be written because of `error`."""
        out: list[Effect] = []
        if isinstance(cause, LeaderAssigned):
            self.assignment_appended(out, cause, error, now_ms)
        elif isinstance(cause, StaticMemberReplaced):
            self._replacement_appended(out, cause, error)
        return out

    def loaded(self, now_ms: int) -> list[Effect]:
        """The group has been read from the log: expect heartbeats, and shrink if `group.max.size` did."""
        out: list[Effect] = [self.session_timer(member) for member in self.membership.members.values()]
        if self.needs_rebalance:
            self.prepare_rebalance(out, "it was of the consumer protocol before and has not rebalanced since", now_ms)
        elif len(self.membership) > self._max_size:
            reason = f"loaded with {count(len(self.membership), 'member')} where group.max.size is {self._max_size}"
            self.prepare_rebalance(out, reason, now_ms)
        return out

    def hand_over(self, now_ms: int) -> list[Effect]:
        """The group is one of the consumer protocol from now on: whoever waits is to join again."""
        out: list[Effect] = [CancelTimer(Timer(TimerKind.HEARTBEAT, each)) for each in self.membership.pending_joins]
        out += (CancelTimer(Timer(TimerKind.JOIN)), CancelTimer(Timer(TimerKind.SYNC)))
        if self.membership.members:
            reason = "a member of the consumer protocol joined"
            out.append(Note(what=Happening.UPGRADED, generation=self.generation, reason=reason))
        return out + self.unload(ErrorCode.rebalance_in_progress, now_ms)

    def take_over(self, protocols: Mapping[str, Protocols], reason: str | None, now_ms: int) -> list[Effect]:
        """The group was one of the consumer protocol until now. `protocols` are what each member offers, of which the
        log has but one; it rebalances where there is a `reason`.
        """
        out: list[Effect] = [
            Note(what=Happening.DOWNGRADED, generation=self.generation, reason=count(len(self.membership), "member"))
        ]
        for member in self.membership.members.values():
            offered = protocols[member.member_id]
            self.membership.update(member, offered, member.rebalance_timeout_ms, member.session_timeout_ms)
            out.append(self.session_timer(member))
        if reason is not None:
            self.prepare_rebalance(out, reason, now_ms)
        return out

    def unload(self, error: ErrorCode, now_ms: int) -> list[Effect]:
        """The group goes away: another coordinator takes it, or the broker stops."""
        out: list[Effect] = []
        for member in self.membership.members.values():
            self.answer_join(out, member, JoinResult(error=error, member_id=member.member_id))
            self.answer_sync(out, member, SyncResult(error=error))
        self.move_to(GroupState.DEAD, now_ms)
        return out

    # Queries

    def check_offset_commit(
        self, member_id: str, instance_id: str | None, generation: int, *, transactional: bool = False
    ) -> ClassicMember | None:
        """The member that commits, or None for a client outside the group, which may commit while it is empty.

        Raises KafkaError: unknown_member_id, fenced_instance_id, illegal_generation, rebalance_in_progress,
        coordinator_not_available.
        """
        if generation < 0 and self.state is GroupState.EMPTY:
            return None
        member = None
        if generation >= 0 or member_id != UNKNOWN_MEMBER_ID or instance_id is not None:
            member = self._check_member(member_id, instance_id, generation)
        else:
            self._check_alive()
            if not transactional:
                raise KafkaError(ErrorCode.unknown_member_id, "the group has members: only they may commit its offsets")
        if self.state is GroupState.COMPLETING_REBALANCE and not transactional:
            raise KafkaError(ErrorCode.rebalance_in_progress)
        return member

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member reads `topic`; a consumer group whose subscriptions cannot be read may read everything."""
        if self.subscribed_topics is None:
            return self.is_consumer
        return topic in self.subscribed_topics

    @property
    def is_empty(self) -> bool:
        return self.state is GroupState.EMPTY

    @property
    def is_consumer(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    def offset_kept_from(self, commit_timestamp: int) -> int | None:
        """From when (ms) the retention of an offset counts; None while it must be kept (KIP-211)."""
        if self.protocol_type is None:
            return commit_timestamp
        if self.state is GroupState.EMPTY:
            return commit_timestamp if self.state_timestamp == NO_TIMESTAMP else self.state_timestamp
        if self.is_consumer and self.subscribed_topics is not None and self.state is GroupState.STABLE:
            return commit_timestamp
        return None

    def check(self) -> None:
        """Assert every invariant; for tests."""
        members = self.membership.members.values()
        self.membership.check()
        if self.state is GroupState.EMPTY:
            assert not members
        if self.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            assert members
            assert self.membership.leader_id is not None
            assert self.protocol_name is not None
            assert not any(m.awaiting_join for m in members), "joins are parked in the join phase only"
        if self.state is not GroupState.COMPLETING_REBALANCE:
            assert not any(m.awaiting_sync for m in members), "syncs are parked in the sync phase only"
        if self.state in (GroupState.EMPTY, GroupState.PREPARING_REBALANCE):
            assert not self.membership.pending_syncs

    # Steps

    def _accepts(self, member_id: str) -> bool:
        if self.state in (GroupState.EMPTY, GroupState.DEAD):
            return True
        member = self.membership.members.get(member_id)
        if self.state is GroupState.PREPARING_REBALANCE:
            # Counting parked joins, and not members, drops the last to rejoin after group.max.size was reduced.
            if member is not None and member.awaiting_join is not None:
                return True
            return self.membership.awaiting_join_count < self._max_size
        return member is not None or len(self.membership) < self._max_size

    def _supports(self, request: Join) -> bool:
        if self.state is GroupState.EMPTY:
            return bool(request.protocol_type) and bool(request.protocols)
        if request.protocol_type != self.protocol_type:
            return False
        return self.membership.shares_a_protocol(name for name, _ in request.protocols)

    def _drop_surplus(self, out: list[Effect], member_id: str, now_ms: int) -> None:
        self.membership.pending_joins.pop(member_id, None)
        member = self.membership.members.get(member_id)
        if member is not None:
            self.drop(out, member, ErrorCode.group_max_size_reached)
            self.note(
                out, Happening.LEFT, member, f"the group has its {count(self._max_size, 'member')} (group.max.size)"
            )
        self.maybe_complete_join(out, now_ms)

    def _join_new(self, out: list[Effect], request: Join, now_ms: int) -> None:
        if request.instance_id is not None and request.instance_id in self.membership.static:
            self._replace_static(out, request, self.membership.static[request.instance_id], now_ms)
        elif request.instance_id is None and request.requires_known_member_id:
            self.membership.pending_joins[request.new_member_id] = (request.client_id, request.client_host)
            self.note_pending(out, Happening.MEMBER_ID_ASSIGNED, request.new_member_id, request.reason)
            out.append(ScheduleTimer(Timer(TimerKind.HEARTBEAT, request.new_member_id), request.session_timeout_ms))
            _refuse(out, request, ErrorCode.member_id_required, request.new_member_id)
        else:
            self._add(out, request, request.new_member_id, now_ms)

    def _add(self, out: list[Effect], request: Join, member_id: str, now_ms: int) -> None:
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
        if self.state is GroupState.PREPARING_REBALANCE and self.previous_state is GroupState.EMPTY:
            self.new_member_added = True
        if not self.membership.members:
            self.protocol_type = request.protocol_type
        self.membership.add(member, request.reply_to)
        self.note(out, Happening.JOINED, member, request.reason)
        out.append(ScheduleTimer(Timer(TimerKind.HEARTBEAT, member_id), NEW_MEMBER_JOIN_TIMEOUT_MS))
        self.rebalance_or_complete(out, f"adding member {member_id}; client reason: {request.reason}", now_ms)

    def _rejoin(self, out: list[Effect], request: Join, now_ms: int) -> None:
        try:
            member = self._check_member(request.member_id, request.instance_id, self.generation)
        except KafkaError as error:
            self._note_fenced(out, error, request.member_id, request.instance_id, "JoinGroup")
            _refuse(out, request, error.code, request.member_id)
            return
        if self.state is GroupState.PREPARING_REBALANCE:
            why = f"member {member.member_id} rejoined"
        elif member.protocols != request.protocols:
            why = f"member {member.member_id} changed its metadata"
        elif self.state is GroupState.STABLE and member.member_id == self.membership.leader_id:
            # It wants to assign partitions anew, e.g. because the topics' metadata changed.
            why = f"leader {member.member_id} rejoined"
        else:
            # It may have missed the answer to its earlier request: nothing changes for the generation.
            out.append(CompleteJoin(request.reply_to, self.join_result(member)))
            out.append(self.session_timer(member))
            return
        before = member.protocols
        self._park(out, member, request)
        self.note(out, Happening.REJOINED, member, request.reason)
        self._note_subscription(out, member, before)
        self.rebalance_or_complete(out, f"{why}; client reason: {request.reason}", now_ms)

    def _park(self, out: list[Effect], member: ClassicMember, request: Join) -> None:
        # Where a client gave up on an earlier request, nobody reads this answer.
        stale = JoinResult(error=ErrorCode.rebalance_in_progress, member_id=member.member_id)
        self.answer_join(out, member, stale)
        self.membership.update(member, request.protocols, request.rebalance_timeout_ms, request.session_timeout_ms)
        self.membership.park_join(member, request.reply_to)

    def _replace_static(self, out: list[Effect], request: Join, old_id: str, now_ms: int) -> None:
        """A restarted static member takes over its place under a new id (KIP-345)."""
        member = self.membership.members[old_id]
        self.note(out, Happening.FENCED, member, f"replaced by {request.new_member_id}")
        self.answer_join(out, member, JoinResult(error=ErrorCode.fenced_instance_id, member_id=old_id))
        self.answer_sync(out, member, SyncResult(error=ErrorCode.fenced_instance_id))
        cause = StaticMemberReplaced(
            old_member_id=old_id,
            new_member_id=request.new_member_id,
            old_protocols=member.protocols,
            old_rebalance_timeout_ms=member.rebalance_timeout_ms,
            old_session_timeout_ms=member.session_timeout_ms,
            old_leader_id=self.membership.leader_id or "",
            supports_skipping_assignment=request.supports_skipping_assignment,
        )
        has_given_up = _was_giving_up(member.metadata(self.protocol_name), member.assignment)
        self._rename(out, member, request.new_member_id)
        member.is_new = False
        self._park(out, member, request)
        # The member keeps the client id and host of whom it replaces, as with Kafka; the timeline has the newcomer's.
        out.append(
            Note(
                what=Happening.REPLACED,
                generation=self.generation,
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=request.client_id,
                client_host=request.client_host,
                reason=request.reason,
            )
        )
        is_same_protocol = self.membership.select_protocol() == self.protocol_name
        if self.state is GroupState.STABLE and is_same_protocol and not has_given_up:
            out.append(AppendMetadata(self.metadata(), cause))
        elif self.state is GroupState.PREPARING_REBALANCE:
            self.maybe_complete_join(out, now_ms)
        else:
            # The protocol changes, or the leader may be assigning to the earlier id already, or what the member gave up
            # waits for the rebalance that its earlier self would have asked for.
            self.prepare_rebalance(out, f"static member {request.instance_id} came back with a new id", now_ms)

    def _rename(self, out: list[Effect], member: ClassicMember, new_id: str) -> None:
        out.append(CancelTimer(Timer(TimerKind.HEARTBEAT, member.member_id)))
        self.membership.rename(member.member_id, new_id)
        out.append(self.session_timer(member))

    def _replacement_appended(self, out: list[Effect], cause: StaticMemberReplaced, error: ErrorCode) -> None:
        member = self.membership.members.get(cause.new_member_id)
        if member is None:
            return
        if error is not ErrorCode.none:
            self.answer_join(out, member, JoinResult(error=error))
            self.membership.update(
                member, cause.old_protocols, cause.old_rebalance_timeout_ms, cause.old_session_timeout_ms
            )
            self._rename(out, member, cause.old_member_id)
        elif cause.supports_skipping_assignment:
            is_leader = member.member_id == self.membership.leader_id
            self.answer_join(out, member, self.join_result(member, skip_assignment=is_leader))
        else:
            # Named as leader, an older client would assign anew: its earlier id makes it a follower (KIP-814).
            self.answer_join(out, member, self.join_result(member, leader=cause.old_leader_id))

    def _leave(self, out: list[Effect], leaver: Leaver) -> ErrorCode:
        member_id = leaver.member_id
        if member_id in self.membership.pending_joins:
            self.note_pending(out, Happening.LEFT, member_id, leaver.reason)
            self.membership.remove(member_id)
            out.append(CancelTimer(Timer(TimerKind.HEARTBEAT, member_id)))
            return ErrorCode.none
        if member_id == UNKNOWN_MEMBER_ID and leaver.instance_id is not None:
            member_id = self.membership.static.get(leaver.instance_id, UNKNOWN_MEMBER_ID)
        try:
            member = self._check_member(member_id, leaver.instance_id, self.generation)
        except KafkaError as error:
            self._note_fenced(out, error, member_id, leaver.instance_id, "LeaveGroup")
            return error.code
        self.drop(out, member, ErrorCode.unknown_member_id)
        self.note(out, Happening.LEFT, member, leaver.reason)
        return ErrorCode.none

    def _note_fenced(
        self, out: list[Effect], error: KafkaError, member_id: str, instance_id: str | None, operation: str
    ) -> None:
        if error.code is ErrorCode.fenced_instance_id:
            out.append(
                Note(
                    what=Happening.FENCED,
                    generation=self.generation,
                    member_id=member_id,
                    instance_id=instance_id,
                    reason=f"{operation}: {error.message}",
                )
            )

    def _note_subscription(self, out: list[Effect], member: ClassicMember, before: Protocols) -> None:
        if self.is_consumer and before and member.protocols and before != member.protocols:
            # With a cooperative assignor the metadata differs at each rejoin: it tells of owned partitions too.
            old, new = (subscribed_topics(protocols[0][1]) for protocols in (before, member.protocols))
            if old is not None and new is not None and old != new:
                self.note(out, Happening.SUBSCRIBED, member, f"{', '.join(sorted(old))} -> {', '.join(sorted(new))}")

    def _check_alive(self) -> None:
        if self.state is GroupState.DEAD:
            raise KafkaError(ErrorCode.coordinator_not_available)

    def _check_member(self, member_id: str, instance_id: str | None, generation: int) -> ClassicMember:
        self._check_alive()
        if instance_id is not None:
            current = self.membership.static.get(instance_id)
            if current is not None and current != member_id:
                raise KafkaError(
                    ErrorCode.fenced_instance_id, f"instance {instance_id} is member {current}, not {member_id}"
                )
            if current is None:
                raise KafkaError(ErrorCode.unknown_member_id)
        member = self.membership.members.get(member_id)
        if member is None:
            raise KafkaError(ErrorCode.unknown_member_id)
        if generation != self.generation:
            raise KafkaError(ErrorCode.illegal_generation)
        return member

    def _check_sync(self, request: Sync) -> None:
        self._check_member(request.member_id, request.instance_id, request.generation)
        if request.protocol_type not in (None, self.protocol_type) or request.protocol_name not in (
            None,
            self.protocol_name,
        ):
            raise KafkaError(ErrorCode.inconsistent_group_protocol)
        if self.state is GroupState.PREPARING_REBALANCE:
            raise KafkaError(ErrorCode.rebalance_in_progress)


def _was_giving_up(subscription: bytes, assignment: bytes) -> bool:
    """Whether a cooperative member owned more when it joined than it was assigned: it has to join again, having given
    that up, for somebody else to get it. Kafka forgets it where the member is replaced meanwhile.
    """
    try:
        owned = {(topic, index) for topic, indexes in decode_subscription(subscription).owned for index in indexes}
        kept = decode_assignment(assignment).partitions if assignment else {}
    except ValueError:
        return False  # another embedded protocol
    return not owned <= {(topic, index) for topic, indexes in kept.items() for index in indexes}


def _refuse(out: list[Effect], request: Join, error: ErrorCode, member_id: str) -> None:
    out.append(CompleteJoin(request.reply_to, JoinResult(error=error, member_id=member_id)))
