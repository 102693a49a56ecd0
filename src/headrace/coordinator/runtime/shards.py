"""The shards that this broker leads: reading them from the log, and writing to it what they decide.

Every write is decide -> append -> replay. A group belongs to the shard its name hashes to; a shard answers for its
groups once all of its partition of `__consumer_offsets` is in memory.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import starmap
from typing import Protocol

from headrace.coordinator.groups.records import encode
from headrace.coordinator.groups.settings import GroupSettings
from headrace.coordinator.groups.shard import Change, GroupShard
from headrace.coordinator.runtime.loading import load
from headrace.coordinator.runtime.partitioner import partition_for
from headrace.errors import ErrorCode, KafkaError
from headrace.types import Buffer
from headrace.wire.compression import Codec
from headrace.wire.records import plain_batch
from headrace.wording import count

log = logging.getLogger(__name__)

_LOAD_SLICE_S = 0.005
"""How long loading may keep the event loop from its connections."""

_RECORDS_PER_BATCH = 5000
"""A commit is one batch; what is removed from a large group or with a topic may take several."""

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

    def append(self, batch: bytes, now_ms: int) -> int:
        """Write one batch, whose offsets begin at 0; the base offset it got. Raises KafkaError."""

    def batches(self) -> Iterator[Buffer]:
        """All that was ever written and is still there, in order, as buffers of whole batches."""


class LedShard:
    """A shard, its log, and whether all of the log is in memory yet."""

    __slots__ = ("is_loaded", "log", "partition", "state", "steps")

    def __init__(self, partition: int, coordinator_log: CoordinatorLog, settings: GroupSettings) -> None:
        self.partition = partition
        self.log = coordinator_log
        self.state = GroupShard(settings)
        self.is_loaded = False
        self.steps = load(self.state, coordinator_log.batches(), wall_ms, f"__consumer_offsets-{partition}")


class Shards:
    """Shards by partition of `__consumer_offsets`; `on_loaded` is told of each that has been read."""

    def __init__(
        self, settings: GroupSettings, loop: asyncio.AbstractEventLoop, on_loaded: Callable[[LedShard], None]
    ) -> None:
        self.partition_count = settings.offsets_topic_num_partitions
        """Partitions of `__consumer_offsets`: as it was created, whatever the setting says now."""
        self._settings = settings
        self._codec = Codec(settings.offsets_topic_compression_codec)
        self._loop = loop
        self._on_loaded = on_loaded
        self._led: dict[int, LedShard] = {}
        self._to_load: deque[LedShard] = deque()
        self._loading_since = 0.0

    def lead(self, partition: int, coordinator_log: CoordinatorLog) -> None:
        """Read the partition, then answer for its groups; nothing to do for one that is led already."""
        if partition in self._led:
            return
        shard = self._led[partition] = LedShard(partition, coordinator_log, self._settings)
        self._to_load.append(shard)
        if len(self._to_load) == 1:
            self._loading_since = time.monotonic()
            self._load_slice()

    def drop(self, partition: int) -> LedShard | None:
        """Forget the partition, which another broker leads."""
        return self._led.pop(partition, None)

    def of(self, group_id: str) -> LedShard:
        """Where the group lives. Raises KafkaError: not_coordinator, coordinator_load_in_progress."""
        shard = self._led.get(partition_for(group_id, self.partition_count))
        if shard is None:
            raise KafkaError(ErrorCode.not_coordinator)
        if not shard.is_loaded:
            raise KafkaError(ErrorCode.coordinator_load_in_progress)
        return shard

    def loaded(self) -> list[LedShard]:
        """The shards that answer for their groups."""
        return [shard for shard in self._led.values() if shard.is_loaded]

    def all(self) -> list[LedShard]:
        """Every shard. Raises KafkaError(coordinator_load_in_progress) while one is being read."""
        if self._to_load:
            raise KafkaError(ErrorCode.coordinator_load_in_progress)
        return list(self._led.values())

    def leads(self, shard: LedShard) -> bool:
        """Whether the shard is still here."""
        return self._led.get(shard.partition) is shard

    def partitions(self) -> list[int]:
        return list(self._led)

    def end_transaction(self, partition: int, producer_id: int, *, committed: bool) -> None:
        """A marker has been appended to the partition: its offsets count, or never will."""
        shard = self._led.get(partition)
        if shard is not None:
            shard.state.offsets.end_transaction(producer_id, committed=committed)

    def append(self, shard: LedShard, decision: Sequence[Change], now_ms: int) -> int:
        """Write the decision as one batch; its base offset. Raises KafkaError as group members understand it."""
        batch = plain_batch(starmap(encode, decision), now_ms, self._codec)
        try:
            return shard.log.append(batch, now_ms)
        except KafkaError as error:
            raise KafkaError(_AS_COORDINATOR_ERROR.get(error.code, error.code), error.message) from error

    def append_and_replay(self, shard: LedShard, decision: Sequence[Change]) -> None:
        """Write the decision, then make it true. Raises KafkaError, with nothing of that batch changed."""
        if len(decision) > _RECORDS_PER_BATCH:
            for start in range(0, len(decision), _RECORDS_PER_BATCH):
                self.append_and_replay(shard, decision[start : start + _RECORDS_PER_BATCH])
        elif decision:
            now_ms = wall_ms()
            self.append(shard, decision, now_ms)
            replay = shard.state.replay
            for key, value in decision:
                replay(key, value, now_ms)

    def _load_slice(self) -> None:
        deadline = time.monotonic() + _LOAD_SLICE_S
        while self._to_load and time.monotonic() < deadline:
            shard = self._to_load[0]
            try:
                if next(shard.steps, None) is not None:
                    continue
            except Exception as error:
                log.error(
                    "__consumer_offsets-%d cannot be loaded; its groups stay away", shard.partition, exc_info=error
                )
                self._led.pop(shard.partition, None)
            else:
                self._finish(shard)
            self._to_load.popleft()
        if self._to_load:
            self._loop.call_soon(self._load_slice)

    def _finish(self, shard: LedShard) -> None:
        shard.is_loaded = True
        if not self.leads(shard):
            return
        if shard.state.groups:
            took_ms = (time.monotonic() - self._loading_since) * 1000
            log.info(
                "Loaded %s from __consumer_offsets-%d, %d ms after the first partition",
                count(len(shard.state.groups), "group"),
                shard.partition,
                took_ms,
            )
        self._on_loaded(shard)


def wall_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
