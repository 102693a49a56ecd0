"""The state of a group of the consumer protocol. Only `replay` changes it, in operation and on recovery."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from enum import StrEnum
from typing import Final, TypeAlias

from headrace.coordinator.groups.consumer.member import LEAVE_EPOCH, ConsumerMember
from headrace.coordinator.groups.records.consumer import (
    AssignmentEpoch,
    ConsumerGroupKey,
    ConsumerKey,
    ConsumerValue,
    CurrentAssignment,
    CurrentAssignmentKey,
    GroupEpoch,
    MemberKey,
    MemberState,
    MemberSubscription,
    PartitionMetadataKey,
    Partitions,
    RegexKey,
    ResolvedRegex,
    TargetAssignment,
    TargetAssignmentKey,
    TargetMemberKey,
    TopicIdPartition,
)
from headrace.coordinator.groups.settings import GroupSettings
from headrace.errors import ErrorCode, KafkaError

FIRST_EPOCH: Final = 1
NO_PARTITIONS: Final[Partitions] = frozenset()

ConsumerDecision: TypeAlias = list[tuple[ConsumerKey, ConsumerValue | None]]


class ConsumerGroupState(StrEnum):
    """States, named as in ConsumerGroupDescribe and ListGroups."""

    EMPTY = "Empty"
    """No members; the group may have offsets."""
    ASSIGNING = "Assigning"
    """The target assignment is outdated."""
    RECONCILING = "Reconciling"
    """Some members do not have their target assignment yet."""
    STABLE = "Stable"
    """Every member has its target assignment."""


class ConsumerState:
    """Epochs, members and assignments of a group."""

    def __init__(self, group_id: str, settings: GroupSettings) -> None:
        self.group_id = group_id
        self._settings = settings
        self.epoch = FIRST_EPOCH
        self.assignment_epoch = FIRST_EPOCH
        self.members: dict[str, ConsumerMember] = {}
        self.target: dict[str, Partitions] = {}
        self.regexes: dict[str, ResolvedRegex] = {}
        self.assigned_at = 0
        self.metadata_hash = 0
        self.instances: dict[str, str] = {}
        self.owners: dict[TopicIdPartition, str] = {}
        self._has_partition_metadata = False
        self._subscribed: Counter[str] = Counter()

    # Queries

    @property
    def settings(self) -> GroupSettings:
        return self._settings.of(self.group_id)

    @property
    def state(self) -> ConsumerGroupState:
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(member.is_reconciled_to(self.assignment_epoch) for member in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    @property
    def assignor(self) -> str:
        return self.preferred_assignor(self.members.values())

    def preferred_assignor(self, members: Iterable[ConsumerMember]) -> str:
        """Return the assignor that most members prefer; the first of `group.consumer.assignors` if none prefers one."""
        offered = self.settings.group_consumer_assignors
        votes = Counter(member.assignor for member in members if member.assignor in offered)
        return max(offered, key=lambda name: votes[name])

    @property
    def subscribed_topics(self) -> set[str]:
        return {*self._subscribed, *(topic for resolved in self.regexes.values() for topic in resolved.topics)}

    def is_subscribed_to(self, topic: str) -> bool:
        return self._subscribed[topic] > 0 or any(topic in resolved.topics for resolved in self.regexes.values())

    def check_offset_commit(
        self, member_id: str, epoch: int, partitions: Partitions, *, knows_epochs: bool = True
    ) -> ConsumerMember | None:
        """Return the member that commits offsets of `partitions`; None for an admin if the group is empty.

        A member with an old epoch may commit offsets of partitions that it has owned since then (KIP-1251).
        `knows_epochs`: the version of OffsetCommit supports the consumer protocol.

        Raises KafkaError: unknown_member_id, unsupported_version, stale_member_epoch, illegal_generation (a classic
        member).
        """
        if epoch < 0 and not self.members:
            return None
        member = self.member(member_id)
        if member.classic is None and not knows_epochs:
            raise KafkaError(ErrorCode.unsupported_version, "this group requires OffsetCommit version 9 or newer")
        if epoch == member.epoch:
            return member
        since = [member.assigned.get(one, member.revoking.get(one)) for one in partitions]
        if epoch > member.epoch or any(item is None or epoch < item for item in since):
            raise _stale(epoch, member)
        return member

    def check_offset_fetch(self, member_id: str | None, epoch: int) -> None:
        """Check the member of an OffsetFetch.

        Raises KafkaError: unknown_member_id, stale_member_epoch, illegal_generation (a classic member).
        """
        if not member_id and epoch < 0:
            return
        member = self.member(member_id or "")
        if epoch != member.epoch:
            raise _stale(epoch, member)

    def tombstones(self) -> ConsumerDecision:
        """Return the tombstones that remove the group, except its offsets."""
        group_id = self.group_id
        decision: ConsumerDecision = [(CurrentAssignmentKey(group_id, member_id), None) for member_id in self.members]
        decision += ((TargetMemberKey(group_id, member_id), None) for member_id in self.members)
        decision.append((TargetAssignmentKey(group_id), None))
        decision += ((MemberKey(group_id, member_id), None) for member_id in self.members)
        decision += ((RegexKey(group_id, regex), None) for regex in self.regexes)
        if self._has_partition_metadata:
            decision.append((PartitionMetadataKey(group_id), None))
        decision.append((ConsumerGroupKey(group_id), None))
        return decision

    def check(self) -> None:
        """Assert every invariant; for tests."""
        owners: dict[TopicIdPartition, str] = {}
        for member in self.members.values():
            assert not member.assigned.keys() & member.revoking.keys(), "assigned and being revoked"
            for one in (*member.assigned, *member.revoking):
                assert one not in owners, f"{one} belongs to {owners[one]} and {member.member_id}"
                owners[one] = member.member_id
            assert member.epoch <= self.assignment_epoch, "no member is ahead of the assignment"
            if member.instance_id is not None:
                assert self.instances[member.instance_id] == member.member_id
            if member.is_reconciled_to(self.assignment_epoch):
                # The target may still contain topics that it has unsubscribed from.
                assert member.assigned.keys() <= self.target.get(member.member_id, NO_PARTITIONS)
        assert owners == self.owners
        assert self.assignment_epoch <= self.epoch
        assert self.target.keys() <= self.members.keys()
        targeted = [one for partitions in self.target.values() for one in partitions]
        assert len(targeted) == len(set(targeted)), "the target assigns a partition twice"
        assert self.regexes.keys() <= {member.regex for member in self.members.values()}

    # Replay

    def replay(self, key: ConsumerKey, value: ConsumerValue | None) -> None:
        """Apply a record of this group."""
        if isinstance(key, MemberKey):
            assert value is None or isinstance(value, MemberSubscription)
            self._replay_subscription(key.member_id, value)
        elif isinstance(key, CurrentAssignmentKey):
            assert value is None or isinstance(value, CurrentAssignment)
            self._replay_current(key.member_id, value)
        elif isinstance(key, TargetMemberKey):
            self.target.pop(key.member_id, None)
            if isinstance(value, TargetAssignment) and value.partitions:
                self.target[key.member_id] = value.partitions
        elif isinstance(key, RegexKey):
            self.regexes.pop(key.regex, None)
            if isinstance(value, ResolvedRegex):
                self.regexes[key.regex] = value
        elif isinstance(value, AssignmentEpoch):
            self.assignment_epoch, self.assigned_at = value
        elif isinstance(value, GroupEpoch):
            self.epoch, self.metadata_hash = value
        elif isinstance(key, PartitionMetadataKey):
            self._has_partition_metadata = value is not None

    def replay_partition_metadata(self) -> None:
        """Note that the log has a partition metadata record of an older Kafka, which must be removed with the group."""
        self._has_partition_metadata = True

    def _replay_subscription(self, member_id: str, value: MemberSubscription | None) -> None:
        old = self.members.get(member_id)
        if old is not None:
            self._subscribed.subtract(old.topics)
            self._subscribed = +self._subscribed
            if old.instance_id is not None and self.instances.get(old.instance_id) == member_id:
                del self.instances[old.instance_id]
        if value is None:
            self._replay_current(member_id, None)
            self.members.pop(member_id, None)
            return
        self.members[member_id] = replace(
            old or ConsumerMember(member_id=member_id),
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            topics=value.topics,
            regex=value.regex,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            assignor=value.assignor,
            classic=value.classic,
        )
        self._subscribed.update(value.topics)
        if value.instance_id is not None:
            self.instances[value.instance_id] = member_id

    def _replay_current(self, member_id: str, value: CurrentAssignment | None) -> None:
        old = self.members.get(member_id)
        if old is not None:
            for one in (*old.assigned, *old.revoking):
                # In a compacted log, the record of the next owner may precede this one.
                if self.owners.get(one) == member_id:
                    del self.owners[one]
        elif value is None:
            return
        if value is None:
            value = CurrentAssignment(LEAVE_EPOCH, LEAVE_EPOCH, MemberState.STABLE, {}, {})
        self.members[member_id] = replace(
            old or ConsumerMember(member_id=member_id),
            epoch=value.epoch,
            previous_epoch=value.previous_epoch,
            state=value.state,
            assigned=value.assigned,
            revoking=value.revoking,
        )
        self.owners.update(dict.fromkeys((*value.assigned, *value.revoking), member_id))

    # Members

    def member(self, member_id: str) -> ConsumerMember:
        """Return the member with this id. Raises KafkaError(unknown_member_id) if the group has none."""
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(
                ErrorCode.unknown_member_id, f"Member {member_id} is not a member of group {self.group_id}."
            )
        return member

    def static_member(self, member_id: str, instance_id: str) -> ConsumerMember:
        """Return the static member if its id matches. Raises KafkaError: unknown_member_id, fenced_instance_id."""
        current = self.instances.get(instance_id)
        if current is None:
            raise KafkaError(ErrorCode.unknown_member_id, f"Instance id {instance_id} is unknown.")
        if current != member_id:
            raise KafkaError(
                ErrorCode.fenced_instance_id,
                f"Static member {member_id} with instance id {instance_id} was fenced by member {current}.",
            )
        return self.members[current]


def _stale(epoch: int, member: ConsumerMember) -> KafkaError:
    if member.classic is not None:
        return KafkaError(
            ErrorCode.illegal_generation,
            f"The received generation id {epoch} does not match the expected member epoch {member.epoch}.",
        )
    return KafkaError(
        ErrorCode.stale_member_epoch,
        f"The received member epoch {epoch} does not match the expected member epoch {member.epoch}.",
    )
