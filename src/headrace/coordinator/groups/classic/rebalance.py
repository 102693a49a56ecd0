"""The phases of a classic group's rebalance: prepare, complete the join, distribute assignments.

Requests are validated by the callers. Initial rebalances wait `group.initial.rebalance.delay.ms` for more members
(KIP-134); later ones end when all members have rejoined, or after the members' largest rebalance timeout.
"""

from collections.abc import Sequence
from functools import partial

from headrace.coordinator.groups.classic.membership import ClassicMember, Membership
from headrace.coordinator.groups.classic.states import VALID_PREVIOUS, GroupState
from headrace.coordinator.groups.effects import (
    Effect,
    Happening,
    JoinResult,
    Note,
    SyncResult,
    Timer,
    TimerKind,
)
from headrace.coordinator.groups.records.classic import (
    GroupKey,
    GroupMetadata,
    MemberMetadata,
)
from headrace.coordinator.groups.records.embedded import CONSUMER_PROTOCOL_TYPE, subscribed_topics
from headrace.coordinator.runtime.name_cache import cached_by_name
from headrace.coordinator.runtime.results import CancelTimer, Complete, ScheduleTimer, Write
from headrace.errors import ErrorCode, KafkaError
from headrace.wording import count

_JOIN_TIMER = Timer(TimerKind.JOIN)
_SYNC_TIMER = Timer(TimerKind.SYNC)
_STALLED_RETRY_MS = 1000
"""Minimum delay before the join phase is repeated if no member has rejoined."""


@cached_by_name(16_384)
def _session_timer(member_id: str, timeout_ms: int) -> ScheduleTimer[Timer]:
    # Cached because every heartbeat and commit of a member creates the same one.
    return ScheduleTimer(Timer(TimerKind.HEARTBEAT, member_id), timeout_ms)


def _ignore_outcome(_error: ErrorCode, _now_ms: int) -> Sequence[Effect]:
    """Continue even if the write failed: the record of an empty group only keeps its generation."""
    return ()


class Rebalance:
    """The state of a classic group and its transitions; `state_timestamp` in ms."""

    def __init__(self, group_id: str, *, initial_rebalance_delay_ms: int, now_ms: int) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.previous_state = GroupState.DEAD
        self.state_timestamp = now_ms
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.subscribed_topics: set[str] | None = None
        """Topics that the members subscribe to, if they are consumers; None if unknown."""
        self.membership = Membership()
        self.needs_rebalance = False
        """True if the loaded record has members without a leader: a rebalance was due when it was written."""
        self._new_member_added = False
        """True if an initial rebalance should extend its delay."""
        self._is_stalled = False
        """True if this join phase has already ended once without any member rejoining."""
        self._initial_rebalance_delay_ms = initial_rebalance_delay_ms
        self._initial_delay_ms = 0
        self._initial_delay_left_ms = 0

    def metadata(self, assignments: dict[str, bytes] | None = None) -> GroupMetadata:
        """Return the group's current record, or one with these assignments by member id."""
        return GroupMetadata(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol_name,
            leader=self.membership.leader_id,
            state_timestamp=self.state_timestamp,
            members=tuple(
                MemberMetadata(
                    member_id=m.member_id,
                    instance_id=m.instance_id,
                    client_id=m.client_id,
                    client_host=m.client_host,
                    rebalance_timeout_ms=m.rebalance_timeout_ms,
                    session_timeout_ms=m.session_timeout_ms,
                    subscription=m.metadata(self.protocol_name),
                    assignment=m.assignment if assignments is None else assignments[m.member_id],
                )
                for m in self.membership.members.values()
            ),
        )

    def restore(self, metadata: GroupMetadata) -> None:
        """Load the state from a record of the log. Call this only for a new group."""
        self.generation = metadata.generation
        self.protocol_type = metadata.protocol_type or None
        self.protocol_name = metadata.protocol
        self.state_timestamp = metadata.state_timestamp
        for m in metadata.members:
            self.membership.add(
                ClassicMember(
                    member_id=m.member_id,
                    instance_id=m.instance_id,
                    client_id=m.client_id,
                    client_host=m.client_host,
                    session_timeout_ms=m.session_timeout_ms,
                    rebalance_timeout_ms=m.rebalance_timeout_ms,
                    protocol_type=metadata.protocol_type,
                    protocols=((metadata.protocol or "", m.subscription),),
                    assignment=m.assignment,
                )
            )
        if metadata.members:
            self.state = GroupState.STABLE
            self.needs_rebalance = metadata.leader is None
            if metadata.leader in self.membership.members:
                self.membership.leader_id = metadata.leader
        self.subscribed_topics = self._compute_subscribed_topics()

    @property
    def is_consumer(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    # Members

    def add(self, member: ClassicMember, reply_to: object) -> None:
        """Add a new member; an initial rebalance extends its delay."""
        if self.state is GroupState.PREPARING_REBALANCE and self.previous_state is GroupState.EMPTY:
            self._new_member_added = True
        if not self.membership.members:
            self.protocol_type = member.protocol_type
        self.membership.add(member, reply_to)

    def check_alive(self) -> None:
        """Raise KafkaError(coordinator_not_available) if this group has ended."""
        if self.state is GroupState.DEAD:
            raise KafkaError(ErrorCode.coordinator_not_available)

    def check_member(self, member_id: str, instance_id: str | None, generation: int) -> ClassicMember:
        """Return the member if its ids and generation are valid.

        Raises KafkaError: unknown_member_id, fenced_instance_id, illegal_generation, coordinator_not_available.
        """
        self.check_alive()
        if instance_id is not None:
            current = self.membership.static.get(instance_id)
            if current is not None and current != member_id:
                raise KafkaError(
                    ErrorCode.fenced_instance_id, f"instance {instance_id} is now member {current}, not {member_id}"
                )
            if current is None:
                raise KafkaError(ErrorCode.unknown_member_id)
        member = self.membership.members.get(member_id)
        if member is None:
            raise KafkaError(ErrorCode.unknown_member_id)
        if generation != self.generation:
            raise KafkaError(ErrorCode.illegal_generation)
        return member

    # Phases

    def rebalance_or_complete(self, out: list[Effect], reason: str, now_ms: int) -> None:
        """Start a rebalance, or complete the current one if all have joined."""
        if self.state in VALID_PREVIOUS[GroupState.PREPARING_REBALANCE]:
            self.prepare_rebalance(out, reason, now_ms)
        else:
            self.maybe_complete_join(out, now_ms)

    def prepare_rebalance(self, out: list[Effect], reason: str, now_ms: int) -> None:
        if self.state is GroupState.COMPLETING_REBALANCE:
            self._propagate(out, {}, ErrorCode.rebalance_in_progress)
        self.membership.pending_syncs.clear()
        out.append(CancelTimer(_SYNC_TIMER))
        is_initial = self.state is GroupState.EMPTY
        self._move_to(GroupState.PREPARING_REBALANCE, now_ms)
        out.append(Note(what=Happening.REBALANCING, generation=self.generation, reason=reason))
        if is_initial:
            self._initial_delay_ms = self._initial_rebalance_delay_ms
            self._initial_delay_left_ms = max(self.membership.rebalance_timeout_ms - self._initial_delay_ms, 0)
            out.append(ScheduleTimer(_JOIN_TIMER, self._initial_delay_ms))
        elif self.membership.all_joined:
            self.complete_join(out, now_ms)
        else:
            out.append(ScheduleTimer(_JOIN_TIMER, self.membership.rebalance_timeout_ms))

    def maybe_complete_join(self, out: list[Effect], now_ms: int) -> None:
        """Complete the join phase if all have rejoined; an initial rebalance always waits for its delay."""
        if (
            self.state is GroupState.PREPARING_REBALANCE
            and self.previous_state is not GroupState.EMPTY
            and self.membership.all_joined
        ):
            self.complete_join(out, now_ms)

    def complete_join(self, out: list[Effect], now_ms: int) -> None:
        """Remove dynamic members that did not rejoin, and answer the joins of the others with a new generation."""
        out.append(CancelTimer(_JOIN_TIMER))
        former_leader = self.membership.leader_id
        for member in list(self.membership.members.values()):
            if member.awaiting_join is None and member.instance_id is None:
                self.drop(out, member, ErrorCode.unknown_member_id)
                self.note(out, Happening.NOT_REJOINED, member, "it did not rejoin within the rebalance timeout")
        if not self.membership.elect_joined_leader() and self.membership.members:
            if not self._is_stalled:
                self._is_stalled = True
                reason = "no member rejoined; waiting for the sessions of the static members to expire"
                out.append(Note(what=Happening.STALLED, generation=self.generation, reason=reason))
            # Clients choose the timeout, and 0 would cause a busy loop.
            out.append(ScheduleTimer(_JOIN_TIMER, max(self.membership.rebalance_timeout_ms, _STALLED_RETRY_MS)))
            return
        if self.membership.leader_id != former_leader and self.membership.leader_id is not None:
            leader = self.membership.members[self.membership.leader_id]
            self.note(out, Happening.BECAME_LEADER, leader, f"leader {former_leader} did not rejoin in time")
        self.generation += 1
        self._new_member_added = False
        if self.membership.members:
            self._start_generation(out, now_ms)
        else:
            self.protocol_name = None
            self.subscribed_topics = self._compute_subscribed_topics()
            self._move_to(GroupState.EMPTY, now_ms)
            out.append(Note(what=Happening.EMPTY, generation=self.generation))
            out.append(Write([(GroupKey(self.group_id), self.metadata())], _ignore_outcome))

    def _start_generation(self, out: list[Effect], now_ms: int) -> None:
        self.protocol_name = self.membership.select_protocol()
        self.subscribed_topics = self._compute_subscribed_topics()
        self._move_to(GroupState.COMPLETING_REBALANCE, now_ms)
        reason = f"{count(len(self.membership), 'member')}, protocol {self.protocol_name}"
        out.append(Note(what=Happening.COMPLETING, generation=self.generation, reason=reason))
        self.membership.pending_syncs = set(self.membership.members)
        for member in self.membership.members.values():
            self.answer_join(out, member, self.join_result(member))
            out.append(self.session_timer(member))
            member.is_new = False
        out.append(ScheduleTimer(_SYNC_TIMER, self.membership.rebalance_timeout_ms))

    def assign(self, out: list[Effect], leader: ClassicMember, assignments: dict[str, bytes]) -> None:
        """Write the leader's assignment."""
        members = self.membership.members
        given = {member_id: assignments.get(member_id, b"") for member_id in members}
        missing = sum(not assignment for assignment in given.values())
        self.note(out, Happening.ASSIGNED, leader, f"{count(len(members), 'member')}, {missing} without partitions")
        written = partial(self._assignment_written, self.generation, given)
        out.append(Write([(GroupKey(self.group_id), self.metadata(given))], written))

    def _assignment_written(
        self, generation: int, assignments: dict[str, bytes], error: ErrorCode, now_ms: int
    ) -> list[Effect]:
        out: list[Effect] = []
        if self.state is not GroupState.COMPLETING_REBALANCE or generation != self.generation:
            return out
        if error is not ErrorCode.none:
            self._propagate(out, {}, error)
            self.rebalance_or_complete(out, f"the assignment could not be stored: {error.name}", now_ms)
            return out
        self._propagate(out, assignments, error)
        self._move_to(GroupState.STABLE, now_ms)
        out.append(
            Note(what=Happening.STABLE, generation=self.generation, reason=count(len(self.membership), "member"))
        )
        return out

    def _propagate(self, out: list[Effect], assignments: dict[str, bytes], error: ErrorCode) -> None:
        for member in self.membership.members.values():
            member.assignment = assignments.get(member.member_id, b"")
            if member.awaiting_sync is not None:
                result = self.sync_result(member) if error is ErrorCode.none else SyncResult(error=error)
                self.answer_sync(out, member, result)
                # Its session may have expired, without effect, while the request was parked.
                out.append(self.session_timer(member))

    def end(self, error: ErrorCode, now_ms: int) -> list[Effect]:
        """Answer parked requests with `error`, and end the group."""
        out: list[Effect] = []
        for member in self.membership.members.values():
            self.answer_join(out, member, JoinResult(error=error, member_id=member.member_id))
            self.answer_sync(out, member, SyncResult(error=error))
        self._move_to(GroupState.DEAD, now_ms)
        return out

    # Timers

    def join_expired(self, out: list[Effect], now_ms: int) -> None:
        if self.state is not GroupState.PREPARING_REBALANCE:
            return
        if self._new_member_added and self._initial_delay_left_ms > 0:
            self._new_member_added = False
            delay = min(self._initial_rebalance_delay_ms, self._initial_delay_left_ms)
            self._initial_delay_left_ms = max(self._initial_delay_left_ms - self._initial_delay_ms, 0)
            self._initial_delay_ms = delay
            out.append(ScheduleTimer(_JOIN_TIMER, delay))
        else:
            self.complete_join(out, now_ms)

    def sync_expired(self, out: list[Effect], now_ms: int) -> None:
        late = self.membership.pending_syncs
        if not late or self.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
            return
        reason = f"members did not send SyncGroup within the rebalance timeout: {', '.join(sorted(late))}"
        for member_id in sorted(late):
            member = self.membership.members[member_id]
            self.drop(out, member, ErrorCode.unknown_member_id)
            self.note(out, Happening.TIMED_OUT, member, "it did not send SyncGroup in time")
        self.prepare_rebalance(out, reason, now_ms)

    def session_expired(self, out: list[Effect], member_id: str, now_ms: int) -> None:
        if member_id in self.membership.pending_joins:
            self.note_pending(out, Happening.TIMED_OUT, member_id, "it did not rejoin with its new member id")
            self.membership.remove(member_id)
            if self.state is GroupState.PREPARING_REBALANCE and self.membership.all_joined:
                self.complete_join(out, now_ms)
            return
        member = self.membership.members.get(member_id)
        if member is None or member.is_alive_while_waiting:
            return
        self.drop(out, member, ErrorCode.unknown_member_id)
        self.note(out, Happening.TIMED_OUT, member, f"no heartbeat for {member.session_timeout_ms} ms")
        if self.state is GroupState.PREPARING_REBALANCE:
            if self.membership.all_joined:
                self.complete_join(out, now_ms)
        else:
            self.prepare_rebalance(out, f"removing member {member_id} on heartbeat expiration", now_ms)

    # Answers

    def drop(self, out: list[Effect], member: ClassicMember, error: ErrorCode) -> None:
        """Remove a member, and answer its parked requests with `error`, so that a live client rejoins."""
        self.answer_join(out, member, JoinResult(error=error))
        self.answer_sync(out, member, SyncResult(error=error))
        self.membership.remove(member.member_id)
        out.append(CancelTimer(Timer(TimerKind.HEARTBEAT, member.member_id)))

    def answer_join(self, out: list[Effect], member: ClassicMember, result: JoinResult) -> None:
        if member.awaiting_join is not None:
            out.append(Complete(member.awaiting_join, result))
            self.membership.park_join(member, None)

    def answer_sync(self, out: list[Effect], member: ClassicMember, result: SyncResult) -> None:
        if member.awaiting_sync is not None:
            out.append(Complete(member.awaiting_sync, result))
            member.awaiting_sync = None

    def join_result(
        self, member: ClassicMember, *, leader: str | None = None, skip_assignment: bool = False
    ) -> JoinResult:
        """Return the JoinGroup reply for `member`; `leader` overrides the leader's id."""
        leader = self.membership.leader_id if leader is None else leader
        members = self.membership.members.values() if leader == member.member_id else ()
        return JoinResult(
            member_id=member.member_id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=leader or "",
            skip_assignment=skip_assignment,
            members=tuple((m.member_id, m.instance_id, m.metadata(self.protocol_name)) for m in members),
        )

    def sync_result(self, member: ClassicMember) -> SyncResult:
        return SyncResult(
            protocol_type=self.protocol_type, protocol_name=self.protocol_name, assignment=member.assignment
        )

    def session_timer(self, member: ClassicMember) -> ScheduleTimer[Timer]:
        return _session_timer(member.member_id, member.session_timeout_ms)

    def note(self, out: list[Effect], what: Happening, member: ClassicMember, reason: str) -> None:
        out.append(
            Note(
                what=what,
                generation=self.generation,
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                reason=reason,
            )
        )

    def note_fenced(
        self, out: list[Effect], error: KafkaError, member_id: str, instance_id: str | None, operation: str
    ) -> None:
        """Add a note if the error is FENCED_INSTANCE_ID."""
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

    def note_pending(self, out: list[Effect], what: Happening, member_id: str, reason: str) -> None:
        client_id, client_host = self.membership.pending_joins[member_id]
        out.append(
            Note(
                what=what,
                generation=self.generation,
                member_id=member_id,
                client_id=client_id,
                client_host=client_host,
                reason=reason,
            )
        )

    def _move_to(self, state: GroupState, now_ms: int) -> None:
        if self.state not in VALID_PREVIOUS[state]:
            raise AssertionError(f"group {self.group_id} cannot go from {self.state} to {state}")
        self.previous_state, self.state = self.state, state
        self.state_timestamp = now_ms
        self._is_stalled = False

    def _compute_subscribed_topics(self) -> set[str] | None:
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return None
        name = self.protocol_name
        return subscribed_topics(member.metadata(name) for member in self.membership.members.values())
