"""A group of the classic protocol (JoinGroup, SyncGroup, Heartbeat, LeaveGroup) as a pure state machine.

Requests and expired timers go in, effects come out. The machine does no I/O, reads no clock and draws no random
numbers: the caller passes `now_ms` (wall clock) and the ids of new members, runs the timers, and reports written
records. `reply_to` is opaque.

A member's life: join without an id -> MEMBER_ID_REQUIRED with one (KIP-394) -> join again, parked until the join phase
completes -> sync, parked until the leader's assignment is written -> heartbeats. The instance id identifies a static
member (KIP-345): when it joins again, it keeps its assignment, and its old member id is fenced.
"""

from collections.abc import Iterator, Mapping, Sequence

from headrace.coordinator.groups.classic.joining import Joining
from headrace.coordinator.groups.classic.membership import ClassicMember, Membership
from headrace.coordinator.groups.classic.rebalance import Rebalance
from headrace.coordinator.groups.classic.states import GroupState
from headrace.coordinator.groups.classic.views import reads_of, views_of
from headrace.coordinator.groups.effects import (
    UNKNOWN_MEMBER_ID,
    Effect,
    Happening,
    Note,
    SyncResult,
    Timer,
    TimerKind,
)
from headrace.coordinator.groups.group import (
    GroupType,
    MemberView,
    OffsetToCommit,
    Reads,
)
from headrace.coordinator.groups.records.classic import GroupKey, GroupMetadata
from headrace.coordinator.groups.records.codec import WrittenRecords
from headrace.coordinator.groups.records.offsets import NO_TIMESTAMP
from headrace.coordinator.groups.requests import (
    Join,
    Leaver,
    Protocols,
    Sync,
)
from headrace.coordinator.runtime.results import CancelTimer, Complete, Result
from headrace.errors import ErrorCode, KafkaError
from headrace.wording import count


class ClassicGroup:
    """A group of the classic protocol: validates requests and executes them."""

    type = GroupType.CLASSIC

    def __init__(self, group_id: str, *, max_size: int, initial_rebalance_delay_ms: int, now_ms: int) -> None:
        self.group_id = group_id
        self._max_size = max_size
        self._rebalance = Rebalance(group_id, initial_rebalance_delay_ms=initial_rebalance_delay_ms, now_ms=now_ms)
        self._joining = Joining(self._rebalance, max_size)
        self.membership: Membership = self._rebalance.membership

    def restore(self, metadata: GroupMetadata) -> None:
        """Load the group's state from its record. Call this only for a new group."""
        self._rebalance.restore(metadata)

    # Events

    def join(self, request: Join, now_ms: int) -> Result[None]:
        """Answer the request at once, or park it, as `Joining.join` does."""
        return Result(None, effects=self._joining.join(request, now_ms))

    def sync(self, request: Sync) -> Result[None]:
        """Reply with an error or the assignment, or park the request until the leader's assignment is written."""
        out: list[Effect] = []
        rebalance = self._rebalance
        try:
            member = self._check_sync(request)
        except KafkaError as error:
            rebalance.note_fenced(out, error, request.member_id, request.instance_id, "SyncGroup")
            out.append(Complete(request.reply_to, SyncResult(error=error.code)))
            return Result(None, effects=out)
        self.membership.pending_syncs.discard(member.member_id)
        if rebalance.state is GroupState.STABLE:
            out += (Complete(request.reply_to, rebalance.sync_result(member)), rebalance.session_timer(member))
            return Result(None, effects=out)
        # Complete an earlier request of this member, which its client has abandoned.
        rebalance.answer_sync(out, member, SyncResult(error=ErrorCode.rebalance_in_progress))
        member.awaiting_sync = request.reply_to
        if member.member_id == self.membership.leader_id:
            rebalance.assign(out, member, request.assignments)
        return Result(None, effects=out)

    def heartbeat(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        now_ms: int,  # noqa: ARG002  # groups of the consumer protocol check the topics
    ) -> Result[ErrorCode]:
        """Reset the member's session timer; REBALANCE_IN_PROGRESS asks it to rejoin.

        Raises KafkaError: unknown_member_id, fenced_instance_id, illegal_generation, coordinator_not_available.
        """
        rebalance = self._rebalance
        timer = rebalance.session_timer(rebalance.check_member(member_id, instance_id, generation))
        is_rebalancing = rebalance.state is GroupState.PREPARING_REBALANCE
        return Result(ErrorCode.rebalance_in_progress if is_rebalancing else ErrorCode.none, effects=[timer])

    def leave(self, leavers: Sequence[Leaver], now_ms: int) -> Result[list[ErrorCode]]:
        """Remove members; return an error code per leaver. Raises KafkaError(coordinator_not_available)."""
        rebalance = self._rebalance
        rebalance.check_alive()
        out: list[Effect] = []
        errors = [self._leave(out, leaver) for leaver in leavers]
        if ErrorCode.none in errors:
            if rebalance.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
                left = errors.count(ErrorCode.none)
                rebalance.prepare_rebalance(out, f"explicit LeaveGroup request for {count(left, 'member')}", now_ms)
            else:
                rebalance.maybe_complete_join(out, now_ms)
        return Result(errors, effects=out)

    def timer_fired(self, timer: Timer, now_ms: int) -> Result[None]:
        out: list[Effect] = []
        if timer.kind is TimerKind.HEARTBEAT:
            self._rebalance.session_expired(out, timer.member_id, now_ms)
        elif timer.kind is TimerKind.SYNC:
            self._rebalance.sync_expired(out, now_ms)
        else:
            self._rebalance.join_expired(out, now_ms)
        return Result(None, effects=out)

    def loaded(self, now_ms: int) -> list[Effect]:
        """Start the session timers of a loaded group. Rebalance if that was due, or if the group is too large."""
        rebalance = self._rebalance
        out: list[Effect] = [rebalance.session_timer(member) for member in self.membership.members.values()]
        if rebalance.needs_rebalance:
            reason = "it has not rebalanced since it switched from the consumer protocol"
            rebalance.prepare_rebalance(out, reason, now_ms)
        elif len(self.membership) > self._max_size:
            reason = f"loaded with {count(len(self.membership), 'member')}, but group.max.size is {self._max_size}"
            rebalance.prepare_rebalance(out, reason, now_ms)
        return out

    def hand_over(self, now_ms: int) -> list[Effect]:
        """End the classic group after its switch to the consumer protocol. Waiting members have to rejoin."""
        out: list[Effect] = [CancelTimer(Timer(TimerKind.HEARTBEAT, join)) for join in self.membership.pending_joins]
        out += (CancelTimer(Timer(TimerKind.JOIN)), CancelTimer(Timer(TimerKind.SYNC)))
        if self.membership.members:
            reason = "a member of the consumer protocol joined"
            out.append(Note(what=Happening.UPGRADED, generation=self.generation, reason=reason))
        return out + self.unload(ErrorCode.rebalance_in_progress, now_ms)

    def take_over(self, protocols: Mapping[str, Protocols], reason: str | None, now_ms: int) -> list[Effect]:
        """Complete the switch from the consumer protocol. `protocols` has all assignors of every member, by member id;
        the group's record has only the selected one. The group rebalances if a `reason` is given.
        """
        out: list[Effect] = [
            Note(what=Happening.DOWNGRADED, generation=self.generation, reason=count(len(self.membership), "member"))
        ]
        for member in self.membership.members.values():
            offered = protocols[member.member_id]
            self.membership.update(member, offered, member.rebalance_timeout_ms, member.session_timeout_ms)
            out.append(self._rebalance.session_timer(member))
        if reason is not None:
            self._rebalance.prepare_rebalance(out, reason, now_ms)
        return out

    def unload(self, error: ErrorCode, now_ms: int) -> list[Effect]:
        """Answer parked requests with `error`, and end the group."""
        return self._rebalance.end(error, now_ms)

    def append_failed(self) -> None:
        """Do nothing: `Write.then` handles failed writes."""

    # Queries

    @property
    def state(self) -> GroupState:
        return self._rebalance.state

    @property
    def generation(self) -> int:
        return self._rebalance.generation

    @property
    def protocol_type(self) -> str | None:
        return self._rebalance.protocol_type

    @property
    def protocol_name(self) -> str | None:
        """The selected assignor of the current generation."""
        return self._rebalance.protocol_name

    @property
    def is_empty(self) -> bool:
        return self.state is GroupState.EMPTY

    @property
    def is_consumer(self) -> bool:
        return self._rebalance.is_consumer

    @property
    def size(self) -> int:
        return len(self.membership)

    def metadata(self) -> GroupMetadata:
        return self._rebalance.metadata()

    def tombstones(self) -> WrittenRecords:
        return [(GroupKey(self.group_id), None)]

    def members_seen(self) -> Iterator[MemberView]:
        return views_of(self._rebalance)

    def reads(self) -> Reads:
        return reads_of(self._rebalance)

    def check_offset_commit(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        offsets: Sequence[OffsetToCommit] = (),  # noqa: ARG002  # a generation owns all its partitions
        *,
        knows_epochs: bool = True,  # noqa: ARG002  # classic groups have none
        transactional: bool = False,
    ) -> list[Effect]:
        """Check a commit, which counts as a heartbeat. Clients outside the group may commit while it is empty.

        Raises KafkaError: unknown_member_id, fenced_instance_id, illegal_generation, rebalance_in_progress,
        coordinator_not_available.
        """
        rebalance = self._rebalance
        if generation < 0 and rebalance.state is GroupState.EMPTY:
            return []
        out: list[Effect] = []
        if generation >= 0 or member_id != UNKNOWN_MEMBER_ID or instance_id is not None:
            out.append(rebalance.session_timer(rebalance.check_member(member_id, instance_id, generation)))
        else:
            rebalance.check_alive()
            if not transactional:
                raise KafkaError(ErrorCode.unknown_member_id, "only members may commit offsets of a non-empty group")
        if rebalance.state is GroupState.COMPLETING_REBALANCE and not transactional:
            raise KafkaError(ErrorCode.rebalance_in_progress)
        return out

    def check_offset_fetch(self, member_id: str | None, epoch: int) -> None:
        """Allow everything: classic groups do not check fetches."""

    def is_subscribed_to(self, topic: str) -> bool:
        """Return True if a member reads `topic`, or if consumers' subscriptions are malformed or too long."""
        subscribed = self._rebalance.subscribed_topics
        return self.is_consumer if subscribed is None else topic in subscribed

    def offset_kept_from(self, commit_timestamp: int) -> int | None:
        """Return the start of an offset's retention time (ms); None while it must be kept (KIP-211)."""
        rebalance = self._rebalance
        if rebalance.protocol_type is None:
            return commit_timestamp
        if rebalance.state is GroupState.EMPTY:
            return commit_timestamp if rebalance.state_timestamp == NO_TIMESTAMP else rebalance.state_timestamp
        if self.is_consumer and rebalance.subscribed_topics is not None and rebalance.state is GroupState.STABLE:
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

    def _leave(self, out: list[Effect], leaver: Leaver) -> ErrorCode:
        rebalance = self._rebalance
        member_id = leaver.member_id
        if member_id in self.membership.pending_joins:
            rebalance.note_pending(out, Happening.LEFT, member_id, leaver.reason)
            self.membership.remove(member_id)
            out.append(CancelTimer(Timer(TimerKind.HEARTBEAT, member_id)))
            return ErrorCode.none
        if member_id == UNKNOWN_MEMBER_ID and leaver.instance_id is not None:
            member_id = self.membership.static.get(leaver.instance_id, UNKNOWN_MEMBER_ID)
        try:
            member = rebalance.check_member(member_id, leaver.instance_id, rebalance.generation)
        except KafkaError as error:
            rebalance.note_fenced(out, error, member_id, leaver.instance_id, "LeaveGroup")
            return error.code
        rebalance.drop(out, member, ErrorCode.unknown_member_id)
        rebalance.note(out, Happening.LEFT, member, leaver.reason)
        return ErrorCode.none

    def _check_sync(self, request: Sync) -> ClassicMember:
        rebalance = self._rebalance
        member = rebalance.check_member(request.member_id, request.instance_id, request.generation)
        if request.protocol_type not in (None, rebalance.protocol_type) or request.protocol_name not in (
            None,
            rebalance.protocol_name,
        ):
            raise KafkaError(ErrorCode.inconsistent_group_protocol)
        if rebalance.state is GroupState.PREPARING_REBALANCE:
            raise KafkaError(ErrorCode.rebalance_in_progress)
        return member
