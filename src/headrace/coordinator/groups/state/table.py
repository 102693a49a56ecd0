"""The groups of one shard, of both protocols: route requests to them, and convert between the protocols. Pure."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from headrace.coordinator.groups.classic.group import ClassicGroup
from headrace.coordinator.groups.consumer.group import ConsumerGroup
from headrace.coordinator.groups.consumer.requests import ConsumerHeartbeat, ConsumerHeartbeatResult
from headrace.coordinator.groups.consumer.state import ConsumerGroupState
from headrace.coordinator.groups.effects import (
    Downgraded,
    Effect,
    Happening,
    JoinResult,
    Note,
    Timer,
)
from headrace.coordinator.groups.group import (
    Group,
    GroupType,
    OffsetToCommit,
)
from headrace.coordinator.groups.records.classic import GroupKey, GroupMetadata
from headrace.coordinator.groups.records.codec import WrittenRecords
from headrace.coordinator.groups.records.consumer import (
    ConsumerGroupKey,
    ConsumerKey,
    ConsumerValue,
)
from headrace.coordinator.groups.requests import (
    Join,
    Leaver,
    Sync,
)
from headrace.coordinator.groups.settings import GroupSettings
from headrace.coordinator.groups.state.migration import upgrade
from headrace.coordinator.groups.subscriptions import Topics
from headrace.coordinator.runtime.results import Complete, Result, Then
from headrace.errors import ErrorCode, KafkaError
from headrace.wording import count

A = TypeVar("A")

_FENCING: Final = (ErrorCode.fenced_member_epoch, ErrorCode.fenced_instance_id, ErrorCode.unreleased_instance_id)
_SETTLED: Final[Mapping[str, Happening]] = {
    ConsumerGroupState.STABLE: Happening.STABLE,
    ConsumerGroupState.EMPTY: Happening.EMPTY,
}


class GroupTable:
    """The groups of a shard, by id."""

    def __init__(self, settings: GroupSettings, topics: Topics) -> None:
        self._settings = settings
        self._topics = topics
        self.by_id: dict[str, Group] = {}

    def group(self, group_id: str) -> Group:
        """Return a group. Raises KafkaError(group_id_not_found)."""
        group = self.by_id.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.group_id_not_found, f"Group {group_id} not found.")
        return group

    def classic(self, group_id: str) -> ClassicGroup:
        """Return a classic group. Raises KafkaError(group_id_not_found) if the group is not classic."""
        group = self.group(group_id)
        if not isinstance(group, ClassicGroup):
            raise KafkaError(ErrorCode.group_id_not_found, f"Group {group_id} is not a classic group.")
        return group

    def consumer(self, group_id: str) -> ConsumerGroup:
        """Return a consumer group.

        Raises KafkaError(group_id_not_found) if the group does not use the consumer protocol.
        """
        group = self.group(group_id)
        if not isinstance(group, ConsumerGroup):
            raise KafkaError(ErrorCode.group_id_not_found, f"Group {group_id} is not a consumer group.")
        return group

    def add_classic(self, group_id: str, now_ms: int) -> ClassicGroup:
        """Create an empty classic group."""
        group = self.by_id[group_id] = ClassicGroup(
            group_id,
            max_size=self._settings.group_max_size,
            initial_rebalance_delay_ms=self._settings.group_initial_rebalance_delay_ms,
            now_ms=now_ms,
        )
        return group

    # Requests

    def join(self, group_id: str, request: Join, now_ms: int) -> Result[None]:
        """Handle JoinGroup. Completes `request.reply_to` with a JoinResult, now or later.

        Raises KafkaError(unknown_member_id) for a member of a group that does not exist.
        """
        group = self.by_id.get(group_id)
        if group is None or (group.is_empty and group.type is not GroupType.CLASSIC):
            if request.member_id:
                raise KafkaError(ErrorCode.unknown_member_id)
            # The group is created even if the member is refused.
            empty = GroupMetadata("", 0, None, None, now_ms)
            records = [*self.tombstones(group_id), (GroupKey(group_id), empty)]
            return Result(None, records, [Then(lambda now_ms: self.group(group_id).join(request, now_ms).effects)])
        try:
            return self._watched(group, group.join(request, now_ms))
        except KafkaError as error:
            refused = self._refused(group, error, request.member_id, request.instance_id, "JoinGroup")
            # Kafka's reply omits the member id, too.
            refused.effects.append(Complete(request.reply_to, JoinResult(error=error.code)))
            refused.error = None
            return refused

    def sync(self, group_id: str, request: Sync) -> Result[None]:
        """Handle SyncGroup. Completes `request.reply_to` with a SyncResult now or when the assignment is written.

        Raises KafkaError(unknown_member_id) if the group does not exist.
        """
        return self._existing(group_id).sync(request)

    def heartbeat(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> Result[ErrorCode]:
        group = self._existing(group_id)
        try:
            return self._watched(group, group.heartbeat(member_id, instance_id, generation, now_ms))
        except KafkaError as error:
            return self._refused(group, error, member_id, instance_id, "Heartbeat")

    def leave(self, group_id: str, leavers: Sequence[Leaver], now_ms: int) -> Result[list[ErrorCode]]:
        group = self._existing(group_id)
        return self._watched(group, group.leave(leavers, now_ms))

    def consumer_heartbeat(
        self, group_id: str, request: ConsumerHeartbeat, now_ms: int
    ) -> Result[ConsumerHeartbeatResult]:
        """Like `ConsumerGroup.consumer_heartbeat`. Also raises KafkaError(group_id_not_found)."""
        if request.epoch != 0:
            if request.epoch > 0 and group_id not in self.by_id:
                raise KafkaError(ErrorCode.group_id_not_found, f"Consumer group {group_id} not found.")
            return self._consumer_heartbeat(self.consumer(group_id), request, now_ms)
        existing = self.by_id.get(group_id)
        if existing is not None and existing.type is GroupType.CONSUMER:
            return self._consumer_heartbeat(self.consumer(group_id), request, now_ms)
        new = ConsumerGroup(group_id, self._settings, self._topics)
        if existing is None:
            return self._consumer_heartbeat(new, request, now_ms)
        return self._upgraded(self.classic(group_id), new, request, now_ms)

    def _upgraded(
        self, former: ClassicGroup, new: ConsumerGroup, request: ConsumerHeartbeat, now_ms: int
    ) -> Result[ConsumerHeartbeatResult]:
        conversion: WrittenRecords = former.tombstones()
        if not former.is_empty:
            converted = upgrade(former, self._settings.of(former.group_id), self._topics)
            for key, value in converted:
                new.known.replay(key, value)
            conversion += converted
        result = self._consumer_heartbeat(new, request, now_ms)
        if result.error is not None:
            return result
        result.records[:0] = conversion
        result.effects.append(Then(lambda now_ms: [*former.hand_over(now_ms), *new.loaded(now_ms)]))
        return result

    def _consumer_heartbeat(
        self, group: ConsumerGroup, request: ConsumerHeartbeat, now_ms: int
    ) -> Result[ConsumerHeartbeatResult]:
        try:
            return self._watched(group, group.consumer_heartbeat(request, now_ms))
        except KafkaError as error:
            effects: list[Effect] = []
            if error.code in _FENCING:
                effects.append(
                    Note(
                        what=Happening.FENCED,
                        generation=group.generation,
                        member_id=request.member_id or request.new_member_id,
                        instance_id=request.instance_id,
                        client_id=request.client_id,
                        client_host=request.client_host,
                        reason=error.message or error.code.name,
                    )
                )
            return _refusal(error, effects)

    def check_offset_commit(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        offsets: Sequence[OffsetToCommit],
        *,
        knows_epochs: bool = True,
        transactional: bool = False,
    ) -> Result[None]:
        """Like `Group.check_offset_commit`.

        Also raises KafkaError(group_id_not_found) if the request has a generation, but the group does not exist.
        """
        group = self.by_id.get(group_id)
        if group is None:
            if generation >= 0:
                raise KafkaError(ErrorCode.group_id_not_found, f"Group {group_id} not found.")
            return Result(None)
        try:
            effects = group.check_offset_commit(
                member_id, instance_id, generation, offsets, knows_epochs=knows_epochs, transactional=transactional
            )
        except KafkaError as error:
            return self._refused(group, error, member_id, instance_id, "OffsetCommit")
        return Result(None, effects=effects)

    def tombstones(self, group_id: str) -> WrittenRecords:
        """Return the tombstones that remove the group, except its offsets."""
        group = self.by_id.get(group_id)
        return [] if group is None else group.tombstones()

    # Events

    def timer_fired(self, group_id: str, timer: Timer, now_ms: int) -> Result[None]:
        """Handle the expiry of a timer, unless the group has been removed."""
        group = self.by_id.get(group_id)
        return Result(None) if group is None else self._watched(group, group.timer_fired(timer, now_ms))

    def loaded(self, group: Group, now_ms: int) -> list[Effect]:
        effects = group.loaded(now_ms)
        return effects if group.is_empty else [note_of(group, Happening.LOADED), *effects]

    def downgraded(self, group_id: str, how: Downgraded, now_ms: int) -> list[Effect]:
        return self.classic(group_id).take_over(how.protocols, how.reason, now_ms)

    # Replay

    def replay_classic(self, group_id: str, value: GroupMetadata | None, now_ms: int) -> None:
        """Apply a record of a classic group."""
        if value is not None:
            self.add_classic(group_id, now_ms).restore(value)
        elif self._is(group_id, GroupType.CLASSIC):
            del self.by_id[group_id]

    def replay_consumer(self, key: ConsumerKey, value: ConsumerValue | None) -> None:
        """Apply a record of a group of the consumer protocol."""
        group_id = key.group_id
        if not self._is(group_id, GroupType.CONSUMER):
            if value is None:
                return
            self.by_id[group_id] = ConsumerGroup(group_id, self._settings, self._topics)
        if value is None and isinstance(key, ConsumerGroupKey):
            del self.by_id[group_id]
        else:
            self.consumer(group_id).known.replay(key, value)

    def replay_partition_metadata(self, group_id: str) -> None:
        """Note that the log has a partition metadata record of an older Kafka, which must be removed with the group."""
        if self._is(group_id, GroupType.CONSUMER):
            self.consumer(group_id).known.replay_partition_metadata()

    def _is(self, group_id: str, group_type: GroupType) -> bool:
        group = self.by_id.get(group_id)
        return group is not None and group.type is group_type

    # Steps

    def _existing(self, group_id: str) -> Group:
        group = self.by_id.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.unknown_member_id, f"Group {group_id} not found.")
        return group

    def _watched(self, group: Group, result: Result[A]) -> Result[A]:
        """Add an event if the result moves a group of the consumer protocol to a state in `_SETTLED`."""
        if result.records:
            result.effects.append(Then(partial(self._settled, group.group_id, group.state, group.generation)))
        return result

    def _settled(self, group_id: str, state: str, generation: int, _now_ms: int) -> Sequence[Effect]:
        # Check after replaying the decision, which may create a new group.
        after = self.by_id.get(group_id)
        if (
            after is None
            or after.type is not GroupType.CONSUMER
            or (after.state, after.generation) == (state, generation)
        ):
            return ()
        settled = _SETTLED.get(self.consumer(group_id).state)
        return () if settled is None else (note_of(after, settled),)

    def _refused(
        self, group: Group, error: KafkaError, member_id: str, instance_id: str | None, operation: str
    ) -> Result[Any]:
        effects: list[Effect] = []
        if error.code is ErrorCode.fenced_instance_id:
            effects.append(
                Note(
                    what=Happening.FENCED,
                    generation=group.generation,
                    member_id=member_id,
                    instance_id=instance_id,
                    reason=f"{operation}: {error.message}",
                )
            )
        return _refusal(error, effects)


def note_of(group: Group, what: Happening) -> Note:
    return Note(what=what, generation=group.generation, reason=count(group.size, "member"))


def _refusal(error: KafkaError, effects: list[Effect]) -> Result[Any]:
    return Result(None, effects=effects, error=error)
