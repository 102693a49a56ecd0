"""Steps that requests to a group of the consumer protocol share: change the subscription, raise the group epoch,
compute the target assignment, reconcile the member.

They add records and effects to a `Result`; the group changes when the records are replayed (`ConsumerState`).
"""

import dataclasses
from collections.abc import Sequence
from typing import Final

from headrace.coordinator.groups.consumer.assignors import ASSIGNORS, Subscriber
from headrace.coordinator.groups.consumer.draft import (
    Draft,
    member_tombstones,
    no_more_timers,
    topics_of,
    topics_of_member,
)
from headrace.coordinator.groups.consumer.member import ConsumerMember
from headrace.coordinator.groups.consumer.reconciliation import Aim, reconcile
from headrace.coordinator.groups.consumer.state import NO_PARTITIONS, ConsumerState
from headrace.coordinator.groups.effects import (
    Happening,
    Note,
    Timer,
    TimerKind,
)
from headrace.coordinator.groups.records.consumer import (
    AssignmentEpoch,
    ConsumerGroupKey,
    CurrentAssignmentKey,
    GroupEpoch,
    MemberKey,
    MemberState,
    Partitions,
    RegexKey,
    ResolvedRegex,
    TargetAssignment,
    TargetAssignmentKey,
    TargetMemberKey,
)
from headrace.coordinator.groups.subscriptions import Topics, metadata_hash
from headrace.coordinator.runtime.results import CancelTimer, Result, ScheduleTimer
from headrace.wording import count

_ASSIGNMENT_TIMER: Final = Timer(TimerKind.ASSIGNMENT)
_UNCHECKED: Final = -1


class Steps:
    """The steps of one group's decisions: each adds records and effects to the result of a request."""

    def __init__(self, known: ConsumerState, topics: Topics) -> None:
        self._known = known
        self._topics = topics
        self._checked_version = _UNCHECKED
        """Version of the topics at the last check."""

    def append_failed(self) -> None:
        """Forget the last check of the topics, whose result was not written, so that they are checked again."""
        self._checked_version = _UNCHECKED

    def draft(self) -> Draft:
        known = self._known
        return Draft(dict(known.members), known.epoch, known.metadata_hash, dict(known.regexes))

    def replace(self, out: Result[None], draft: Draft, old: ConsumerMember, member_id: str) -> ConsumerMember:
        """Give a static member a new member id. It keeps its subscription and assignments."""
        group_id = self._known.group_id
        new = dataclasses.replace(old, member_id=member_id, epoch=0, previous_epoch=0)
        draft.members.pop(old.member_id)
        draft.members[member_id] = new
        target = self._known.target.get(old.member_id, NO_PARTITIONS)
        out.records += member_tombstones(self._known.group_id, old.member_id)
        out.records += (
            (MemberKey(group_id, member_id), new.subscription),
            (TargetMemberKey(group_id, member_id), TargetAssignment(target)),
            (CurrentAssignmentKey(group_id, member_id), new.current),
        )
        out.effects += no_more_timers(old.member_id)
        self.note(out, Happening.REPLACED, new, f"replaces {old.member_id}")
        return new

    def subscribe(
        self,
        out: Result[None],
        draft: Draft,
        before: ConsumerMember,
        after: ConsumerMember,
        now_ms: int,
    ) -> bool:
        """Write a changed member, and a new group epoch if needed. Return True if its subscription changed."""
        member_id = after.member_id
        has_changed = (after.topics, after.regex) != (before.topics, before.regex)
        is_new = member_id not in draft.members
        change = ""
        if is_new or after != before:
            out.records.append((MemberKey(self._known.group_id, member_id), after.subscription))
        if is_new or has_changed:
            what = Happening.JOINED if is_new else Happening.SUBSCRIBED
            change = f"member {member_id} ({after.client_id}) {'joined' if is_new else 'changed its subscription'}"
            self.note(out, what, after, f"{count(len(after.topics), 'topic')} {after.regex}".rstrip())
        draft.members[member_id] = after
        if has_changed or not self.has_checked_topics():
            self.check_topics(out, draft, now_ms, change if has_changed else "")
        return has_changed

    def has_checked_topics(self) -> bool:
        return self._checked_version == self._topics.version

    def remove(self, out: Result[None], members: Sequence[ConsumerMember]) -> None:
        """Remove members, and raise the group epoch."""
        draft = self.draft()
        for member in members:
            del draft.members[member.member_id]
            out.records += member_tombstones(self._known.group_id, member.member_id)
            out.effects += no_more_timers(member.member_id)
        self._forget_unused_regexes(out, draft)
        draft.metadata_hash = metadata_hash(topics_of(draft), self._topics)
        names = ", ".join(f"{member.member_id} ({member.client_id})" for member in members)
        self.bump(out, draft, f"member {names} left" if len(members) == 1 else f"members {names} left")

    def check_topics(self, out: Result[None], draft: Draft, now_ms: int, change: str = "") -> None:
        """Raise the group epoch for a `change` to subscriptions, or if the topics have changed."""
        self._checked_version = self._topics.version
        self._forget_unused_regexes(out, draft)
        for regex in sorted({member.regex for member in draft.members.values() if member.regex}):
            matches = self._topics.matching(regex)
            if matches is None:
                # As in Kafka, the group keeps the old matches until a heartbeat after matching is complete.
                self._checked_version = _UNCHECKED
                continue
            resolved = ResolvedRegex(matches, self._topics.version, now_ms)
            known = draft.regexes.get(regex)
            if known is None or known.topics != resolved.topics:
                change = change or "the topics that match a regular expression changed"
                draft.regexes[regex] = resolved
                out.records.append((RegexKey(self._known.group_id, regex), resolved))
        new_hash = metadata_hash(topics_of(draft), self._topics)
        if change or new_hash != draft.metadata_hash:
            draft.metadata_hash = new_hash
            self.bump(out, draft, change or "topics changed")

    def _forget_unused_regexes(self, out: Result[None], draft: Draft) -> None:
        for regex in draft.regexes.keys() - {member.regex for member in draft.members.values()}:
            del draft.regexes[regex]
            out.records.append((RegexKey(self._known.group_id, regex), None))

    def bump(self, out: Result[None], draft: Draft, reason: str) -> None:
        draft.epoch += 1
        out.records.append((ConsumerGroupKey(self._known.group_id), GroupEpoch(draft.epoch, draft.metadata_hash)))
        out.effects.append(Note(what=Happening.BUMPED, generation=draft.epoch, reason=reason))

    def retarget(self, out: Result[None], draft: Draft, now_ms: int) -> tuple[int, dict[str, Partitions]]:
        """Return the target assignment and its epoch. Compute it if it is outdated and the interval has passed."""
        known = self._known
        if not out.records and draft.epoch <= known.assignment_epoch:
            return known.assignment_epoch, known.target
        # Include the targets of replaced static members.
        current = dict(known.target)
        for key, value in out.records:
            if isinstance(key, TargetMemberKey):
                current.pop(key.member_id, None)
                if isinstance(value, TargetAssignment):
                    current[key.member_id] = value.partitions
        if draft.epoch <= known.assignment_epoch:
            return known.assignment_epoch, current
        wait_ms = known.assigned_at + known.settings.group_consumer_assignment_interval_ms - now_ms
        if 0 < wait_ms <= known.settings.group_consumer_assignment_interval_ms:
            out.effects.append(ScheduleTimer(_ASSIGNMENT_TIMER, wait_ms))
            return known.assignment_epoch, current
        name = known.preferred_assignor(draft.members.values())
        descriptions = {name: found for name in topics_of(draft) if (found := self._topics.describe(name)) is not None}
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
                out.records.append((TargetMemberKey(known.group_id, member_id), TargetAssignment(partitions)))
        out.records.append((TargetAssignmentKey(known.group_id), AssignmentEpoch(draft.epoch, now_ms)))
        out.effects.append(CancelTimer(_ASSIGNMENT_TIMER))
        reason = f"{count(len(targets), 'member')}, assignor {name}"
        out.effects.append(Note(what=Happening.TARGETED, generation=draft.epoch, reason=reason))
        return draft.epoch, targets

    def reconcile(
        self,
        out: Result[None],
        draft: Draft,
        member: ConsumerMember,
        target_epoch: int,
        target: Partitions,
        owned: Partitions | None,
        *,
        has_changed: bool,
    ) -> ConsumerMember:
        if not has_changed and member.is_reconciled_to(target_epoch):
            return member
        replaced = {key.member_id for key, value in out.records if isinstance(key, MemberKey) and value is None}
        not_blocking = {None, member.member_id, *replaced}
        described = (self._topics.describe(topic) for topic in topics_of_member(member, draft))
        aim = Aim(
            target_epoch=target_epoch,
            target=target,
            subscribed=frozenset(description[0] for description in described if description is not None),
            has_subscription_changed=has_changed,
            is_free=lambda one: self._known.owners.get(one) in not_blocking,
            owned=owned,
        )
        after = reconcile(member, aim)
        if after == member:
            return member
        out.records.append((CurrentAssignmentKey(self._known.group_id, after.member_id), after.current))
        if after.state is MemberState.UNREVOKED_PARTITIONS:
            if after.classic is None:
                self.schedule_revocation(out, after)
            self.note(out, Happening.REVOKING, after, count(len(after.revoking), "partition"))
        else:
            out.effects.append(CancelTimer(Timer(TimerKind.REVOCATION, after.member_id)))
            if after.state is MemberState.STABLE:
                self.note(out, Happening.RECONCILED, after, count(len(after.assigned), "partition"))
        return after

    def session_timeout_ms(self, member: ConsumerMember) -> int:
        if member.classic is not None:
            return member.classic.session_timeout_ms
        return self._known.settings.group_consumer_session_timeout_ms

    def schedule_session(self, out: Result[None], member: ConsumerMember) -> None:
        timer = Timer(TimerKind.HEARTBEAT, member.member_id)
        out.effects.append(ScheduleTimer(timer, self.session_timeout_ms(member)))

    def schedule_revocation(self, out: Result[None], member: ConsumerMember) -> None:
        out.effects.append(
            ScheduleTimer(Timer(TimerKind.REVOCATION, member.member_id), max(member.rebalance_timeout_ms, 0))
        )

    def note(self, out: Result[None], what: Happening, member: ConsumerMember, reason: str) -> None:
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
