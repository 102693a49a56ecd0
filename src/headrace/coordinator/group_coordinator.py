"""The shell round the group machines: owns the shards, writes their records, runs their timers, answers their members.

Every operation is decide -> append -> replay. One shard per partition of `__consumer_offsets` that this broker leads;
a group belongs to the shard its name hashes to. Nothing here knows the wire or who may do what.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeAlias

from headrace.clock import SYSTEM, Clock
from headrace.coordinator.groups.classic.group import ClassicGroup
from headrace.coordinator.groups.classic.requests import Join, Leaver, Sync
from headrace.coordinator.groups.consumer.decision import Outcome
from headrace.coordinator.groups.consumer.group import ConsumerGroup
from headrace.coordinator.groups.consumer.member import TopicIdPartition
from headrace.coordinator.groups.consumer.requests import ConsumerHeartbeat, ConsumerHeartbeatResult
from headrace.coordinator.groups.consumer.state import ConsumerGroupState
from headrace.coordinator.groups.effects import (
    AppendMetadata,
    CancelTimer,
    CompleteJoin,
    CompleteSync,
    Effect,
    Happening,
    JoinResult,
    Note,
    ScheduleTimer,
    SyncResult,
    Timer,
)
from headrace.coordinator.groups.mixed_group import MixedGroup
from headrace.coordinator.groups.offsets import GroupOffsets
from headrace.coordinator.groups.records import GroupKey, GroupMetadata, OffsetKey
from headrace.coordinator.groups.settings import GroupSettings
from headrace.coordinator.groups.shard import Change, Group, GroupShard, OffsetToCommit
from headrace.coordinator.groups.subscriptions import Topics
from headrace.coordinator.offset_expiry import OffsetExpiry
from headrace.coordinator.rebalance_log import RebalanceLog
from headrace.coordinator.runtime.shards import CoordinatorLog, LedShard, Shards
from headrace.coordinator.runtime.timers import Timers
from headrace.errors import ErrorCode, KafkaError
from headrace.slices import Steps, chunks
from headrace.wire.compression import Codec
from headrace.wording import count

log = logging.getLogger(__name__)

_FENCING = (ErrorCode.fenced_member_epoch, ErrorCode.fenced_instance_id, ErrorCode.unreleased_instance_id)
_SETTLED = {ConsumerGroupState.STABLE: Happening.STABLE, ConsumerGroupState.EMPTY: Happening.EMPTY}
OFFSETS_TOPIC: Final = "__consumer_offsets"
_OFFSETS_AT_ONCE: Final = 500
"""Offsets in deleted topics that are removed before others may have a turn."""
_RETRY_S: Final = 1.0
"""When a timer whose consequence could not be written is tried again."""


NoteObserver: TypeAlias = Callable[[str, Note, int], None]
"""Told of everything that happens to a group: its name, what, and when (ms); returns at once."""


def _nobody(group_id: str, note: Note, now_ms: int) -> None:
    """Where nobody keeps a timeline."""


class GroupCoordinator:
    """The group coordinator of one broker. Every method but `elected` may raise KafkaError not_coordinator or
    coordinator_load_in_progress for a group whose shard is not here or not read yet.
    """

    def __init__(
        self,
        settings: GroupSettings,
        loop: asyncio.AbstractEventLoop,
        topics: Topics,
        observe: NoteObserver = _nobody,
        clock: Clock = SYSTEM,
    ) -> None:
        self.settings = settings
        self._clock = clock
        self._observe = observe
        self._rebalance_log = RebalanceLog()
        self._topics = topics
        self._loop = loop
        self._shards = Shards(
            OFFSETS_TOPIC,
            settings.offsets_topic_num_partitions,
            lambda: GroupShard(settings),
            codec=Codec(settings.offsets_topic_compression_codec),
            loop=loop,
            clock=clock,
            on_loaded=self._loaded,
        )
        self._timers: Timers[tuple[str, Timer]] = Timers()
        self._timer_handle: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._expiry = OffsetExpiry(settings, loop, self._shards, clock)

    # Leadership

    def elected(self, partition: int, coordinator_log: CoordinatorLog) -> None:
        """This broker leads `partition` of `__consumer_offsets`: read it, then answer for its groups."""
        self._shards.lead(partition, coordinator_log)
        self._expiry.start()

    def resigned(self, partition: int) -> None:
        """Another broker leads `partition` now: parked requests are told to look for it."""
        shard = self._shards.drop(partition)
        self._expiry.forget(partition)
        if shard is not None:
            for group in shard.state.groups.values():
                self._rebalance_log.forget(group.group_id)
                if isinstance(group, ClassicGroup):
                    self._act(shard, group, group.unload(ErrorCode.not_coordinator, self._clock.wall_ms()))

    def close(self) -> None:
        """Answer everything that is parked and stop all timers."""
        for partition in self._shards.partitions():
            self.resigned(partition)
        self._expiry.stop()
        if self._timer_handle is not None:
            self._timer_handle.cancel()

    def _loaded(self, shard: LedShard[GroupShard]) -> None:
        for group in list(shard.state.groups.values()):
            effects = group.loaded(self._clock.wall_ms()) if isinstance(group, ClassicGroup) else group.loaded()
            if not group.is_empty:
                self._rebalance_log.loaded(group.group_id, _size(group))
                self._observe(group.group_id, _group_note(group, Happening.LOADED), self._clock.wall_ms())
            self._act(shard, group, effects)

    # Members

    def join(self, group_id: str, request: Join) -> None:
        """Answers `request.reply_to`, a future of a JoinResult, now or when the join phase completes.

        Raises KafkaError: invalid_group_id, invalid_session_timeout, and what MixedGroup.join does.
        """
        if not group_id:
            raise KafkaError(ErrorCode.invalid_group_id, "a group needs a name")
        settings = self.settings
        shortest, longest = settings.group_min_session_timeout_ms, settings.group_max_session_timeout_ms
        if not shortest <= request.session_timeout_ms <= longest:
            raise KafkaError(
                ErrorCode.invalid_session_timeout,
                f"session.timeout.ms {request.session_timeout_ms} is not between {shortest} and {longest}"
                " (group.min.session.timeout.ms and group.max.session.timeout.ms of the broker)",
            )
        shard = self._shards.of(group_id)
        group = shard.state.groups.get(group_id)
        if isinstance(group, MixedGroup) and not group.is_empty:
            try:
                outcome = group.join(request, self._topics, self._clock.wall_ms())
            except KafkaError as error:
                self._note_if_fenced(group, request.member_id, request.instance_id, error, "JoinGroup")
                # As Kafka answers, without the member's id.
                _answer(request.reply_to, JoinResult(error=error.code))
            else:
                self._carry_out(shard, group, outcome)
            return
        if not isinstance(group, ClassicGroup):
            if request.member_id:
                raise KafkaError(ErrorCode.unknown_member_id)
            # Whatever becomes of the member, the group exists from now on.
            empty = GroupMetadata("", 0, None, None, self._clock.wall_ms())
            decision = [*shard.state.decide_removal(group_id), (GroupKey(group_id), empty)]
            self._shards.append_and_replay(shard, decision)
            group = shard.state.classic_group(group_id)
        self._act(shard, group, group.join(request, self._clock.wall_ms()))

    def sync(self, group_id: str, request: Sync) -> None:
        """Answers `request.reply_to`, a future of a SyncResult, now or when the assignment is in the log."""
        shard, group = self._joined(group_id)
        if isinstance(group, MixedGroup):
            self._act(shard, group, group.sync(request, self._topics))
        else:
            self._act(shard, group, group.sync(request))

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """What to answer. Raises KafkaError as `ClassicGroup.heartbeat` does."""
        shard, group = self._joined(group_id)
        try:
            if isinstance(group, MixedGroup):
                answer, outcome = group.classic_heartbeat(
                    member_id, instance_id, generation, self._topics, self._clock.wall_ms()
                )
                self._carry_out(shard, group, outcome)
                return answer
            effects = group.heartbeat(member_id, instance_id, generation)
        except KafkaError as error:
            self._note_if_fenced(group, member_id, instance_id, error, "Heartbeat")
            raise
        self._act(shard, group, effects)
        return group.heartbeat_answer

    def leave(self, group_id: str, leavers: Sequence[Leaver]) -> list[ErrorCode]:
        """One error code per leaver."""
        shard, group = self._joined(group_id)
        if isinstance(group, MixedGroup):
            errors, outcome = group.leave(leavers, self._topics, self._clock.wall_ms())
            self._carry_out(shard, group, outcome)
        else:
            errors, effects = group.leave(leavers, self._clock.wall_ms())
            self._act(shard, group, effects)
        return errors

    # Members of the consumer protocol

    def consumer_heartbeat(self, group_id: str, request: ConsumerHeartbeat) -> ConsumerHeartbeatResult:
        """Raises KafkaError: group_id_not_found, and what ConsumerHeartbeat.check and ConsumerGroup.heartbeat do."""
        request.check(group_id, self.settings.group_consumer_assignors)
        shard = self._shards.of(group_id)
        existing = shard.state.groups.get(group_id)
        if not isinstance(existing, ConsumerGroup) and request.epoch != 0:
            if existing is None:
                raise KafkaError(
                    ErrorCode.group_id_not_found,
                    f"{'Consumer group' if request.epoch > 0 else 'Group'} {group_id} not found.",
                )
            raise KafkaError(ErrorCode.group_id_not_found, f"Group {group_id} is not a consumer group.")
        group, conversion = shard.state.consumer_group(group_id, self._topics)
        try:
            outcome = group.heartbeat(request, self._topics, self._clock.wall_ms())
        except KafkaError as error:
            if error.code in _FENCING:
                fenced = Note(
                    what=Happening.FENCED,
                    generation=group.epoch,
                    member_id=request.member_id or request.new_member_id,
                    instance_id=request.instance_id,
                    client_id=request.client_id,
                    client_host=request.client_host,
                    reason=error.message or error.code.name,
                )
                self._note(group, fenced, self._clock.wall_ms())
            raise
        self._carry_out(shard, group, outcome, conversion)
        if isinstance(existing, ClassicGroup):
            self._act(shard, existing, existing.hand_over(self._clock.wall_ms()))
            self._act(shard, group, group.loaded())
        assert outcome.result is not None
        return outcome.result

    def _carry_out(
        self, shard: LedShard[GroupShard], group: MixedGroup, outcome: Outcome, conversion: Sequence[Change] = ()
    ) -> None:
        """`conversion` is of the classic group that the group takes the place of."""
        before = (group.state, group.epoch) if outcome.decision else None
        try:
            changes: list[Change] = [*conversion, *outcome.decision]
            if outcome.downgrade is not None:
                changes.append((GroupKey(group.group_id), outcome.downgrade.metadata))
            self._shards.append_and_replay(shard, changes)
        except KafkaError:
            group.append_failed()
            raise
        self._act(shard, group, outcome.effects)
        if outcome.downgrade is not None:
            classic = shard.state.classic_group(group.group_id)
            downgrade = outcome.downgrade
            self._act(shard, classic, classic.take_over(downgrade.protocols, downgrade.reason, self._clock.wall_ms()))
        # Whether the group has settled shows only once the decision has been replayed, which makes a new group.
        after = shard.state.groups.get(group.group_id)
        if before is not None and isinstance(after, MixedGroup) and (after.state, after.epoch) != before:
            settled = _SETTLED.get(after.state)
            if settled is not None:
                self._note(after, _group_note(after, settled), self._clock.wall_ms())

    # Offsets

    def commit_offsets(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        offsets: Sequence[OffsetToCommit],
        *,
        knows_epochs: bool = True,
    ) -> list[ErrorCode]:
        """One error code per offset; all go into one batch. Members of the consumer protocol must use a version of
        OffsetCommit that `knows_epochs`.

        Raises KafkaError: group_id_not_found (a generation of a group that does not exist), unsupported_version, and
        what `check_offset_commit` of the group raises.
        """
        shard = self._shards.of(group_id)
        group = shard.state.groups.get(group_id)
        if group is None:
            if generation >= 0:
                raise KafkaError(ErrorCode.group_id_not_found, f"Group {group_id} not found.")
        elif isinstance(group, ConsumerGroup):
            partitions = frozenset(TopicIdPartition(value.topic_id, index) for _, index, value in offsets)
            group.check_offset_commit(member_id, generation, partitions, knows_epochs=knows_epochs)
        else:
            try:
                member = group.check_offset_commit(member_id, instance_id, generation)
            except KafkaError as error:
                self._note_if_fenced(group, member_id, instance_id, error, "OffsetCommit")
                raise
            if member is not None:
                self._schedule(group, group.session_timer(member))
        errors, decision = shard.state.decide_commit(group_id, offsets)
        self._shards.append_and_replay(shard, decision)
        return errors

    def transaction_ended(self, partition: int, producer_id: int, committed: bool) -> None:
        """A marker has been appended to `partition` of `__consumer_offsets`."""
        self._shards.end_transaction(partition, producer_id, committed=committed)

    def committed_offsets(self, group_id: str) -> GroupOffsets:
        """Topic to partition to offset; empty for a group that does not exist."""
        return self._shards.of(group_id).state.offsets.of_group(group_id)

    def check_offset_fetch(self, group_id: str, member_id: str | None, epoch: int) -> None:
        """Whether the member, where one is named, may ask. Raises KafkaError as `ConsumerGroup.check_offset_fetch`."""
        group = self._shards.of(group_id).state.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            group.check_offset_fetch(member_id, epoch)

    def is_unstable(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether an open transaction is about to change the offset (KIP-447)."""
        return self._shards.of(group_id).state.offsets.has_pending(OffsetKey(group_id, topic, partition))

    def delete_offsets(self, group_id: str, partitions: Sequence[tuple[str, int]]) -> list[ErrorCode]:
        """One error code per partition. Raises KafkaError as `GroupShard.decide_delete_offsets` does."""
        if not group_id:
            raise KafkaError(ErrorCode.invalid_group_id, "a group needs a name")
        shard = self._shards.of(group_id)
        errors, decision = shard.state.decide_delete_offsets(group_id, partitions)
        self._shards.append_and_replay(shard, decision)
        return errors

    def topics_deleted(self, topics: frozenset[str]) -> Steps[None]:
        """Forget all offsets in these topics; a topic that comes back under the same name starts afresh."""
        for shard in self._shards.loaded():
            for group_id in shard.state.offsets.group_ids():
                for decision in chunks(shard.state.decide_topics_deleted(topics, group_id), _OFFSETS_AT_ONCE):
                    try:
                        self._shards.append_and_replay(shard, decision)
                    except KafkaError as error:
                        log.error("Offsets of %d deleted topics could not be removed: %s", len(topics), error)
                    yield
                yield

    # Administration

    def group(self, group_id: str) -> Group:
        """The group, to be read only. Raises KafkaError(group_id_not_found)."""
        return self._shards.of(group_id).state.group(group_id)

    def classic_group(self, group_id: str) -> ClassicGroup:
        """The group, to be read only. Raises KafkaError(group_id_not_found) for any that is not classic."""
        return self._shards.of(group_id).state.classic_group(group_id)

    def groups(self) -> Iterator[Group]:
        """Every group of this broker."""
        for shard in self._shards.all():
            yield from shard.state.groups.values()

    def groups_with_offsets(self) -> list[tuple[Group, GroupOffsets]]:
        """Every group that has been read so far, with what it has committed; to be read only."""
        return [
            (group, shard.state.offsets.of_group(group.group_id))
            for shard in self._shards.loaded()
            for group in shard.state.groups.values()
        ]

    def delete_group(self, group_id: str) -> None:
        """Raises KafkaError as `GroupShard.decide_delete` does."""
        shard = self._shards.of(group_id)
        decision = shard.state.decide_delete(group_id)
        group = shard.state.group(group_id)
        self._shards.append_and_replay(shard, decision)
        self._note(group, _group_note(group, Happening.DELETED), self._clock.wall_ms())

    def _joined(self, group_id: str) -> tuple[LedShard[GroupShard], Group]:
        if not group_id:
            raise KafkaError(ErrorCode.invalid_group_id, "a group needs a name")
        shard = self._shards.of(group_id)
        group = shard.state.groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.unknown_member_id, f"Group {group_id} not found.")
        return shard, group

    def expiring_offsets(self) -> dict[str, int]:
        """As `OffsetExpiry.expiring`."""
        return self._expiry.expiring()

    # Effects

    def _act(self, shard: LedShard[GroupShard], group: Group, effects: list[Effect]) -> None:
        to_do = deque(effects)
        now_ms, moment = self._clock.wall_ms(), self._loop.time()
        while to_do:
            effect = to_do.popleft()
            if isinstance(effect, ScheduleTimer):
                self._schedule(group, effect)
            elif isinstance(effect, CancelTimer):
                self._timers.cancel((group.group_id, effect.timer))
            elif isinstance(effect, CompleteJoin | CompleteSync):
                _answer(effect.reply_to, effect.result)
            elif isinstance(effect, Note):
                self._note(group, effect, now_ms, moment)
            elif isinstance(group, ClassicGroup):
                to_do.extendleft(reversed(self._append_metadata(shard, group, effect)))

    def _note(self, group: Group, note: Note, now_ms: int, moment: float | None = None) -> None:
        self._rebalance_log.note(group.group_id, note, _size(group), self._loop.time() if moment is None else moment)
        self._observe(group.group_id, note, now_ms)

    def _note_if_fenced(
        self, group: Group, member_id: str, instance_id: str | None, error: KafkaError, operation: str
    ) -> None:
        if error.code is ErrorCode.fenced_instance_id:
            fenced = Note(
                what=Happening.FENCED,
                generation=_generation_of(group),
                member_id=member_id,
                instance_id=instance_id,
                reason=f"{operation}: {error.message}",
            )
            self._note(group, fenced, self._clock.wall_ms())

    def _append_metadata(
        self, shard: LedShard[GroupShard], group: ClassicGroup, effect: AppendMetadata
    ) -> list[Effect]:
        error = ErrorCode.none
        try:
            self._shards.append(shard, [(GroupKey(group.group_id), effect.metadata)], self._clock.wall_ms())
        except KafkaError as failure:
            log.warning("Group %s: its metadata could not be stored: %s", group.group_id, failure)
            error = failure.code
        return group.append_finished(effect.cause, error, self._clock.wall_ms())

    # Timers

    def _schedule(self, group: Group, effect: ScheduleTimer) -> None:
        key = group.group_id, effect.timer
        if effect.may_run_already and key in self._timers:
            return
        if self._timers.schedule(key, self._loop.time() + max(effect.delay_ms, 0) / 1000):
            self._arm()

    def _arm(self) -> None:
        at = self._timers.next_look
        if at is None or (self._timer_handle is not None and self._timer_at <= at):
            return
        if self._timer_handle is not None:
            self._timer_handle.cancel()
        self._timer_at = at
        self._timer_handle = self._loop.call_at(at, self._fire)

    def _fire(self) -> None:
        self._timer_handle = None
        for group_id, timer in self._timers.expired(self._loop.time()):
            try:
                shard = self._shards.of(group_id)
                group = shard.state.group(group_id)
            except KafkaError:
                continue  # the group was deleted or has moved since
            try:
                if isinstance(group, ClassicGroup):
                    self._act(shard, group, group.timer_fired(timer, self._clock.wall_ms()))
                else:
                    self._carry_out(shard, group, group.timer_fired(timer, self._topics, self._clock.wall_ms()))
            except KafkaError as error:
                log.warning("Group %s: its %s timer is tried again: %s", group_id, timer.kind, error)
                self._timers.schedule((group_id, timer), self._loop.time() + _RETRY_S)
            except Exception:
                log.exception("Group %s: its %s timer failed", group_id, timer.kind)
        self._arm()


def _group_note(group: Group, what: Happening) -> Note:
    return Note(what=what, generation=_generation_of(group), reason=count(_size(group), "member"))


def _size(group: Group) -> int:
    return len(group.members if isinstance(group, ConsumerGroup) else group.membership)


def _generation_of(group: Group) -> int:
    return group.epoch if isinstance(group, ConsumerGroup) else group.generation


def _answer(future: Any, result: JoinResult | SyncResult) -> None:
    if not future.done():
        future.set_result(result)
