"""One group of the consumer protocol (KIP-848) as a pure machine: heartbeats in, records to write and effects out.

All of its state is in the log: `heartbeat` and `timer_fired` decide, `replay` alone changes the group. Three epochs
drive it. The group's grows with each change of members, subscriptions or topics; the assignment's follows when a target
assignment has been computed for it; each member's follows when the member has given up what the target takes from it.
Only then does it get what it gains, and only of what is free.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from headrace.coordinator.groups.classic.requests import Leaver
from headrace.coordinator.groups.consumer.assignors import ASSIGNORS, Subscriber
from headrace.coordinator.groups.consumer.decision import (
    Draft,
    Outcome,
    no_more_timers,
    subscription_of,
    topics_of,
    topics_of_member,
)
from headrace.coordinator.groups.consumer.member import (
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerMember,
    MemberState,
    Partitions,
)
from headrace.coordinator.groups.consumer.reconciliation import Aim, reconcile
from headrace.coordinator.groups.consumer.records import (
    AssignmentEpoch,
    ConsumerGroupKey,
    ConsumerKey,
    CurrentAssignmentKey,
    GroupEpoch,
    MemberKey,
    RegexKey,
    ResolvedRegex,
    TargetAssignment,
    TargetAssignmentKey,
    TargetMemberKey,
    current_assignment,
)
from headrace.coordinator.groups.consumer.requests import ConsumerHeartbeat, ConsumerHeartbeatResult
from headrace.coordinator.groups.consumer.state import NO_PARTITIONS, ConsumerState
from headrace.coordinator.groups.effects import (
    CancelTimer,
    Effect,
    Happening,
    Note,
    ScheduleTimer,
    Timer,
    TimerKind,
)
from headrace.coordinator.groups.expressions import compiled
from headrace.coordinator.groups.settings import GroupSettings
from headrace.coordinator.groups.subscriptions import Topics, metadata_hash
from headrace.errors import ErrorCode, KafkaError
from headrace.wording import count

_ASSIGNMENT_TIMER: Final = Timer(TimerKind.ASSIGNMENT)
_UNCHECKED: Final = -1


class ConsumerGroup(ConsumerState):
    """A group of the consumer protocol: what members ask of it, checked and decided."""

    def __init__(self, group_id: str, settings: GroupSettings) -> None:
        super().__init__(group_id, settings)
        self._checked_version = _UNCHECKED
        """Version of the topics that the group's epoch stands for."""

    # What members ask

    def heartbeat(self, request: ConsumerHeartbeat, topics: Topics, now_ms: int) -> Outcome:
        """Joins, stays, changes its subscription, or leaves.

        Raises KafkaError: unknown_member_id, fenced_member_epoch, unreleased_instance_id, fenced_instance_id,
        group_max_size_reached, invalid_regular_expression.
        """
        if request.epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
            return self._leave(request, topics, now_ms)
        member_id = request.member_id or request.new_member_id
        if member_id not in self.members and len(self.members) >= self.settings.group_consumer_max_size:
            is_back = request.instance_id is not None and request.instance_id in self.instances
            if not is_back:
                raise KafkaError(
                    ErrorCode.group_max_size_reached,
                    "The consumer group has reached its maximum capacity of"
                    f" {self.settings.group_consumer_max_size} members.",
                )
        out = Outcome()
        draft = self._draft()
        before = self._find(out, draft, request, member_id)
        after = _updated(before, request)
        if after.regex and after.regex != before.regex:
            compiled(after.regex)
        has_changed = self._subscribe(out, draft, before, after, topics, now_ms)
        target_epoch, targets = self._retarget(out, draft, topics, now_ms)
        target = targets.get(member_id, NO_PARTITIONS)
        after = self._reconcile(out, draft, after, topics, target_epoch, target, request.owned, has_changed=has_changed)
        self._schedule_session(out, after)
        is_told = request.is_full or after.assigned.keys() != before.assigned.keys()
        out.result = ConsumerHeartbeatResult(
            member_id=member_id,
            epoch=after.epoch,
            heartbeat_interval_ms=self.settings.group_consumer_heartbeat_interval_ms,
            assignment=frozenset(after.assigned) if is_told else None,
        )
        return out

    def leave(self, leavers: Sequence[Leaver], topics: Topics, now_ms: int) -> tuple[list[ErrorCode], Outcome]:
        """Members of the classic protocol leave, or an administrator removes members, static ones by instance id alone
        if need be. One error code each.
        """
        out = Outcome()
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
            self._note(out, Happening.LEFT, member, leaver.reason)
        if leaving:
            self._remove(out, list(leaving.values()), topics, now_ms)
        return errors, out

    def timer_fired(self, timer: Timer, topics: Topics, now_ms: int) -> Outcome:
        """A timer that was scheduled and not cancelled has run out."""
        out = Outcome()
        member = self.members.get(timer.member_id)
        if timer.kind is TimerKind.ASSIGNMENT:
            if self.members:
                self._retarget(out, self._draft(), topics, now_ms)
        elif member is None:
            pass
        elif timer.kind is TimerKind.HEARTBEAT:
            self._time_out(out, member, f"no heartbeat for {self._session_timeout_ms(member)} ms", topics, now_ms)
        elif timer.kind is TimerKind.REVOCATION and member.state is MemberState.UNREVOKED_PARTITIONS:
            late = f"it did not give up its partitions within {member.rebalance_timeout_ms} ms"
            self._time_out(out, member, late, topics, now_ms)
        elif timer.kind is TimerKind.JOIN:
            self._time_out(out, member, f"it did not rejoin within {member.rebalance_timeout_ms} ms", topics, now_ms)
        elif timer.kind is TimerKind.SYNC:
            late = f"it did not ask for its assignment within {member.rebalance_timeout_ms} ms"
            self._time_out(out, member, late, topics, now_ms)
        return out

    def loaded(self) -> list[Effect]:
        """The group has been read from the log: expect heartbeats and revocations."""
        out = Outcome()
        for member in self.members.values():
            self._schedule_session(out, member)
            if member.state is MemberState.UNREVOKED_PARTITIONS and member.classic is None:
                self._schedule_revocation(out, member)
        return out.effects

    def append_failed(self) -> None:
        """What the latest heartbeat found about topics has not been written: look again."""
        self._checked_version = _UNCHECKED

    # Steps

    def _draft(self) -> Draft:
        return Draft(dict(self.members), self.epoch, self.metadata_hash, dict(self.regexes))

    def _find(self, out: Outcome, draft: Draft, request: ConsumerHeartbeat, member_id: str) -> ConsumerMember:
        """The member that the heartbeat is of, new or known, checked."""
        instance_id = request.instance_id
        if request.epoch > 0:
            member = self.member(member_id) if instance_id is None else self.static_member(member_id, instance_id)
            _check_epoch(member, request)
            return member
        if instance_id is None or instance_id not in self.instances:
            # A known member that joins again keeps what it has and is told of it.
            return self.members.get(member_id) or ConsumerMember(member_id=member_id)
        old = self.members[self.instances[instance_id]]
        if old.epoch != STATIC_LEAVE_EPOCH and old.classic is None:
            raise KafkaError(
                ErrorCode.unreleased_instance_id,
                f"Static member {member_id} with instance id {instance_id} cannot join the group because the instance"
                f" id is owned by {old.member_id} member.",
            )
        return self._replace(out, draft, old, member_id)

    def _replace(self, out: Outcome, draft: Draft, old: ConsumerMember, member_id: str) -> ConsumerMember:
        """A static member is back under another id: it takes over all that the old one had."""
        group_id = self.group_id
        new = replace(old, member_id=member_id, epoch=0, previous_epoch=0)
        draft.members.pop(old.member_id)
        draft.members[member_id] = new
        target = self.target.get(old.member_id, NO_PARTITIONS)
        out.decision += self._member_tombstones(old.member_id)
        out.decision += (
            (MemberKey(group_id, member_id), subscription_of(new)),
            (TargetMemberKey(group_id, member_id), TargetAssignment(target)),
            (CurrentAssignmentKey(group_id, member_id), current_assignment(new)),
        )
        out.effects += no_more_timers(old.member_id)
        self._note(out, Happening.REPLACED, new, f"it was {old.member_id}")
        return new

    def _subscribe(
        self,
        out: Outcome,
        draft: Draft,
        before: ConsumerMember,
        after: ConsumerMember,
        topics: Topics,
        now_ms: int,
    ) -> bool:
        """Write down what a member says of itself, and a new group epoch where that asks for one. Whether it
        subscribes to something else than before.
        """
        member_id = after.member_id
        has_changed = (after.topics, after.regex) != (before.topics, before.regex)
        is_new = member_id not in draft.members
        change = ""
        if is_new or after != before:
            out.decision.append((MemberKey(self.group_id, member_id), subscription_of(after)))
        if is_new or has_changed:
            what = Happening.JOINED if is_new else Happening.SUBSCRIBED
            change = f"member {member_id} ({after.client_id}) {'joined' if is_new else 'changed its subscription'}"
            self._note(out, what, after, f"{count(len(after.topics), 'topic')} {after.regex}".rstrip())
        draft.members[member_id] = after
        if has_changed or not self._has_seen(topics):
            self._look_at(out, draft, topics, now_ms, change if has_changed else "")
        return has_changed

    def _has_seen(self, topics: Topics) -> bool:
        return self._checked_version == topics.version

    def _leaving(self, leaver: Leaver) -> ConsumerMember:
        """Raises KafkaError: unknown_member_id, fenced_instance_id."""
        if leaver.instance_id is None:
            return self.member(leaver.member_id)
        member_id = leaver.member_id or self.instances.get(leaver.instance_id, "")
        return self.static_member(member_id, leaver.instance_id)

    def _time_out(self, out: Outcome, member: ConsumerMember, reason: str, topics: Topics, now_ms: int) -> None:
        self._note(out, Happening.TIMED_OUT, member, reason)
        self._remove(out, [member], topics, now_ms)

    def _leave(self, request: ConsumerHeartbeat, topics: Topics, now_ms: int) -> Outcome:
        out = Outcome()
        if request.instance_id is None:
            member = self.member(request.member_id)
        else:
            member = self.static_member(request.member_id, request.instance_id)
        if request.epoch == STATIC_LEAVE_EPOCH:
            away = replace(member, epoch=STATIC_LEAVE_EPOCH, assigned=dict.fromkeys(member.assigned, 0), revoking={})
            out.decision.append((CurrentAssignmentKey(self.group_id, member.member_id), current_assignment(away)))
            out.effects.append(CancelTimer(Timer(TimerKind.REVOCATION, member.member_id)))
            self._note(out, Happening.AWAY, member, "")
        else:
            self._note(out, Happening.LEFT, member, "")
            self._remove(out, [member], topics, now_ms)
        out.result = ConsumerHeartbeatResult(member_id=member.member_id, epoch=request.epoch)
        return out

    def _remove(
        self,
        out: Outcome,
        members: Sequence[ConsumerMember],
        topics: Topics,
        now_ms: int,  # noqa: ARG002  # of what a mixed group becomes
    ) -> None:
        draft = self._draft()
        for member in members:
            del draft.members[member.member_id]
            out.decision += self._member_tombstones(member.member_id)
            out.effects += no_more_timers(member.member_id)
        self._forget_unused_regexes(out, draft)
        draft.metadata_hash = metadata_hash(topics_of(draft), topics)
        names = ", ".join(f"{member.member_id} ({member.client_id})" for member in members)
        self._bump(out, draft, f"member {names} is gone" if len(members) == 1 else f"members {names} are gone")

    def _member_tombstones(self, member_id: str) -> Iterator[tuple[ConsumerKey, None]]:
        for kind in (CurrentAssignmentKey, TargetMemberKey, MemberKey):
            yield kind(self.group_id, member_id), None

    def _look_at(self, out: Outcome, draft: Draft, topics: Topics, now_ms: int, change: str = "") -> None:
        """Look at the topics again; a new group epoch for a `change` of subscriptions, or of topics."""
        self._checked_version = topics.version
        self._forget_unused_regexes(out, draft)
        for regex in sorted({member.regex for member in draft.members.values() if member.regex}):
            matches = topics.matching(regex)
            if matches is None:
                # As with Kafka, the group goes on with what it knows until the next heartbeat after that.
                self._checked_version = _UNCHECKED
                continue
            resolved = ResolvedRegex(matches, topics.version, now_ms)
            known = draft.regexes.get(regex)
            if known is None or known.topics != resolved.topics:
                change = change or "other topics match an expression"
                draft.regexes[regex] = resolved
                out.decision.append((RegexKey(self.group_id, regex), resolved))
        new_hash = metadata_hash(topics_of(draft), topics)
        if change or new_hash != draft.metadata_hash:
            draft.metadata_hash = new_hash
            self._bump(out, draft, change or "topics changed")

    def _forget_unused_regexes(self, out: Outcome, draft: Draft) -> None:
        for regex in draft.regexes.keys() - {member.regex for member in draft.members.values()}:
            del draft.regexes[regex]
            out.decision.append((RegexKey(self.group_id, regex), None))

    def _bump(self, out: Outcome, draft: Draft, reason: str) -> None:
        draft.epoch += 1
        out.decision.append((ConsumerGroupKey(self.group_id), GroupEpoch(draft.epoch, draft.metadata_hash)))
        out.effects.append(Note(what=Happening.BUMPED, generation=draft.epoch, reason=reason))

    def _retarget(self, out: Outcome, draft: Draft, topics: Topics, now_ms: int) -> tuple[int, dict[str, Partitions]]:
        """The target assignment and its epoch; a new one where the group's epoch has moved on and it is time."""
        if not out.decision and draft.epoch <= self.assignment_epoch:
            return self.assignment_epoch, self.target
        # A member that took over a place has its target too.
        current = dict(self.target)
        for key, value in out.decision:
            if isinstance(key, TargetMemberKey):
                current.pop(key.member_id, None)
                if isinstance(value, TargetAssignment):
                    current[key.member_id] = value.partitions
        if draft.epoch <= self.assignment_epoch:
            return self.assignment_epoch, current
        wait_ms = self.assigned_at + self.settings.group_consumer_assignment_interval_ms - now_ms
        if 0 < wait_ms <= self.settings.group_consumer_assignment_interval_ms:
            out.effects.append(ScheduleTimer(_ASSIGNMENT_TIMER, wait_ms))
            return self.assignment_epoch, current
        name = self.preferred_assignor(draft.members.values())
        descriptions = {name: found for name in topics_of(draft) if (found := topics.describe(name)) is not None}
        subscribers = [
            Subscriber(
                member.member_id,
                member.instance_id,
                frozenset(descriptions[topic][0] for topic in topics_of_member(member, draft) if topic in descriptions),
                current.get(member.member_id, NO_PARTITIONS),
            )
            for member in draft.members.values()
        ]
        targets = ASSIGNORS[name](subscribers, dict(descriptions.values()))
        for member_id, partitions in targets.items():
            if current.get(member_id) != partitions and (partitions or member_id in current):
                out.decision.append((TargetMemberKey(self.group_id, member_id), TargetAssignment(partitions)))
        out.decision.append((TargetAssignmentKey(self.group_id), AssignmentEpoch(draft.epoch, now_ms)))
        out.effects.append(CancelTimer(_ASSIGNMENT_TIMER))
        reason = f"{count(len(targets), 'member')}, assignor {name}"
        out.effects.append(Note(what=Happening.TARGETED, generation=draft.epoch, reason=reason))
        return draft.epoch, targets

    def _reconcile(
        self,
        out: Outcome,
        draft: Draft,
        member: ConsumerMember,
        topics: Topics,
        target_epoch: int,
        target: Partitions,
        owned: Partitions | None,
        *,
        has_changed: bool,
    ) -> ConsumerMember:
        if not has_changed and member.is_reconciled_to(target_epoch):
            return member
        replaced = {key.member_id for key, value in out.decision if isinstance(key, MemberKey) and value is None}
        free_of = {None, member.member_id, *replaced}
        described = (topics.describe(topic) for topic in topics_of_member(member, draft))
        aim = Aim(
            target_epoch=target_epoch,
            target=target,
            subscribed=frozenset(description[0] for description in described if description is not None),
            has_subscription_changed=has_changed,
            is_free=lambda one: self.owners.get(one) in free_of,
            owned=owned,
        )
        after = reconcile(member, aim)
        if after == member:
            return member
        out.decision.append((CurrentAssignmentKey(self.group_id, after.member_id), current_assignment(after)))
        if after.state is MemberState.UNREVOKED_PARTITIONS:
            if after.classic is None:
                self._schedule_revocation(out, after)
            self._note(out, Happening.REVOKING, after, count(len(after.revoking), "partition"))
        else:
            out.effects.append(CancelTimer(Timer(TimerKind.REVOCATION, after.member_id)))
            if after.state is MemberState.STABLE:
                self._note(out, Happening.RECONCILED, after, count(len(after.assigned), "partition"))
        return after

    def _session_timeout_ms(self, member: ConsumerMember) -> int:
        if member.classic is not None:
            return member.classic.session_timeout_ms
        return self.settings.group_consumer_session_timeout_ms

    def _schedule_session(self, out: Outcome, member: ConsumerMember) -> None:
        timer = Timer(TimerKind.HEARTBEAT, member.member_id)
        out.effects.append(ScheduleTimer(timer, self._session_timeout_ms(member)))

    def _schedule_revocation(self, out: Outcome, member: ConsumerMember) -> None:
        out.effects.append(
            ScheduleTimer(Timer(TimerKind.REVOCATION, member.member_id), max(member.rebalance_timeout_ms, 0))
        )

    def _note(self, out: Outcome, what: Happening, member: ConsumerMember, reason: str) -> None:
        out.effects.append(
            Note(
                what=what,
                generation=member.epoch,
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                reason=reason,
            )
        )


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
