"""The group coordinator of one broker: passes requests of members and administrators to its shards.

The hash of a group id determines its shard, a partition of `__consumer_offsets`. The shard's pure state decides every
request, and the runtime executes the decision. Independent of the wire protocol and of authorization.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

from headrace.clock import SYSTEM, Clock
from headrace.coordinator.groups.classic.group import ClassicGroup
from headrace.coordinator.groups.consumer.group import ConsumerGroup
from headrace.coordinator.groups.consumer.requests import ConsumerHeartbeat, ConsumerHeartbeatResult
from headrace.coordinator.groups.effects import Downgraded, Note
from headrace.coordinator.groups.group import Group, OffsetToCommit
from headrace.coordinator.groups.records.offsets import OffsetKey
from headrace.coordinator.groups.requests import (
    Join,
    Leaver,
    Sync,
)
from headrace.coordinator.groups.settings import GroupSettings
from headrace.coordinator.groups.state.offsets import GroupOffsets
from headrace.coordinator.groups.state.shard import GroupShard
from headrace.coordinator.groups.subscriptions import Topics
from headrace.coordinator.offset_expiry import OffsetExpiry
from headrace.coordinator.rebalance_log import RebalanceLog
from headrace.coordinator.runtime.runtime import Runtime
from headrace.coordinator.runtime.shards import CoordinatorLog, LedShard
from headrace.errors import ErrorCode, KafkaError
from headrace.slices import Steps, chunks
from headrace.wire.batch import TRANSACTIONAL_FLAG
from headrace.wire.compression import Codec
from headrace.wire.records import RecordData, build_batch
from headrace.wording import listed

log = logging.getLogger(__name__)

OFFSETS_TOPIC: Final = "__consumer_offsets"
_OFFSETS_AT_ONCE: Final = 500
"""Offsets of deleted topics to remove without a pause."""

NoteObserver: TypeAlias = Callable[[str, Note, int], None]
"""Called with the group id, the event and its time (ms) for every event of a group; must not block."""


def _ignore(group_id: str, note: Note, now_ms: int) -> None:
    """Do nothing: no observer keeps a timeline."""


class GroupCoordinator:
    """Passes requests about groups to the shards that this broker leads, and executes their decisions.

    Methods for requests may raise KafkaError: invalid_group_id (an empty id), not_coordinator,
    coordinator_load_in_progress. Those that write also raise the errors of an append.
    """

    def __init__(
        self,
        settings: GroupSettings,
        loop: asyncio.AbstractEventLoop,
        topics: Topics,
        observe: NoteObserver = _ignore,
        clock: Clock = SYSTEM,
    ) -> None:
        self.settings = settings
        self._clock = clock
        self._loop = loop
        self._observe = observe
        self._rebalance_log = RebalanceLog()
        self._runtime = Runtime(
            OFFSETS_TOPIC,
            settings.offsets_topic_num_partitions,
            lambda: GroupShard(settings, topics),
            codec=Codec(settings.offsets_topic_compression_codec),
            loop=loop,
            clock=clock,
            perform=self._perform,
        )
        self._shards = self._runtime.shards
        self._expiry = OffsetExpiry(settings, loop, self._shards, clock)

    # Leadership

    def note_partition_count(self, count: int) -> None:
        """Set the actual number of partitions of `__consumer_offsets`."""
        self._shards.partition_count = count

    def elected(self, partition: int, coordinator_log: CoordinatorLog) -> None:
        """Load a partition of `__consumer_offsets`, then serve its groups."""
        self._runtime.elected(partition, coordinator_log)
        self._expiry.start()

    def resigned(self, partition: int) -> None:
        """Drop a partition that this broker no longer leads, and answer parked requests with NOT_COORDINATOR."""
        shard = self._runtime.resigned(partition)
        self._expiry.forget(partition)
        if shard is not None:
            for group_id in shard.state.groups:
                self._rebalance_log.forget(group_id)

    def close(self) -> None:
        """Answer parked requests and stop all timers."""
        self._runtime.close()
        self._expiry.stop()

    # Members

    def join(self, group_id: str, request: Join) -> None:
        """Like `GroupTable.join`. Also raises KafkaError(invalid_session_timeout)."""
        self._check_join(group_id, request)
        shard = self._shards.of(group_id)
        self._runtime.carry_out(shard, group_id, shard.state.table.join(group_id, request, self._clock.wall_ms()))

    def sync(self, group_id: str, request: Sync) -> None:
        shard = self._shard(group_id)
        self._runtime.carry_out(shard, group_id, shard.state.table.sync(group_id, request))

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """Like `Group.heartbeat`."""
        shard = self._shard(group_id)
        now_ms = self._clock.wall_ms()
        result = shard.state.table.heartbeat(group_id, member_id, instance_id, generation, now_ms)
        return self._runtime.carry_out(shard, group_id, result)

    def leave(self, group_id: str, leavers: Sequence[Leaver]) -> list[ErrorCode]:
        shard = self._shard(group_id)
        result = shard.state.table.leave(group_id, leavers, self._clock.wall_ms())
        return self._runtime.carry_out(shard, group_id, result)

    def consumer_heartbeat(self, group_id: str, request: ConsumerHeartbeat) -> ConsumerHeartbeatResult:
        """Like `ConsumerHeartbeat.check` and `GroupTable.consumer_heartbeat`."""
        request.check(group_id, self.settings.group_consumer_assignors)
        shard = self._shards.of(group_id)
        result = shard.state.table.consumer_heartbeat(group_id, request, self._clock.wall_ms())
        return self._runtime.carry_out(shard, group_id, result)

    def _check_join(self, group_id: str, request: Join) -> None:
        if not group_id:
            raise KafkaError(ErrorCode.invalid_group_id, "The group id must not be empty.")
        settings = self.settings
        shortest, longest = settings.group_min_session_timeout_ms, settings.group_max_session_timeout_ms
        if not shortest <= request.session_timeout_ms <= longest:
            raise KafkaError(
                ErrorCode.invalid_session_timeout,
                f"session.timeout.ms {request.session_timeout_ms} is not between {shortest} and {longest}"
                " (group.min.session.timeout.ms and group.max.session.timeout.ms of the broker)",
            )

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
        """Commit offsets in one batch, and return an error code per offset. `knows_epochs`: the version of OffsetCommit
        supports the consumer protocol. Raises KafkaError as `GroupTable.check_offset_commit` does.
        """
        shard = self._shards.of(group_id)
        checked = shard.state.table.check_offset_commit(
            group_id, member_id, instance_id, generation, offsets, knows_epochs=knows_epochs
        )
        # Reset the session timer even if the commit cannot be written.
        self._runtime.carry_out(shard, group_id, checked)
        return self._runtime.carry_out(shard, group_id, shard.state.commit(group_id, offsets))

    def commit_transactional(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        offsets: Sequence[OffsetToCommit],
        *,
        producer: tuple[int, int],
        append: Callable[[bytes, int], int],
    ) -> list[ErrorCode]:
        """Commit within the transaction of `producer`, an id and epoch. Return an error code per offset.

        `append` writes the batch and returns its base offset. The offsets become visible with the commit marker.
        Raises KafkaError as `commit_offsets` and `append` do.
        """
        shard = self._shards.of(group_id)
        checked = shard.state.table.check_offset_commit(
            group_id, member_id, instance_id, generation, offsets, transactional=True
        )
        self._runtime.carry_out(shard, group_id, checked)
        result = shard.state.commit(group_id, offsets)
        now_ms = self._clock.wall_ms()
        encoded = [shard.state.encode(key, value) for key, value in result.records]
        if encoded:
            producer_id, producer_epoch = producer
            batch = build_batch(
                [RecordData(key, value, now_ms) for key, value in encoded],
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                attributes=TRANSACTIONAL_FLAG,
            )
            base_offset = append(batch, now_ms)
            for delta, (key, value) in enumerate(encoded):
                shard.state.replay_bytes(key, value, base_offset + delta, now_ms=now_ms, producer_id=producer_id)
        return result.answer

    def transaction_ended(self, partition: int, producer_id: int, committed: bool) -> None:
        """Apply a marker that has been appended to `partition` of `__consumer_offsets`."""
        self._shards.end_transaction(partition, producer_id, committed=committed)

    def committed_offsets(self, group_id: str) -> GroupOffsets:
        """Return committed offsets by topic and partition; empty for an unknown group."""
        return self._shards.of(group_id).state.offsets.of_group(group_id)

    def check_offset_fetch(self, group_id: str, member_id: str | None, epoch: int) -> None:
        """Like `Group.check_offset_fetch`; an unknown group passes."""
        group = self._shards.of(group_id).state.groups.get(group_id)
        if group is not None:
            group.check_offset_fetch(member_id, epoch)

    def is_unstable(self, group_id: str, topic: str, partition: int) -> bool:
        """Return True if an open transaction may change the offset (KIP-447)."""
        return self._shards.of(group_id).state.offsets.has_pending(OffsetKey(group_id, topic, partition))

    def delete_offsets(self, group_id: str, partitions: Sequence[tuple[str, int]]) -> list[ErrorCode]:
        """Like `GroupShard.delete_offsets`."""
        shard = self._shard(group_id)
        return self._runtime.carry_out(shard, group_id, shard.state.delete_offsets(group_id, partitions))

    def topics_deleted(self, topics: frozenset[str]) -> Steps[None]:
        """Remove all offsets of these topics, so that new topics with these names have no committed offsets."""
        for shard in self._shards.loaded():
            for group_id in shard.state.offsets.group_ids():
                if not self._shards.leads(shard):
                    log.warning(
                        "%s moved to another broker before all offsets of the deleted topics (%s) were removed. New"
                        " topics with these names may inherit them: run `headrace groups delete-offsets GROUP TOPIC`",
                        shard.name,
                        listed(sorted(topics), len(topics)),
                    )
                    break
                for decision in chunks(shard.state.decide_topics_deleted(topics, group_id), _OFFSETS_AT_ONCE):
                    try:
                        self._shards.append_and_replay(shard, decision)
                    except KafkaError as error:
                        log.error(
                            "Cannot delete the offsets of group %s for deleted topics (%s): %s. New topics with these"
                            " names would inherit the offsets: run `headrace groups delete-offsets GROUP TOPIC`",
                            group_id,
                            ", ".join(sorted({key.topic for key, _ in decision if isinstance(key, OffsetKey)})),
                            error,
                        )
                    yield
                yield

    # Administration

    def group(self, group_id: str) -> Group:
        """Return the group, which callers must not change. Raises KafkaError(group_id_not_found)."""
        return self._shards.of(group_id).state.table.group(group_id)

    def classic_group(self, group_id: str) -> ClassicGroup:
        """Like `group`. Raises KafkaError(group_id_not_found) if the group is not classic."""
        return self._shards.of(group_id).state.table.classic(group_id)

    def consumer_group(self, group_id: str) -> ConsumerGroup:
        """Like `group`. Raises KafkaError(group_id_not_found) if the group does not use the consumer protocol."""
        return self._shards.of(group_id).state.table.consumer(group_id)

    def groups(self) -> Iterator[Group]:
        """Yield every group of this broker. Raises KafkaError(coordinator_load_in_progress)."""
        for shard in self._shards.all():
            yield from shard.state.groups.values()

    def groups_with_offsets(self) -> list[tuple[Group, GroupOffsets]]:
        """Return the loaded groups with their committed offsets, which callers must not change."""
        return [
            (group, shard.state.offsets.of_group(group.group_id))
            for shard in self._shards.loaded()
            for group in shard.state.groups.values()
        ]

    def delete_group(self, group_id: str) -> None:
        shard = self._shards.of(group_id)
        self._runtime.carry_out(shard, group_id, shard.state.delete(group_id))

    def expiring_offsets(self) -> dict[str, int]:
        """Like `OffsetExpiry.expiring`."""
        return self._expiry.expiring()

    def _shard(self, group_id: str) -> LedShard[GroupShard]:
        if not group_id:
            raise KafkaError(ErrorCode.invalid_group_id, "The group id must not be empty.")
        return self._shards.of(group_id)

    # Effects

    def _perform(self, shard: LedShard[GroupShard], group_id: str, effect: Note | Downgraded, now_ms: int) -> None:
        if isinstance(effect, Downgraded):
            self._runtime.act(shard, group_id, shard.state.table.downgraded(group_id, effect, now_ms))
            return
        group = shard.state.groups.get(group_id)
        self._rebalance_log.note(group_id, effect, 0 if group is None else group.size, self._loop.time())
        self._observe(group_id, effect, now_ms)
