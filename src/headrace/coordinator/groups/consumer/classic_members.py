"""Members of the classic protocol in a group of the consumer protocol, for online migration (KIP-848,
`group.consumer.migration.policy`).

Every JoinGroup, which includes the owned partitions, is a step of the member towards its target assignment. SyncGroup
returns its current assignment, and Heartbeat returns REBALANCE_IN_PROGRESS if it has to rejoin. No member is the
leader: the broker assigns. When the last member of the consumer protocol leaves, the group becomes classic
(`downgrade.py`).
"""

from dataclasses import replace
from typing import Final

from headrace.coordinator.groups.consumer.downgrade import Downgrade, with_names
from headrace.coordinator.groups.consumer.member import ConsumerMember
from headrace.coordinator.groups.consumer.state import NO_PARTITIONS, ConsumerState
from headrace.coordinator.groups.consumer.steps import Steps
from headrace.coordinator.groups.effects import (
    UNKNOWN_MEMBER_ID,
    JoinResult,
    SyncResult,
    Timer,
    TimerKind,
)
from headrace.coordinator.groups.records.consumer import (
    ClassicMemberMetadata,
    MemberState,
    Partitions,
    TopicIdPartition,
)
from headrace.coordinator.groups.records.embedded import (
    CONSUMER_PROTOCOL_TYPE,
    Subscription,
    decode_subscription,
    encode_assignment,
)
from headrace.coordinator.groups.requests import Join, Sync
from headrace.coordinator.groups.subscriptions import Topics
from headrace.coordinator.runtime.results import CancelTimer, Complete, Result, ScheduleTimer
from headrace.errors import ErrorCode, KafkaError

_DISABLED: Final = "disabled"


class ClassicMembers:
    """Handles JoinGroup, SyncGroup and Heartbeat in one group of the consumer protocol."""

    def __init__(self, known: ConsumerState, steps: Steps, downgrade: Downgrade, topics: Topics) -> None:
        self._known = known
        self._steps = steps
        self._downgrade = downgrade
        self._topics = topics

    def join(self, request: Join, now_ms: int) -> Result[None]:
        """Handle a join or rejoin. The reply is sent when the records of the decision are written.

        Raises KafkaError: inconsistent_group_protocol, group_max_size_reached, unknown_member_id, fenced_instance_id,
        unknown_server_error (a malformed subscription).
        """
        steps = self._steps
        known = self._known
        self._check_may_join(request)
        out = Result(None)
        if request.requires_known_member_id and not request.member_id and request.instance_id is None:
            result = JoinResult(error=ErrorCode.member_id_required, member_id=request.new_member_id)
            out.effects.append(Complete(request.reply_to, result))
            return out
        subscription = _subscription_in(request)
        if subscription.owned and request.member_id not in known.members:
            # The member does not know that it was removed. Kafka adds it again, and accepts commits of lost partitions.
            raise KafkaError(ErrorCode.unknown_member_id, f"Member {request.member_id} has been removed.")
        draft = steps.draft()
        replaced = known.members.get(known.instances.get(request.instance_id or "", ""))
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
        has_changed = steps.subscribe(out, draft, before, after, now_ms)
        owned = _with_ids(subscription, self._topics)
        becomes_classic = (
            replaced is not None and replaced.classic is None and self._downgrade.is_possible(draft.members)
        )
        # In a stable classic group, partitions that are being revoked would be assigned twice.
        is_unsettled = draft.epoch > known.assignment_epoch or any(
            not member.is_reconciled_to(known.assignment_epoch)
            for member in known.members.values()
            if member is not replaced
        )
        if becomes_classic and is_unsettled:
            self._downgrade.decide(out, draft.members, now_ms, replacing=replaced, reason="with stale assignment")
        else:
            target_epoch, targets = (
                (known.assignment_epoch, self._targets_of(before, replaced))
                if becomes_classic
                else steps.retarget(out, draft, now_ms)
            )
            target = targets.get(after.member_id, NO_PARTITIONS)
            after = steps.reconcile(out, draft, after, target_epoch, target, owned, has_changed=has_changed)
            if becomes_classic:
                draft.members[after.member_id] = after
                self._downgrade.decide(out, draft.members, now_ms, replacing=replaced, reason=None)
        out.effects.append(CancelTimer(Timer(TimerKind.JOIN, after.member_id)))
        if not becomes_classic:
            steps.schedule_session(out, after)
            sync_timer = Timer(TimerKind.SYNC, after.member_id)
            out.effects.append(ScheduleTimer(sync_timer, max(request.rebalance_timeout_ms, 0)))
        result = JoinResult(
            member_id=after.member_id,
            generation=after.epoch,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=request.protocols[0][0],
        )
        out.effects.append(Complete(request.reply_to, result))
        return out

    def sync(self, request: Sync) -> Result[None]:
        """Reply with the member's current assignment or an error."""
        out = Result(None)
        result = SyncResult(protocol_type=request.protocol_type, protocol_name=request.protocol_name)
        try:
            member, classic = self._check_classic(request.member_id, request.instance_id, request.generation)
            name, metadata = classic.protocols[0]
            if request.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or request.protocol_name not in (None, name):
                raise KafkaError(ErrorCode.inconsistent_group_protocol)
            if self._known.assignment_epoch > member.epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
                self._ask_to_join(out, member)
                raise KafkaError(ErrorCode.rebalance_in_progress)
        except KafkaError as error:
            result = SyncResult(error=error.code)
        else:
            version = int.from_bytes(metadata[:2], "big")
            result = replace(result, assignment=encode_assignment(with_names(member.assigned, self._topics), version))
            out.effects.append(CancelTimer(Timer(TimerKind.SYNC, member.member_id)))
            self._steps.schedule_session(out, member)
        out.effects.append(Complete(request.reply_to, result))
        return out

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> Result[ErrorCode]:
        """Reset the member's session timer; REBALANCE_IN_PROGRESS asks it to rejoin.

        Raises KafkaError: unknown_member_id, fenced_instance_id, illegal_generation.
        """
        steps = self._steps
        member, _ = self._check_classic(member_id, instance_id, generation)
        out = Result(None)
        steps.schedule_session(out, member)
        # Kafka checks for changed topics only in heartbeats of the consumer protocol. A group that has no such members,
        # but may not be downgraded (`group.consumer.migration.policy`), would never notice a changed topic.
        target_epoch = self._known.assignment_epoch
        if self._known.epoch > target_epoch or not steps.has_checked_topics():
            draft = steps.draft()
            steps.check_topics(out, draft, now_ms)
            target_epoch, _ = steps.retarget(out, draft, now_ms)
        has_to_rejoin = (
            member.epoch < target_epoch
            or member.state is MemberState.UNREVOKED_PARTITIONS
            or (member.state is MemberState.UNRELEASED_PARTITIONS and not self._waits_for_others(member))
        )
        if not has_to_rejoin:
            return out.answering(ErrorCode.none)
        self._ask_to_join(out, member)
        return out.answering(ErrorCode.rebalance_in_progress)

    # Steps

    def _check_may_join(self, request: Join) -> None:
        known = self._known
        settings = known.settings
        if settings.group_consumer_migration_policy == _DISABLED:
            raise KafkaError(
                ErrorCode.inconsistent_group_protocol,
                f"Cannot join the consumer group {known.group_id} with the classic protocol because the group migration"
                " is disabled.",
            )
        if len(known.members) >= settings.group_consumer_max_size and request.member_id not in known.members:
            raise KafkaError(ErrorCode.group_max_size_reached)
        spoken = [{name for name, _ in m.classic.protocols} for m in known.members.values() if m.classic is not None]
        offered = {name for name, _ in request.protocols}
        if request.protocol_type != CONSUMER_PROTOCOL_TYPE or not offered.intersection(*spoken):
            raise KafkaError(ErrorCode.inconsistent_group_protocol)

    def _find_classic(self, out: Result[None], request: Join) -> ConsumerMember:
        """Return the joining member: a new one, a known one, or the replacement of a static one."""
        known = self._known
        member_id = request.member_id or request.new_member_id
        if request.instance_id is None:
            return known.members.get(member_id) or ConsumerMember(member_id=member_id)
        if request.member_id != UNKNOWN_MEMBER_ID:
            return known.static_member(member_id, request.instance_id)
        if request.instance_id not in known.instances:
            return ConsumerMember(member_id=member_id)
        return self._steps.replace(
            out, self._steps.draft(), known.members[known.instances[request.instance_id]], member_id
        )

    def _check_classic(
        self, member_id: str, instance_id: str | None, generation: int
    ) -> tuple[ConsumerMember, ClassicMemberMetadata]:
        member = (
            self._known.member(member_id) if instance_id is None else self._known.static_member(member_id, instance_id)
        )
        if member.classic is None:
            raise KafkaError(ErrorCode.unknown_member_id, f"Member {member_id} does not use the classic protocol.")
        if generation != member.epoch:
            raise KafkaError(ErrorCode.illegal_generation)
        return member, member.classic

    def _ask_to_join(self, out: Result[None], member: ConsumerMember) -> None:
        timer = Timer(TimerKind.JOIN, member.member_id)
        out.effects.append(ScheduleTimer(timer, max(member.rebalance_timeout_ms, 0), may_run_already=True))

    def _waits_for_others(self, member: ConsumerMember) -> bool:
        """Return True if another member still owns a partition of this member's target assignment."""
        missing = self._known.target.get(member.member_id, NO_PARTITIONS) - member.assigned.keys()
        return any(one in self._known.owners for one in missing)

    def _targets_of(self, member: ConsumerMember, replaced: ConsumerMember | None) -> dict[str, Partitions]:
        return {member.member_id: self._known.target.get(replaced.member_id if replaced else "", NO_PARTITIONS)}


def _subscription_in(request: Join) -> Subscription:
    """Decode the subscription in the metadata of the member's first assignor; every assignor has the same topics.

    Raises KafkaError(unknown_server_error) if it cannot be decoded.
    """
    try:
        return decode_subscription(request.protocols[0][1])
    except ValueError as error:
        # As in Kafka: the member's assignor uses another embedded protocol.
        raise KafkaError(
            ErrorCode.unknown_server_error, f"the member's subscription cannot be decoded: {error}"
        ) from error


def _with_ids(subscription: Subscription, topics: Topics) -> Partitions:
    return frozenset(
        TopicIdPartition(description[0], index)
        for topic, indexes in subscription.owned
        if (description := topics.describe(topic)) is not None
        for index in indexes
    )
