"""A group of the consumer protocol that members of the classic protocol take part in, which is how a group moves from
one protocol to the other while it works (KIP-848, `group.consumer.migration.policy`).

Such members send JoinGroup, SyncGroup and Heartbeat as ever; here each of these is a step of the member towards its
target assignment. A join says what the member reads and moves it on, a sync tells it what it may read, and a heartbeat
answers REBALANCE_IN_PROGRESS while it has something to do. Nobody leads: the group's assignor assigns. When the last
member of the consumer protocol goes, what is left becomes a group of the classic protocol.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from headrace.coordinator.groups.classic.requests import Join, Sync
from headrace.coordinator.groups.consumer.decision import Downgrade, Outcome, no_more_timers
from headrace.coordinator.groups.consumer.group import ConsumerGroup
from headrace.coordinator.groups.consumer.member import (
    ClassicMemberMetadata,
    ConsumerMember,
    MemberState,
    Partitions,
    TopicIdPartition,
)
from headrace.coordinator.groups.consumer.state import NO_PARTITIONS
from headrace.coordinator.groups.consumer_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    Subscription,
    decode_subscription,
    encode_assignment,
)
from headrace.coordinator.groups.effects import (
    UNKNOWN_MEMBER_ID,
    CancelTimer,
    CompleteJoin,
    CompleteSync,
    Effect,
    JoinResult,
    ScheduleTimer,
    SyncResult,
    Timer,
    TimerKind,
)
from headrace.coordinator.groups.records import GroupMetadata, MemberMetadata
from headrace.coordinator.groups.subscriptions import Topics
from headrace.errors import ErrorCode, KafkaError

_DISABLED: Final = "disabled"
_DOWNGRADES: Final = frozenset({"downgrade", "bidirectional"})


class MixedGroup(ConsumerGroup):
    """A group of the consumer protocol, and what its members of the classic one ask of it."""

    def join(self, request: Join, topics: Topics, now_ms: int) -> Outcome:
        """A member of the classic protocol joins or joins again; it is answered when the decision is in the log.

        Raises KafkaError: inconsistent_group_protocol, group_max_size_reached, unknown_member_id, fenced_instance_id,
        unknown_server_error (a subscription that cannot be read).
        """
        self._check_may_join(request)
        out = Outcome()
        if request.requires_known_member_id and not request.member_id and request.instance_id is None:
            result = JoinResult(error=ErrorCode.member_id_required, member_id=request.new_member_id)
            out.effects.append(CompleteJoin(request.reply_to, result))
            return out
        subscription = _subscription_in(request)
        if subscription.owned and request.member_id not in self.members:
            # It was removed and does not know. Kafka takes it in again, and then commits of what it has lost.
            raise KafkaError(ErrorCode.unknown_member_id, f"Member {request.member_id} has been removed.")
        draft = self._draft()
        replaced = self.members.get(self.instances.get(request.instance_id or "", ""))
        before = self._find_classic(out, request)
        if replaced is not None and replaced.member_id != before.member_id:
            draft.members.pop(replaced.member_id)
            draft.members[before.member_id] = before
        after = replace(
            before,
            instance_id=before.instance_id if request.instance_id is None else request.instance_id,
            rack_id=before.rack_id if subscription.rack_id is None else subscription.rack_id,
            client_id=request.client_id,
            client_host=request.client_host,
            topics=tuple(sorted(set(subscription.topics))),
            regex="",
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            classic=ClassicMemberMetadata(request.session_timeout_ms, request.protocols),
        )
        has_changed = self._subscribe(out, draft, before, after, topics, now_ms)
        owned = _with_ids(subscription, topics)
        becomes_classic = replaced is not None and replaced.classic is None and self._may_become_classic(draft.members)
        # Where somebody has yet to give up what another is to get, a stable classic group would give it to both.
        is_unsettled = draft.epoch > self.assignment_epoch or any(
            not each.is_reconciled_to(self.assignment_epoch) for each in self.members.values() if each is not replaced
        )
        if becomes_classic and is_unsettled:
            self._downgrade(out, draft.members, topics, now_ms, replacing=replaced, reason="with stale assignment")
        else:
            target_epoch, targets = (
                (self.assignment_epoch, self._targets_of(before, replaced))
                if becomes_classic
                else self._retarget(out, draft, topics, now_ms)
            )
            target = targets.get(after.member_id, NO_PARTITIONS)
            after = self._reconcile(out, draft, after, topics, target_epoch, target, owned, has_changed=has_changed)
            if becomes_classic:
                draft.members[after.member_id] = after
                self._downgrade(out, draft.members, topics, now_ms, replacing=replaced, reason=None)
        out.effects.append(CancelTimer(Timer(TimerKind.JOIN, after.member_id)))
        if not becomes_classic:
            self._schedule_session(out, after)
            sync_timer = Timer(TimerKind.SYNC, after.member_id)
            out.effects.append(ScheduleTimer(sync_timer, max(request.rebalance_timeout_ms, 0)))
        result = JoinResult(
            member_id=after.member_id,
            generation=after.epoch,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=request.protocols[0][0],
        )
        out.effects.append(CompleteJoin(request.reply_to, result))
        return out

    def sync(self, request: Sync, topics: Topics) -> list[Effect]:
        """Answers with what the member may read now, or with an error."""
        out = Outcome()
        result = SyncResult(protocol_type=request.protocol_type, protocol_name=request.protocol_name)
        try:
            member, classic = self._check_classic(request.member_id, request.instance_id, request.generation)
            name, metadata = classic.protocols[0]
            if request.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or request.protocol_name not in (None, name):
                raise KafkaError(ErrorCode.inconsistent_group_protocol)
            if self.assignment_epoch > member.epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
                self._ask_to_join(out, member)
                raise KafkaError(ErrorCode.rebalance_in_progress)
        except KafkaError as error:
            result = SyncResult(error=error.code)
        else:
            version = int.from_bytes(metadata[:2], "big")
            result = replace(result, assignment=encode_assignment(_with_names(member.assigned, topics), version))
            out.effects.append(CancelTimer(Timer(TimerKind.SYNC, member.member_id)))
            self._schedule_session(out, member)
        return [*out.effects, CompleteSync(request.reply_to, result)]

    def classic_heartbeat(
        self, member_id: str, instance_id: str | None, generation: int, topics: Topics, now_ms: int
    ) -> tuple[ErrorCode, Outcome]:
        """Keeps a member of the classic protocol alive; REBALANCE_IN_PROGRESS asks it to join again.

        Raises KafkaError: unknown_member_id, fenced_instance_id, illegal_generation.
        """
        member, _ = self._check_classic(member_id, instance_id, generation)
        out = Outcome()
        self._schedule_session(out, member)
        # With Kafka members of the consumer protocol alone see that the topics or the members have changed. Where there
        # are none, as after the last has gone while groups may not be downgraded, nobody would.
        target_epoch = self.assignment_epoch
        if self.epoch > target_epoch or not self._has_seen(topics):
            draft = self._draft()
            self._look_at(out, draft, topics, now_ms)
            target_epoch, _ = self._retarget(out, draft, topics, now_ms)
        has_to_rejoin = (
            member.epoch < target_epoch
            or member.state is MemberState.UNREVOKED_PARTITIONS
            or (member.state is MemberState.UNRELEASED_PARTITIONS and not self._waits_for_others(member))
        )
        if not has_to_rejoin:
            return ErrorCode.none, out
        self._ask_to_join(out, member)
        return ErrorCode.rebalance_in_progress, out

    # Steps

    def _check_may_join(self, request: Join) -> None:
        settings = self.settings
        if settings.group_consumer_migration_policy == _DISABLED:
            raise KafkaError(
                ErrorCode.inconsistent_group_protocol,
                f"Cannot join the consumer group {self.group_id} with the classic protocol because the group migration"
                " is disabled.",
            )
        if len(self.members) >= settings.group_consumer_max_size and request.member_id not in self.members:
            raise KafkaError(ErrorCode.group_max_size_reached)
        spoken = [{name for name, _ in m.classic.protocols} for m in self.members.values() if m.classic is not None]
        offered = {name for name, _ in request.protocols}
        if request.protocol_type != CONSUMER_PROTOCOL_TYPE or not offered.intersection(*spoken):
            raise KafkaError(ErrorCode.inconsistent_group_protocol)

    def _find_classic(self, out: Outcome, request: Join) -> ConsumerMember:
        """Who joins: a new member, one that is known, or a static one that is back and takes over its place."""
        member_id = request.member_id or request.new_member_id
        if request.instance_id is None:
            return self.members.get(member_id) or ConsumerMember(member_id=member_id)
        if request.member_id != UNKNOWN_MEMBER_ID:
            return self.static_member(member_id, request.instance_id)
        if request.instance_id not in self.instances:
            return ConsumerMember(member_id=member_id)
        return self._replace(out, self._draft(), self.members[self.instances[request.instance_id]], member_id)

    def _check_classic(
        self, member_id: str, instance_id: str | None, generation: int
    ) -> tuple[ConsumerMember, ClassicMemberMetadata]:
        member = self.member(member_id) if instance_id is None else self.static_member(member_id, instance_id)
        if member.classic is None:
            raise KafkaError(ErrorCode.unknown_member_id, f"Member {member_id} does not use the classic protocol.")
        if generation != member.epoch:
            raise KafkaError(ErrorCode.illegal_generation)
        return member, member.classic

    def _ask_to_join(self, out: Outcome, member: ConsumerMember) -> None:
        timer = Timer(TimerKind.JOIN, member.member_id)
        out.effects.append(ScheduleTimer(timer, max(member.rebalance_timeout_ms, 0), may_run_already=True))

    def _waits_for_others(self, member: ConsumerMember) -> bool:
        """Whether a partition that it is to get is still read by another member."""
        missing = self.target.get(member.member_id, NO_PARTITIONS) - member.assigned.keys()
        return any(one in self.owners for one in missing)

    def _targets_of(self, member: ConsumerMember, replaced: ConsumerMember | None) -> dict[str, Partitions]:
        return {member.member_id: self.target.get(replaced.member_id if replaced else "", NO_PARTITIONS)}

    # The way back

    def _remove(self, out: Outcome, members: Sequence[ConsumerMember], topics: Topics, now_ms: int) -> None:
        leaving = {member.member_id for member in members}
        left = {member_id: each for member_id, each in self.members.items() if member_id not in leaving}
        if any(each.classic is None for each in members) and self._may_become_classic(left):
            self._downgrade(out, left, topics, now_ms, replacing=None, reason="for member leaving")
        else:
            super()._remove(out, members, topics, now_ms)

    def _may_become_classic(self, members: dict[str, ConsumerMember]) -> bool:
        settings = self.settings
        return (
            bool(members)
            and all(member.classic is not None for member in members.values())
            and settings.group_consumer_migration_policy in _DOWNGRADES
            and len(members) <= settings.group_max_size
        )

    def _downgrade(
        self,
        out: Outcome,
        members: dict[str, ConsumerMember],
        topics: Topics,
        now_ms: int,
        *,
        replacing: ConsumerMember | None,
        reason: str | None,
    ) -> None:
        """Decide that `members`, who all speak the classic protocol, are a classic group from now on. Each keeps
        what it has as its assignment, or gets what it waits for; one that is `replacing` another has that one's.
        """
        protocols = {each.member_id: each.classic.protocols for each in members.values() if each.classic is not None}
        chosen = _select_protocol(protocols)
        described = []
        for member in members.values():
            assert member.classic is not None
            subscription = next(metadata for name, metadata in member.classic.protocols if name == chosen)
            is_new = replacing is not None and member.instance_id == replacing.instance_id
            former_id = replacing.member_id if is_new and replacing is not None else member.member_id
            # What it still reads is its own, and what another member still reads is not.
            has = {one for one, owner in self.owners.items() if owner == former_id}
            has.update(one for one in self.target.get(former_id, NO_PARTITIONS) if one not in self.owners)
            described.append(
                MemberMetadata(
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    rebalance_timeout_ms=member.rebalance_timeout_ms,
                    session_timeout_ms=member.classic.session_timeout_ms,
                    subscription=subscription,
                    assignment=encode_assignment(_with_names(has, topics), int.from_bytes(subscription[:2], "big")),
                )
            )
        # Without a leader in its record a group that is read again knows that it has yet to rebalance.
        leader = described[0].member_id if reason is None else None
        metadata = GroupMetadata(CONSUMER_PROTOCOL_TYPE, self.epoch, chosen, leader, now_ms, tuple(described))
        for member_id in {*self.members, *members}:
            out.effects += no_more_timers(member_id)
        out.effects.append(CancelTimer(Timer(TimerKind.ASSIGNMENT)))
        out.decision += self.tombstones()
        if replacing is not None:
            # Its successor's records have been decided before these.
            for member_id in members.keys() - self.members.keys():
                out.decision += self._member_tombstones(member_id)
        why = None if reason is None else f"Downgrade group {self.group_id} from consumer to classic {reason}."
        out.downgrade = Downgrade(metadata=metadata, protocols=protocols, reason=why)


def _subscription_in(request: Join) -> Subscription:
    """All of a member's protocols have the same subscription. Raises KafkaError(unknown_server_error)."""
    try:
        return decode_subscription(request.protocols[0][1])
    except ValueError as error:
        # What Kafka answers, too: the member's assignor does not speak the consumer's embedded protocol.
        raise KafkaError(
            ErrorCode.unknown_server_error, f"the member's subscription cannot be read: {error}"
        ) from error


def _with_ids(subscription: Subscription, topics: Topics) -> Partitions:
    return frozenset(
        TopicIdPartition(description[0], index)
        for topic, indexes in subscription.owned
        if (description := topics.describe(topic)) is not None
        for index in indexes
    )


def _with_names(partitions: Iterable[TopicIdPartition], topics: Topics) -> dict[str, list[int]]:
    """Those of topics that still exist."""
    out: dict[str, list[int]] = {}
    for one in sorted(partitions):
        name = topics.name_of(one.topic_id)
        if name is not None:
            out.setdefault(name, []).append(one.partition)
    return out


def _select_protocol(protocols: Mapping[str, tuple[tuple[str, bytes], ...]]) -> str:
    """The one that most members prefer among those that all have."""
    shared = set.intersection(*({name for name, _ in each} for each in protocols.values()))
    votes = Counter(next(name for name, _ in each if name in shared) for each in protocols.values())
    return max(votes, key=votes.__getitem__)
