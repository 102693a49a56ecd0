"""A group of the consumer protocol (KIP-848) as a pure state machine: heartbeats go in, records and effects come out.

All state is in the log: requests and timers decide, and only `ConsumerState.replay` changes the group. The group epoch
rises with every change to members, subscriptions or topics. The assignment epoch follows when a target assignment has
been computed. A member's epoch follows when it has revoked the partitions that are not in its target; only then does it
get new partitions, once they are free.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from headrace.coordinator.groups.consumer.classic_members import ClassicMembers
from headrace.coordinator.groups.consumer.downgrade import Downgrade, with_names
from headrace.coordinator.groups.consumer.draft import Draft
from headrace.coordinator.groups.consumer.member import (
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerMember,
)
from headrace.coordinator.groups.consumer.requests import ConsumerHeartbeat, ConsumerHeartbeatResult
from headrace.coordinator.groups.consumer.state import (
    NO_PARTITIONS,
    ConsumerGroupState,
    ConsumerState,
)
from headrace.coordinator.groups.consumer.steps import Steps
from headrace.coordinator.groups.effects import (
    Effect,
    Happening,
    Timer,
    TimerKind,
)
from headrace.coordinator.groups.expressions import compiled
from headrace.coordinator.groups.group import (
    GroupType,
    MemberView,
    OffsetToCommit,
    Reads,
)
from headrace.coordinator.groups.records.codec import WrittenRecords
from headrace.coordinator.groups.records.consumer import CurrentAssignmentKey, MemberState, TopicIdPartition
from headrace.coordinator.groups.records.embedded import CONSUMER_PROTOCOL_TYPE
from headrace.coordinator.groups.requests import (
    Join,
    Leaver,
    Sync,
)
from headrace.coordinator.groups.settings import GroupSettings
from headrace.coordinator.groups.subscriptions import Topics
from headrace.coordinator.runtime.results import CancelTimer, Result
from headrace.errors import ErrorCode, KafkaError


class ConsumerGroup:
    """A group of the consumer protocol: validates requests and decides. `known` is its state in the log."""

    type = GroupType.CONSUMER
    is_consumer = True
    protocol_type = CONSUMER_PROTOCOL_TYPE

    def __init__(self, group_id: str, settings: GroupSettings, topics: Topics) -> None:
        self.group_id = group_id
        self.known = ConsumerState(group_id, settings)
        self._topics = topics
        self._steps = Steps(self.known, topics)
        self._downgrade = Downgrade(self.known, topics)
        self._classic = ClassicMembers(self.known, self._steps, self._downgrade, topics)
        self._unconfirmed: set[str] = set()
        """Members that have not reported their last assignment as owned, and some that have left. Not stored in the
        log: after a change of coordinator, most clients send a full request.
        """

    # Requests of members of the consumer protocol

    def consumer_heartbeat(self, request: ConsumerHeartbeat, now_ms: int) -> Result[ConsumerHeartbeatResult]:
        """Handle a heartbeat, which can also make a member join, change its subscription or leave.

        Raises KafkaError: unknown_member_id, fenced_member_epoch, unreleased_instance_id, fenced_instance_id,
        group_max_size_reached, invalid_regular_expression.
        """
        if request.epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
            return self._depart(request, now_ms)
        known, steps = self.known, self._steps
        settings = known.settings
        member_id = request.member_id or request.new_member_id
        if member_id not in known.members and len(known.members) >= settings.group_consumer_max_size:
            is_returning = request.instance_id is not None and request.instance_id in known.instances
            if not is_returning:
                raise KafkaError(
                    ErrorCode.group_max_size_reached,
                    "The consumer group has reached its maximum capacity of"
                    f" {settings.group_consumer_max_size} members.",
                )
        out = Result(None)
        draft = steps.draft()
        before = self._find(out, draft, request, member_id)
        after = _updated(before, request)
        if after.regex and after.regex != before.regex:
            compiled(after.regex)
        has_changed = steps.subscribe(out, draft, before, after, now_ms)
        target_epoch, targets = steps.retarget(out, draft, now_ms)
        target = targets.get(member_id, NO_PARTITIONS)
        after = steps.reconcile(out, draft, after, target_epoch, target, request.owned, has_changed=has_changed)
        steps.schedule_session(out, after)
        needs_assignment = self._needs_assignment(request, before, after)
        return out.answering(
            ConsumerHeartbeatResult(
                member_id=member_id,
                epoch=after.epoch,
                heartbeat_interval_ms=settings.group_consumer_heartbeat_interval_ms,
                assignment=frozenset(after.assigned) if needs_assignment else None,
            )
        )

    # Requests of members of the classic protocol

    def join(self, request: Join, now_ms: int) -> Result[None]:
        return self._classic.join(request, now_ms)

    def sync(self, request: Sync) -> Result[None]:
        return self._classic.sync(request)

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> Result[ErrorCode]:
        return self._classic.heartbeat(member_id, instance_id, generation, now_ms)

    def leave(self, leavers: Sequence[Leaver], now_ms: int) -> Result[list[ErrorCode]]:
        """Remove members for LeaveGroup, static ones also by instance id alone. Return an error code per leaver."""
        out = Result(None)
        errors = []
        leaving: dict[str, ConsumerMember] = {}
        for leaver in leavers:
            try:
                member = self._leaving(leaver)
            except KafkaError as error:
                errors.append(error.code)
                continue
            errors.append(ErrorCode.none)
            leaving[member.member_id] = member
            self._steps.note(out, Happening.LEFT, member, leaver.reason)
        if leaving:
            self._remove(out, list(leaving.values()), now_ms)
        return out.answering(errors)

    # Events

    def timer_fired(self, timer: Timer, now_ms: int) -> Result[None]:
        out = Result(None)
        member = self.known.members.get(timer.member_id)
        if timer.kind is TimerKind.ASSIGNMENT:
            if self.known.members:
                self._steps.retarget(out, self._steps.draft(), now_ms)
        elif member is None:
            pass
        elif timer.kind is TimerKind.HEARTBEAT:
            timeout_ms = self._steps.session_timeout_ms(member)
            self._time_out(out, member, f"no heartbeat for {timeout_ms} ms", now_ms)
        elif timer.kind is TimerKind.REVOCATION and member.state is MemberState.UNREVOKED_PARTITIONS:
            reason = f"it did not revoke its partitions within {member.rebalance_timeout_ms} ms"
            self._time_out(out, member, reason, now_ms)
        elif timer.kind is TimerKind.JOIN:
            self._time_out(out, member, f"it did not rejoin within {member.rebalance_timeout_ms} ms", now_ms)
        elif timer.kind is TimerKind.SYNC:
            reason = f"it did not send SyncGroup within {member.rebalance_timeout_ms} ms"
            self._time_out(out, member, reason, now_ms)
        return out

    def loaded(self, now_ms: int) -> list[Effect]:  # noqa: ARG002  # a classic group may have to rebalance
        """Start the timers of a group loaded from the log."""
        out = Result(None)
        for member in self.known.members.values():
            self._steps.schedule_session(out, member)
            if member.state is MemberState.UNREVOKED_PARTITIONS and member.classic is None:
                self._steps.schedule_revocation(out, member)
        return out.effects

    def unload(self, error: ErrorCode, now_ms: int) -> list[Effect]:  # noqa: ARG002
        """Do nothing: no requests are parked."""
        return []

    def append_failed(self) -> None:
        self._steps.append_failed()

    # Queries

    @property
    def state(self) -> ConsumerGroupState:
        return self.known.state

    @property
    def generation(self) -> int:
        return self.known.epoch

    @property
    def is_empty(self) -> bool:
        return not self.known.members

    @property
    def size(self) -> int:
        return len(self.known.members)

    def tombstones(self) -> WrittenRecords:
        return [*self.known.tombstones()]

    def members_seen(self) -> Iterator[MemberView]:
        for member in list(self.known.members.values()):
            yield MemberView(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                host=member.client_host.removeprefix("/"),
                is_waited_for=not member.is_reconciled_to(self.known.assignment_epoch),
                partitions=with_names(member.assigned, self._topics),
            )

    def reads(self) -> Reads:
        """Return the subscribed topics; the broker assigns no others."""
        return dict.fromkeys(self.known.subscribed_topics)

    def is_subscribed_to(self, topic: str) -> bool:
        return self.known.is_subscribed_to(topic)

    def offset_kept_from(self, commit_timestamp: int) -> int:
        return commit_timestamp

    def check_offset_commit(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        offsets: Sequence[OffsetToCommit],
        *,
        knows_epochs: bool = True,
        transactional: bool = False,
    ) -> list[Effect]:
        """Like `ConsumerState.check_offset_commit`. A transaction may commit without naming a member (KIP-447)."""
        if transactional and generation < 0 and not member_id and instance_id is None:
            return []
        partitions = frozenset(TopicIdPartition(value.topic_id, index) for _, index, value in offsets)
        self.known.check_offset_commit(member_id, generation, partitions, knows_epochs=knows_epochs or transactional)
        return []

    def check_offset_fetch(self, member_id: str | None, epoch: int) -> None:
        self.known.check_offset_fetch(member_id, epoch)

    def check(self) -> None:
        """Assert every invariant; for tests."""
        self.known.check()

    # Steps

    def _find(self, out: Result[None], draft: Draft, request: ConsumerHeartbeat, member_id: str) -> ConsumerMember:
        """Return the new or known member that sent the heartbeat, after checking its ids and epoch."""
        known = self.known
        instance_id = request.instance_id
        if request.epoch > 0:
            member = known.member(member_id) if instance_id is None else known.static_member(member_id, instance_id)
            _check_epoch(member, request)
            return member
        if instance_id is None or instance_id not in known.instances:
            # A known member that joins again keeps its assignment.
            return known.members.get(member_id) or ConsumerMember(member_id=member_id)
        old = known.members[known.instances[instance_id]]
        if old.epoch != STATIC_LEAVE_EPOCH and old.classic is None:
            raise KafkaError(
                ErrorCode.unreleased_instance_id,
                f"Static member {member_id} with instance id {instance_id} cannot join the group because the instance"
                f" id is owned by {old.member_id} member.",
            )
        return self._steps.replace(out, draft, old, member_id)

    def _needs_assignment(self, request: ConsumerHeartbeat, before: ConsumerMember, after: ConsumerMember) -> bool:
        """Return True if the reply must contain the assignment.

        Kafka sends an assignment once. After a lost reply, a Java consumer sends a full request; librdkafka does not
        after a timeout, so client and coordinator would disagree until the rebalance timeout. So the assignment is
        repeated until the member reports it as owned. A member that must revoke partitions has not done so yet, even if
        a reload has cleared `_unconfirmed`.
        """
        if len(self._unconfirmed) > len(self.known.members):
            self._unconfirmed &= self.known.members.keys()
        if after.assigned.keys() != before.assigned.keys():
            self._unconfirmed.add(after.member_id)
        elif request.owned is not None and request.owned == frozenset(after.assigned):
            self._unconfirmed.discard(after.member_id)
        must_revoke = after.state is MemberState.UNREVOKED_PARTITIONS
        return request.is_full or must_revoke or after.member_id in self._unconfirmed

    def _leaving(self, leaver: Leaver) -> ConsumerMember:
        """Return the member that a LeaveGroup names. Raises KafkaError: unknown_member_id, fenced_instance_id."""
        if leaver.instance_id is None:
            return self.known.member(leaver.member_id)
        member_id = leaver.member_id or self.known.instances.get(leaver.instance_id, "")
        return self.known.static_member(member_id, leaver.instance_id)

    def _time_out(self, out: Result[None], member: ConsumerMember, reason: str, now_ms: int) -> None:
        self._steps.note(out, Happening.TIMED_OUT, member, reason)
        self._remove(out, [member], now_ms)

    def _remove(self, out: Result[None], members: Sequence[ConsumerMember], now_ms: int) -> None:
        leaving = {member.member_id for member in members}
        remaining = {member_id: member for member_id, member in self.known.members.items() if member_id not in leaving}
        if any(member.classic is None for member in members) and self._downgrade.is_possible(remaining):
            self._downgrade.decide(out, remaining, now_ms, replacing=None, reason="for member leaving")
        else:
            self._steps.remove(out, members)

    def _depart(self, request: ConsumerHeartbeat, now_ms: int) -> Result[ConsumerHeartbeatResult]:
        out = Result(None)
        if request.instance_id is None:
            member = self.known.member(request.member_id)
        else:
            member = self.known.static_member(request.member_id, request.instance_id)
        if request.epoch == STATIC_LEAVE_EPOCH:
            away = replace(member, epoch=STATIC_LEAVE_EPOCH, assigned=dict.fromkeys(member.assigned, 0), revoking={})
            out.records.append((CurrentAssignmentKey(self.known.group_id, member.member_id), away.current))
            out.effects.append(CancelTimer(Timer(TimerKind.REVOCATION, member.member_id)))
            self._steps.note(out, Happening.AWAY, member, "")
        else:
            self._steps.note(out, Happening.LEFT, member, "")
            self._remove(out, [member], now_ms)
        return out.answering(ConsumerHeartbeatResult(member_id=member.member_id, epoch=request.epoch))


def _updated(member: ConsumerMember, request: ConsumerHeartbeat) -> ConsumerMember:
    return replace(
        member,
        instance_id=member.instance_id if request.instance_id is None else request.instance_id,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        topics=member.topics if request.topics is None else tuple(sorted(set(request.topics))),
        regex=member.regex if request.regex is None else request.regex,
        rebalance_timeout_ms=(
            member.rebalance_timeout_ms if request.rebalance_timeout_ms == -1 else request.rebalance_timeout_ms
        ),
        assignor=member.assignor if request.assignor is None else request.assignor,
        classic=None,
    )


def _check_epoch(member: ConsumerMember, request: ConsumerHeartbeat) -> None:
    if request.epoch == member.epoch:
        return
    is_retry = (
        request.epoch == member.previous_epoch and request.owned is not None and request.owned <= member.assigned.keys()
    )
    if request.epoch < member.epoch and is_retry:
        return
    size = "greater" if request.epoch > member.epoch else "smaller"
    raise KafkaError(
        ErrorCode.fenced_member_epoch,
        f"The consumer group member has a {size} member epoch ({request.epoch}) than the one known by the group"
        f" coordinator ({member.epoch}). The member must abandon all its partitions and rejoin.",
    )
