"""The shards that this broker leads: load them from the log, and write their decisions to it.

Every write is decide -> append -> replay. The hash of a group id or transactional id determines its shard. A shard
serves requests after its whole partition is loaded. Independent of record types.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from itertools import starmap
from typing import Any, Final, Generic, Protocol, TypeVar

from headrace.clock import Clock
from headrace.coordinator.runtime.loading import load
from headrace.coordinator.runtime.partitioner import partition_for
from headrace.coordinator.runtime.results import Records
from headrace.errors import ErrorCode, KafkaError
from headrace.types import Buffer
from headrace.wire.compression import Codec
from headrace.wire.records import plain_batch
from headrace.wording import count

log = logging.getLogger(__name__)

_LOAD_SLICE_S: Final = 0.005
"""Maximum time that loading may block the event loop."""

_RECORDS_PER_BATCH: Final = 5000
"""Maximum records in a batch. A commit fits into one; the deletion of a large group or a topic may take several."""

AS_COORDINATOR_ERROR: Final = {
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
"""The errors for clients, by the error of a failed append."""

_TOO_LARGE: Final = (ErrorCode.message_too_large, ErrorCode.record_list_too_large)


class ShardState(Protocol):
    """The state of one partition, as a pure state machine."""

    def __len__(self) -> int:
        """Return the number of groups or transactional ids."""

    def encode(self, key: Any, value: Any) -> tuple[bytes, bytes | None]:
        """Encode a change as a record's key and value."""

    def replay(self, key: Any, value: Any, now_ms: int) -> None:
        """Apply a change that has been written."""

    def replay_bytes(self, key: bytes, value: bytes | None, offset: int, *, now_ms: int, producer_id: int) -> bool:
        """Apply an encoded record. Return False if its type is unknown. Raises KafkaError and UnicodeDecodeError."""

    def end_transaction(self, producer_id: int, *, committed: bool) -> None: ...


S = TypeVar("S", bound=ShardState)


class CoordinatorLog(Protocol):
    """The partition of an internal topic that stores a shard."""

    def append(self, batch: bytes, now_ms: int) -> int:
        """Write a batch and return its base offset. Raises KafkaError."""

    def batches(self) -> Iterator[Buffer]:
        """Yield the contents of the log as buffers of whole batches."""


class LedShard(Generic[S]):
    """A shard and its log. `is_loaded` is True after the whole log has been replayed."""

    __slots__ = ("is_loaded", "log", "name", "partition", "state", "steps")

    def __init__(self, topic: str, partition: int, coordinator_log: CoordinatorLog, state: S, clock: Clock) -> None:
        self.partition = partition
        self.name = f"{topic}-{partition}"
        self.log = coordinator_log
        self.state = state
        self.is_loaded = False
        self.steps = load(state, coordinator_log.batches(), clock.wall_ms, self.name)


class Shards(Generic[S]):
    """Shards by partition of `topic`; `on_loaded` is called for every loaded shard."""

    def __init__(
        self,
        topic: str,
        partition_count: int,
        make_state: Callable[[], S],
        *,
        codec: Codec,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        on_loaded: Callable[[LedShard[S]], None],
    ) -> None:
        self.partition_count = partition_count
        """Actual number of partitions; the setting may have changed since the topic was created."""
        self._topic = topic
        self._make_state = make_state
        self._codec = codec
        self._loop = loop
        self._clock = clock
        self._on_loaded = on_loaded
        self._led: dict[int, LedShard[S]] = {}
        self._to_load: deque[LedShard[S]] = deque()
        self._loading_since = 0.0

    def lead(self, partition: int, coordinator_log: CoordinatorLog) -> None:
        """Load the partition and then serve requests for it, unless this broker already leads it."""
        if partition in self._led:
            return
        shard = LedShard(self._topic, partition, coordinator_log, self._make_state(), self._clock)
        self._led[partition] = shard
        self._to_load.append(shard)
        if len(self._to_load) == 1:
            self._loading_since = self._clock.monotonic()
            self._load_slice()

    def drop(self, partition: int) -> LedShard[S] | None:
        return self._led.pop(partition, None)

    def of(self, name: str) -> LedShard[S]:
        """Return the shard of a group id or transactional id.

        Raises KafkaError: not_coordinator, coordinator_load_in_progress.
        """
        shard = self._led.get(partition_for(name, self.partition_count))
        if shard is None:
            raise KafkaError(ErrorCode.not_coordinator)
        if not shard.is_loaded:
            raise KafkaError(ErrorCode.coordinator_load_in_progress)
        return shard

    def loaded(self) -> list[LedShard[S]]:
        return [shard for shard in self._led.values() if shard.is_loaded]

    def all(self) -> list[LedShard[S]]:
        """Return all shards. Raises KafkaError(coordinator_load_in_progress) while one is being loaded."""
        if self._to_load:
            raise KafkaError(ErrorCode.coordinator_load_in_progress)
        return list(self._led.values())

    def leads(self, shard: LedShard[S]) -> bool:
        return self._led.get(shard.partition) is shard

    def partitions(self) -> list[int]:
        return list(self._led)

    def end_transaction(self, partition: int, producer_id: int, *, committed: bool) -> None:
        """Apply a transaction marker that has been appended to the partition."""
        shard = self._led.get(partition)
        if shard is not None:
            shard.state.end_transaction(producer_id, committed=committed)

    def append(self, shard: LedShard[S], decision: Records, now_ms: int) -> int:
        """Write the decision as one batch, and return its base offset. Raises KafkaError with a code for clients."""
        try:
            return self._append(shard, decision, now_ms)
        except KafkaError as error:
            raise _for_clients(error) from error

    def _append(self, shard: LedShard[S], decision: Records, now_ms: int) -> int:
        return shard.log.append(plain_batch(starmap(shard.state.encode, decision), now_ms, self._codec), now_ms)

    def append_and_replay(self, shard: LedShard[S], decision: Records) -> None:
        """Write the decision and replay it, in several batches if it is large. Raises KafkaError."""
        for start in range(0, len(decision), _RECORDS_PER_BATCH):
            self._append_and_replay(shard, decision[start : start + _RECORDS_PER_BATCH])

    def _append_and_replay(self, shard: LedShard[S], decision: Records) -> None:
        now_ms = self._clock.wall_ms()
        try:
            self._append(shard, decision, now_ms)
        except KafkaError as error:
            half = len(decision) // 2
            # Only deletions may be split by size: half of another decision may be wrong.
            if error.code not in _TOO_LARGE or not half or any(value is not None for _, value in decision):
                raise _for_clients(error) from error
            self._append_and_replay(shard, decision[:half])
            self._append_and_replay(shard, decision[half:])
            return
        replay = shard.state.replay
        for key, value in decision:
            replay(key, value, now_ms)

    def _load_slice(self) -> None:
        deadline = self._clock.monotonic() + _LOAD_SLICE_S
        while self._to_load and self._clock.monotonic() < deadline:
            shard = self._to_load[0]
            if not self.leads(shard):
                self._to_load.popleft()  # the partition was dropped meanwhile
                continue
            try:
                if next(shard.steps, None) is not None:
                    continue
            except Exception:
                log.exception(
                    "%s cannot be loaded: requests for it fail until a restart or a change of its leader", shard.name
                )
                self._led.pop(shard.partition, None)
            else:
                self._finish(shard)
            self._to_load.popleft()
        if self._to_load:
            self._loop.call_soon(self._load_slice)

    def _finish(self, shard: LedShard[S]) -> None:
        shard.is_loaded = True
        if len(shard.state):
            elapsed_ms = (self._clock.monotonic() - self._loading_since) * 1000
            log.info(
                "Loaded %s of %s, %d ms after the first partition began to load",
                count(len(shard.state), "entry", "entries"),
                shard.name,
                elapsed_ms,
            )
        self._on_loaded(shard)


def _for_clients(error: KafkaError) -> KafkaError:
    return KafkaError(AS_COORDINATOR_ERROR.get(error.code, error.code), error.message)
