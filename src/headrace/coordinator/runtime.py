"""The shell round the group machines: owns the shards, writes their records, runs their timers, answers their members.

Every operation is decide -> append -> replay. One shard per partition of `__consumer_offsets` that this broker leads;
a group belongs to the shard its name hashes to. Nothing here knows the wire or who may do what.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from headrace.coordinator.classic_group import ClassicGroup
from headrace.coordinator.effects import (
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
from headrace.coordinator.loading import load
from headrace.coordinator.offsets import GroupOffsets
from headrace.coordinator.partitioner import partition_for
from headrace.coordinator.records import (
    CommittedOffset,
    GroupKey,
    GroupMetadata,
    OffsetKey,
    encode_group,
    encode_group_key,
    encode_offset,
    encode_offset_key,
)
from headrace.coordinator.requests import Join, Leaver, Sync
from headrace.coordinator.settings import GroupSettings
from headrace.coordinator.shard import Decision, GroupShard, OffsetToCommit
from headrace.coordinator.timers import Timers
from headrace.errors import ErrorCode, KafkaError
from headrace.types import Buffer
from headrace.wire.records import RecordData, build_batch

log = logging.getLogger(__name__)

_LOAD_SLICE_S = 0.005
"""How long loading may keep the event loop from its connections."""

_AS_COORDINATOR_ERROR = {
    ErrorCode.unknown_topic_or_partition: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas_after_append: ErrorCode.coordinator_not_available,
    ErrorCode.request_timed_out: ErrorCode.coordinator_not_available,
    ErrorCode.not_leader_or_follower: ErrorCode.not_coordinator,
    ErrorCode.kafka_storage_error: ErrorCode.not_coordinator,
    ErrorCode.message_too_large: ErrorCode.unknown_server_error,
    ErrorCode.record_list_too_large: ErrorCode.unknown_server_error,
    ErrorCode.invalid_fetch_size: ErrorCode.unknown_server_error,
}
"""What an append's failure means to a member of a group."""


class CoordinatorLog(Protocol):
    """The one partition of `__consumer_offsets` that a shard lives in."""

    def append(self, batch: bytes) -> int:
        """Write one batch, whose offsets begin at 0; the base offset it got. Raises KafkaError."""

    def batches(self) -> Iterator[Buffer]:
        """All that was ever written and is still there, in order, as buffers of whole batches."""


class _Shard:
    """A shard, its log, and whether all of the log is in memory yet."""

    __slots__ = ("is_loaded", "log", "partition", "state", "steps")

    def __init__(self, partition: int, coordinator_log: CoordinatorLog, settings: GroupSettings) -> None:
        self.partition = partition
        self.log = coordinator_log
        self.state = GroupShard(settings)
        self.is_loaded = False
        self.steps = load(self.state, coordinator_log.batches(), _wall_ms, f"__consumer_offsets-{partition}")


class GroupCoordinator:
    """The group coordinator of one broker. Every method but `elected` may raise KafkaError not_coordinator or
    coordinator_load_in_progress for a group whose shard is not here or not read yet.
    """

    def __init__(self, settings: GroupSettings, loop: asyncio.AbstractEventLoop) -> None:
        self.settings = settings
        self.partition_count = settings.offsets_topic_num_partitions
        """Partitions of `__consumer_offsets`: as it was created, whatever the setting says now."""
        self._loop = loop
        self._shards: dict[int, _Shard] = {}
        self._to_load: deque[_Shard] = deque()
        self._timers: Timers[tuple[str, Timer]] = Timers()
        self._timer_handle: asyncio.TimerHandle | None = None
        self._expiry_handle: asyncio.TimerHandle | None = None

    # Leadership

    def elected(self, partition: int, coordinator_log: CoordinatorLog) -> None:
        """This broker leads `partition` of `__consumer_offsets`: read it, then answer for its groups."""
        shard = self._shards[partition] = _Shard(partition, coordinator_log, self.settings)
        self._to_load.append(shard)
        if len(self._to_load) == 1:
            self._load_slice()
        if self._expiry_handle is None:
            self._schedule_expiry()

    def resigned(self, partition: int) -> None:
        """Another broker leads `partition` now: parked requests are told to look for it."""
        shard = self._shards.pop(partition, None)
        if shard is not None:
            for group in shard.state.groups.values():
                self._act(shard, group, group.unload(ErrorCode.not_coordinator, _wall_ms()))

    def close(self) -> None:
        """Answer everything that is parked and stop all timers."""
        for partition in list(self._shards):
            self.resigned(partition)
        for handle in (self._timer_handle, self._expiry_handle):
            if handle is not None:
                handle.cancel()

    def _load_slice(self) -> None:
        deadline = time.monotonic() + _LOAD_SLICE_S
        while self._to_load and time.monotonic() < deadline:
            shard = self._to_load[0]
            try:
                if next(shard.steps, None) is not None:
                    continue
            except KafkaError as error:
                log.error("__consumer_offsets-%d cannot be loaded; its groups stay away: %s", shard.partition, error)
                self._shards.pop(shard.partition, None)
            else:
                self._loaded(shard)
            self._to_load.popleft()
        if self._to_load:
            self._loop.call_soon(self._load_slice)

    def _loaded(self, shard: _Shard) -> None:
        shard.is_loaded = True
        if self._shards.get(shard.partition) is not shard:
            return
        if shard.state.groups:
            log.info("Loaded %d groups from __consumer_offsets-%d", len(shard.state.groups), shard.partition)
        for group in list(shard.state.groups.values()):
            self._act(shard, group, group.loaded(_wall_ms()))

    # Members

    def join(self, group_id: str, request: Join) -> None:
        """Answers `request.reply_to`, a future of a JoinResult, now or when the join phase completes.

        Raises KafkaError: invalid_group_id, invalid_session_timeout.
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
        shard = self._shard(group_id)
        group = shard.state.groups.get(group_id)
        is_new = group is None
        if group is None:
            if request.member_id:
                raise KafkaError(ErrorCode.unknown_member_id)
            group = shard.state.add_group(group_id, _wall_ms())
        if is_new:
            # Whatever becomes of the member, the group exists from now on.
            empty = GroupMetadata("", 0, None, None, group.state_timestamp)
            try:
                self._append(shard, [(GroupKey(group_id), empty)])
            except KafkaError:
                del shard.state.groups[group_id]
                raise
        self._act(shard, group, group.join(request, _wall_ms()))

    def sync(self, group_id: str, request: Sync) -> None:
        """Answers `request.reply_to`, a future of a SyncResult, now or when the assignment is in the log."""
        shard, group = self._joined(group_id)
        self._act(shard, group, group.sync(request))

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """What to answer. Raises KafkaError as `ClassicGroup.heartbeat` does."""
        shard, group = self._joined(group_id)
        self._act(shard, group, group.heartbeat(member_id, instance_id, generation))
        return group.heartbeat_answer

    def leave(self, group_id: str, leavers: Sequence[Leaver]) -> list[ErrorCode]:
        """One error code per leaver."""
        shard, group = self._joined(group_id)
        errors, effects = group.leave(leavers, _wall_ms())
        self._act(shard, group, effects)
        return errors

    # Offsets

    def commit_offsets(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        offsets: Sequence[OffsetToCommit],
    ) -> list[ErrorCode]:
        """One error code per offset; all go into one batch.

        Raises KafkaError: group_id_not_found (a generation of a group that does not exist), and what
        `ClassicGroup.check_offset_commit` raises.
        """
        shard = self._shard(group_id)
        group = shard.state.groups.get(group_id)
        if group is None:
            if generation >= 0:
                raise KafkaError(ErrorCode.group_id_not_found, f"Group {group_id} not found.")
        else:
            member = group.check_offset_commit(member_id, instance_id, generation)
            if member is not None:
                self._act(shard, group, [group.session_timer(member)])
        errors, decision = shard.state.decide_commit(group_id, offsets, _wall_ms())
        self._append_and_replay(shard, decision)
        return errors

    def committed_offsets(self, group_id: str) -> GroupOffsets:
        """Topic to partition to offset; empty for a group that does not exist."""
        return self._shard(group_id).state.offsets.of_group(group_id)

    def is_unstable(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether an open transaction is about to change the offset (KIP-447)."""
        return self._shard(group_id).state.offsets.has_pending(OffsetKey(group_id, topic, partition))

    def delete_offsets(self, group_id: str, partitions: Sequence[tuple[str, int]]) -> list[ErrorCode]:
        """One error code per partition. Raises KafkaError as `GroupShard.decide_delete_offsets` does."""
        if not group_id:
            raise KafkaError(ErrorCode.invalid_group_id, "a group needs a name")
        shard = self._shard(group_id)
        errors, decision = shard.state.decide_delete_offsets(group_id, partitions)
        self._append_and_replay(shard, decision)
        return errors

    def topics_deleted(self, topics: frozenset[str]) -> None:
        """Forget all offsets in these topics; a topic that comes back under the same name starts afresh."""
        for shard in self._active():
            try:
                self._append_and_replay(shard, shard.state.decide_topics_deleted(topics))
            except KafkaError as error:
                log.error("Offsets of deleted topics %s could not be removed: %s", sorted(topics), error)

    # Administration

    def group(self, group_id: str) -> ClassicGroup:
        """The group, to be read only. Raises KafkaError(group_id_not_found)."""
        return self._shard(group_id).state.group(group_id)

    def groups(self) -> Iterator[ClassicGroup]:
        """Every group of this broker."""
        for shard in self._shards.values():
            if not shard.is_loaded:
                raise KafkaError(ErrorCode.coordinator_load_in_progress)
            yield from shard.state.groups.values()

    def delete_group(self, group_id: str) -> None:
        """Raises KafkaError as `GroupShard.decide_delete` does."""
        shard = self._shard(group_id)
        self._append_and_replay(shard, shard.state.decide_delete(group_id))
        log.info("Group %s was deleted", group_id)

    # Shards

    def _shard(self, group_id: str) -> _Shard:
        shard = self._shards.get(partition_for(group_id, self.partition_count))
        if shard is None:
            raise KafkaError(ErrorCode.not_coordinator)
        if not shard.is_loaded:
            raise KafkaError(ErrorCode.coordinator_load_in_progress)
        return shard

    def _joined(self, group_id: str) -> tuple[_Shard, ClassicGroup]:
        if not group_id:
            raise KafkaError(ErrorCode.invalid_group_id, "a group needs a name")
        shard = self._shard(group_id)
        group = shard.state.groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.unknown_member_id, f"Group {group_id} not found.")
        return shard, group

    def _active(self) -> list[_Shard]:
        return [shard for shard in self._shards.values() if shard.is_loaded]

    # Records

    def _append(self, shard: _Shard, decision: Decision) -> int:
        now_ms = _wall_ms()
        batch = build_batch([RecordData(*_encode(key, value), now_ms) for key, value in decision])
        try:
            return shard.log.append(batch)
        except KafkaError as error:
            raise KafkaError(_AS_COORDINATOR_ERROR.get(error.code, error.code), error.message) from error

    def _append_and_replay(self, shard: _Shard, decision: Decision) -> None:
        if not decision:
            return
        offset = self._append(shard, decision)
        now_ms = _wall_ms()
        for key, value in decision:
            if isinstance(value, CommittedOffset):
                value = value._replace(record_offset=offset)
            shard.state.replay(key, value, now_ms=now_ms)
            offset += 1

    # Effects

    def _act(self, shard: _Shard, group: ClassicGroup, effects: list[Effect]) -> None:
        to_do = deque(effects)
        while to_do:
            effect = to_do.popleft()
            if isinstance(effect, ScheduleTimer):
                self._timers.schedule((group.group_id, effect.timer), self._loop.time() + effect.delay_ms / 1000)
                self._arm()
            elif isinstance(effect, CancelTimer):
                self._timers.cancel((group.group_id, effect.timer))
            elif isinstance(effect, CompleteJoin | CompleteSync):
                _answer(effect.reply_to, effect.result)
            elif isinstance(effect, Note):
                _log_note(group.group_id, effect)
            else:
                to_do.extendleft(reversed(self._append_metadata(shard, group, effect)))

    def _append_metadata(self, shard: _Shard, group: ClassicGroup, effect: AppendMetadata) -> list[Effect]:
        error = ErrorCode.none
        try:
            self._append(shard, [(GroupKey(group.group_id), effect.metadata)])
        except KafkaError as failure:
            log.warning("Group %s: its metadata could not be stored: %s", group.group_id, failure)
            error = failure.code
        return group.append_finished(effect.cause, error, _wall_ms())

    # Timers

    def _arm(self) -> None:
        at = self._timers.next_look
        if at is None or (self._timer_handle is not None and self._timer_handle.when() <= at):
            return
        if self._timer_handle is not None:
            self._timer_handle.cancel()
        self._timer_handle = self._loop.call_at(at, self._fire)

    def _fire(self) -> None:
        self._timer_handle = None
        for group_id, timer in self._timers.expired(self._loop.time()):
            shard = self._shards.get(partition_for(group_id, self.partition_count))
            group = shard.state.groups.get(group_id) if shard is not None else None
            if shard is not None and group is not None:
                self._act(shard, group, group.timer_fired(timer, _wall_ms()))
        self._arm()

    def _schedule_expiry(self) -> None:
        seconds = self.settings.offsets_retention_check_interval_ms / 1000
        self._expiry_handle = self._loop.call_later(seconds, self._expire)

    def _expire(self) -> None:
        for shard in self._active():
            decision = shard.state.decide_expiry(_wall_ms())
            if decision:
                log.info("__consumer_offsets-%d: %d offsets and groups expired", shard.partition, len(decision))
            try:
                self._append_and_replay(shard, decision)
            except KafkaError as error:
                log.error("Expired offsets of __consumer_offsets-%d stay for now: %s", shard.partition, error)
        self._schedule_expiry()


def _encode(key: OffsetKey | GroupKey, value: CommittedOffset | GroupMetadata | None) -> tuple[bytes, bytes | None]:
    if isinstance(key, OffsetKey):
        encoded_key = encode_offset_key(*key)
    else:
        encoded_key = encode_group_key(key.group_id)
    if value is None:
        return encoded_key, None
    return encoded_key, encode_offset(value) if isinstance(value, CommittedOffset) else encode_group(value)


def _answer(future: Any, result: JoinResult | SyncResult) -> None:
    if not future.done():
        future.set_result(result)


def _log_note(group_id: str, note: Note) -> None:
    reason = f": {note.reason}" if note.reason else ""
    if not note.member_id:
        level = logging.WARNING if note.what is Happening.STALLED else logging.INFO
        log.log(level, "Group %s generation %d %s%s", group_id, note.generation, note.what, reason)
        return
    instance = "" if note.instance_id is None else f", instance {note.instance_id}"
    log.info(
        "Group %s generation %d: member %s (client id %s, host %s%s) %s%s",
        group_id,
        note.generation,
        note.member_id,
        note.client_id,
        note.client_host,
        instance,
        note.what,
        reason,
    )


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
