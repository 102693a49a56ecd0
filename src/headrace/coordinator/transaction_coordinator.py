"""The coordinator of transactions: carries out what the machine decides, and writes markers until none is missing."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

from headrace.clock import Clock
from headrace.coordinator.runtime.results import Result
from headrace.coordinator.runtime.runtime import Runtime
from headrace.coordinator.runtime.shards import CoordinatorLog, LedShard
from headrace.coordinator.transactions import machine
from headrace.coordinator.transactions.machine import NeedsProducerIdError, WriteMarkers
from headrace.coordinator.transactions.shard import TransactionShard
from headrace.coordinator.transactions.states import (
    NEVER_MS,
    ProducerIdentity,
    TransactionMetadata,
)
from headrace.errors import ErrorCode, KafkaError
from headrace.slices import Steps
from headrace.types import TopicPartition
from headrace.wire.compression import Codec

log = logging.getLogger(__name__)

TOPIC: Final = "__transaction_state"
_SLICE_S: Final = 0.005
"""How long the markers of one transaction may keep the event loop from its connections."""
_RETRY_S: Final = 0.5
"""When a marker or a record is tried again that could not be written."""
_DONE: Final = frozenset(
    {
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.invalid_producer_epoch,
        ErrorCode.transaction_coordinator_fenced,
    }
)
"""Errors that mean that a partition needs no marker any more: it is gone, or knows a newer epoch."""

A = TypeVar("A")


@dataclass(slots=True)
class TransactionSettings:
    """Settings of the broker; times in ms."""

    partition_count: int = 50
    max_timeout_ms: int = 900_000
    id_expiration_ms: int = 604_800_000
    has_two_phase_commit: bool = False


class TransactionLog(CoordinatorLog, Protocol):
    """The partition of `__transaction_state` that a shard lives in."""

    @property
    def coordinator_epoch(self) -> int:
        """The leader epoch of the partition, which markers carry."""

    def committed(self) -> "asyncio.Future[KafkaError | None] | None":
        """Done when all that was appended is committed; None where it is so already."""


class MarkerWriter(Protocol):
    """Writes markers to partitions, wherever they are led."""

    def write(
        self, partition: TopicPartition, markers: WriteMarkers, coordinator_epoch: int
    ) -> "asyncio.Future[KafkaError | None] | None":
        """Append the marker; a future where it takes time to be committed, with the error that kept it from being so.

        Raises KafkaError: unknown_topic_or_partition for one that is deleted, and what else an append raises.
        """


@dataclass(eq=False, slots=True)
class _Ending:
    """A prepared transaction whose markers are on their way."""

    shard: "LedShard[TransactionShard]"
    name: str
    markers: WriteMarkers
    missing: set[TopicPartition]
    to_send: list[TopicPartition]
    in_flight: int = 0
    has_failed: bool = False
    handle: Any = field(default=None, repr=False)


class TransactionCoordinator:
    """Transactional ids of the partitions that this broker leads."""

    def __init__(
        self,
        settings: TransactionSettings,
        loop: asyncio.AbstractEventLoop,
        markers: MarkerWriter,
        *,
        version: Callable[[], int],
        take_producer_id: Callable[[], int | None],
        clock: Clock,
    ) -> None:
        """`version` is the cluster's `transaction.version`; `take_producer_id` gives None where it has none at hand."""
        self.settings = settings
        self._version = version
        self._take_producer_id = take_producer_id
        self._loop = loop
        self._clock = clock
        self._markers = markers
        self._endings: dict[str, _Ending] = {}
        self._clients: dict[str, str] = {}
        """The client that last asked for the producer id of each transactional id, since the start."""
        self._runtime: Runtime[TransactionShard] = Runtime(
            TOPIC,
            settings.partition_count,
            lambda: TransactionShard(version),
            codec=Codec.NONE,
            loop=loop,
            clock=clock,
            perform=self._write_markers,
        )
        self._shards = self._runtime.shards

    # Leadership

    def elected(self, partition: int, transaction_log: TransactionLog) -> None:
        """This broker leads `partition` of `__transaction_state`: read it, then answer for its ids."""
        self._runtime.elected(partition, transaction_log)

    def resigned(self, partition: int) -> None:
        """Another broker leads `partition`, or it is gone; its markers are no longer this broker's."""
        shard = self._runtime.resigned(partition)
        for ending in [each for each in self._endings.values() if each.shard is shard]:
            self._forget(ending)
        self._clients.clear()

    def close(self) -> None:
        """Stop writing markers; the next start goes on with them."""
        for ending in list(self._endings.values()):
            self._forget(ending)
        self._runtime.close()

    # Requests

    def init_producer_id(
        self,
        name: str,
        expected: ProducerIdentity | None,
        timeout_ms: int,
        *,
        has_two_phases: bool = False,
        keeps_prepared: bool = False,
    ) -> ProducerIdentity:
        """The producer's id and epoch.

        Raises KafkaError: invalid_request, transactional_id_authorization_failed, unsupported_version,
        invalid_transaction_timeout, concurrent_transactions, producer_fenced, and as `_shard`; NeedsProducerIdError.
        """
        if not name:
            raise KafkaError(ErrorCode.invalid_request, "a transactional id cannot be empty")
        if has_two_phases and not self.settings.has_two_phase_commit:
            raise KafkaError(
                ErrorCode.transactional_id_authorization_failed,
                "two-phase commit is off (transaction.two.phase.commit.enable of the broker)",
            )
        if keeps_prepared:
            raise KafkaError(ErrorCode.unsupported_version, "prepared transactions cannot be kept yet, as in Kafka")
        if not has_two_phases and not 0 < timeout_ms <= self.settings.max_timeout_ms:
            raise KafkaError(
                ErrorCode.invalid_transaction_timeout,
                f"transaction.timeout.ms {timeout_ms} is not between 1 and {self.settings.max_timeout_ms}"
                " (transaction.max.timeout.ms of the broker)",
            )
        shard, metadata = self._find(name)

        def decide(fresh_id: int | None) -> Result[ProducerIdentity]:
            return machine.init_producer_id(
                name,
                metadata,
                expected,
                NEVER_MS if has_two_phases else timeout_ms,
                version=self._version(),
                fresh_id=fresh_id,
                now_ms=self._clock.wall_ms(),
            )

        return self._runtime.carry_out(shard, name, self._with_id(decide))

    def add_partitions(
        self, name: str, producer: ProducerIdentity, partitions: frozenset[TopicPartition], *, client_version: int
    ) -> None:
        """Make partitions part of a transaction. Raises KafkaError as `machine.add_partitions` and `_shard`."""
        if not name:
            raise KafkaError(ErrorCode.invalid_request, "a transactional id cannot be empty")
        shard, metadata = self._find(name)
        now_ms = self._clock.wall_ms()
        result = machine.add_partitions(
            name, metadata, producer, partitions, client_version=client_version, now_ms=now_ms
        )
        self._runtime.carry_out(shard, name, result)

    def verify(
        self, name: str, producer: ProducerIdentity, partitions: frozenset[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """Whether partitions are in the producer's transaction, as an error code for each."""
        if not name:
            return dict.fromkeys(partitions, ErrorCode.invalid_request)
        try:
            _, metadata = self._find(name)
        except KafkaError as error:
            return dict.fromkeys(partitions, error.code)
        return machine.verify_partitions(metadata, producer, partitions)

    def end(self, name: str, producer: ProducerIdentity, *, commit: bool, client_version: int) -> ProducerIdentity:
        """Decide the end of a transaction; who the producer is from now on.

        Raises KafkaError as `machine.end` and `_shard`; NeedsProducerIdError.
        """
        if not name:
            raise KafkaError(ErrorCode.invalid_request, "a transactional id cannot be empty")
        shard, metadata = self._find(name)

        def decide(fresh_id: int | None) -> Result[ProducerIdentity]:
            return machine.end(
                name,
                metadata,
                producer,
                commit=commit,
                client_version=client_version,
                fresh_id=fresh_id,
                now_ms=self._clock.wall_ms(),
            )

        return self._runtime.carry_out(shard, name, self._with_id(decide))

    def describe(self, name: str) -> TransactionMetadata:
        """What is known of an id. Raises KafkaError: invalid_request, transactional_id_not_found, and as `_shard`."""
        if not name:
            raise KafkaError(ErrorCode.invalid_request, "a transactional id cannot be empty")
        _, metadata = self._find(name)
        if metadata is None:
            raise KafkaError(ErrorCode.transactional_id_not_found)
        return metadata

    def note_client(self, name: str, client: str) -> None:
        """Remember the client of an id that exists, for the log."""
        self._clients[name] = client

    def present(self) -> list[TransactionMetadata]:
        """Every id of the shards that are loaded, as they are now."""
        found: list[TransactionMetadata] = []
        for shard in self._shards.loaded():
            found.extend(shard.state.ids.values())
        return found

    def all(self) -> Iterator[tuple[str, TransactionMetadata]]:
        """Every id. Raises KafkaError(coordinator_load_in_progress) while some are still being read."""
        for shard in self._shards.all():
            yield from list(shard.state.ids.items())

    def committed(self, name: str) -> "asyncio.Future[KafkaError | None] | None":
        """Done when what was decided about the id is committed; None where it is so already."""
        try:
            shard = self._shards.of(name)
        except KafkaError:
            return None
        return _log_of(shard).committed()

    # Time

    def abort_timed_out(self) -> Steps[None]:
        """Abort the transactions whose time is up; in steps."""
        for shard in self._shards.loaded():
            for name in shard.state.timed_out(self._clock.wall_ms()):
                if name is not None and self._shards.leads(shard):
                    self._time_out(shard, name)
                yield

    def _time_out(self, shard: LedShard[TransactionShard], name: str) -> None:
        metadata = shard.state.ids[name]

        def decide(fresh_id: int | None) -> Result[None]:
            now_ms = self._clock.wall_ms()
            return machine.time_out(name, metadata, version=self._version(), fresh_id=fresh_id, now_ms=now_ms)

        try:
            self._runtime.carry_out(shard, name, self._with_id(decide))
        except (KafkaError, NeedsProducerIdError) as error:
            log.warning("%s: the transaction of %s, whose time is up, stays open for now: %s", shard.name, name, error)
        else:
            log.warning(
                "%s: aborted the transaction of transactional id %s (client %s, producer %d, epoch %d), open for more"
                " than %d ms (transaction.timeout.ms of the producer)",
                shard.name,
                name,
                self._clients.get(name, "not seen since the start"),
                metadata.producer_id,
                metadata.producer_epoch,
                metadata.timeout_ms,
            )

    def forget_expired(self) -> Steps[None]:
        """Forget ids that nobody uses; in steps."""
        for shard in self._shards.loaded():
            for name in shard.state.expired(self.settings.id_expiration_ms, self._clock.wall_ms()):
                if name is not None and self._shards.leads(shard):
                    try:
                        self._shards.append_and_replay(shard, [(name, None)])
                        self._clients.pop(name, None)
                    except KafkaError as error:
                        log.warning("%s: idle transactional ids are kept for now: %s", shard.name, error)
                        break
                yield

    # Decisions

    def _find(self, name: str) -> tuple[LedShard[TransactionShard], TransactionMetadata | None]:
        """Raises KafkaError: not_coordinator, coordinator_load_in_progress."""
        shard = self._shards.of(name)
        return shard, shard.state.ids.get(name)

    def _with_id(self, decide: Callable[[int | None], Result[A]]) -> Result[A]:
        """Decide, with a producer id only where it takes one. Raises NeedsProducerIdError where none is at hand."""
        try:
            return decide(None)
        except NeedsProducerIdError:
            return decide(self._take_producer_id())

    # Markers

    def _write_markers(self, shard: LedShard[TransactionShard], name: str, markers: WriteMarkers) -> None:
        ending = _Ending(shard, name, markers, set(markers.partitions), sorted(markers.partitions, reverse=True))
        self._endings[name] = ending
        waiting = _log_of(shard).committed()
        if waiting is None:
            self._send(ending)
        else:  # markers follow a decision that nothing can undo
            waiting.add_done_callback(lambda done: self._decided(ending, done))

    def _decided(self, ending: _Ending, done: "asyncio.Future[KafkaError | None]") -> None:
        if not done.cancelled() and done.result() is None and self._is_current(ending):
            self._send(ending)

    def _send(self, ending: _Ending) -> None:
        """Write markers for a slice of time, and go on later."""
        ending.handle = None
        deadline = self._clock.monotonic() + _SLICE_S
        while ending.to_send:
            self._send_one(ending, ending.to_send.pop())
            if ending.to_send and self._clock.monotonic() > deadline:
                ending.handle = self._loop.call_soon(self._send, ending)
                return
        self._look(ending)

    def _send_one(self, ending: _Ending, partition: TopicPartition) -> None:
        try:
            waiting = self._markers.write(partition, ending.markers, _log_of(ending.shard).coordinator_epoch)
        except KafkaError as error:
            self._answered(ending, partition, error)
        else:
            if waiting is None:
                self._answered(ending, partition, None)
            else:
                ending.in_flight += 1
                waiting.add_done_callback(lambda done: self._committed(ending, partition, done))

    def _committed(self, ending: _Ending, partition: TopicPartition, done: "asyncio.Future[KafkaError | None]") -> None:
        ending.in_flight -= 1
        if done.cancelled() or not self._is_current(ending):
            return
        self._answered(ending, partition, done.result())
        self._look(ending)

    def _answered(self, ending: _Ending, partition: TopicPartition, error: KafkaError | None) -> None:
        if error is None or error.code in _DONE:
            ending.missing.discard(partition)
            if error is not None and error.code is not ErrorCode.unknown_topic_or_partition:
                log.warning("%s refuses the marker of transactional id %s for good: %s", partition, ending.name, error)
        elif not ending.has_failed:
            ending.has_failed = True
            log.warning("The marker of transactional id %s for %s is tried again: %s", ending.name, partition, error)

    def _look(self, ending: _Ending) -> None:
        """Complete the transaction where nothing is missing; try again what is."""
        if ending.in_flight or ending.to_send or ending.handle is not None:
            return
        if ending.missing:
            ending.to_send = sorted(ending.missing, reverse=True)
            ending.handle = self._loop.call_later(_RETRY_S, self._send, ending)
            return
        metadata = ending.shard.state.ids[ending.name]
        try:
            self._runtime.carry_out(
                ending.shard, ending.name, machine.complete(ending.name, metadata, self._clock.wall_ms())
            )
        except KafkaError as error:
            log.warning("The end of the transaction of %s is written again: %s", ending.name, error)
            ending.handle = self._loop.call_later(_RETRY_S, self._send, ending)
        else:
            del self._endings[ending.name]

    def _is_current(self, ending: _Ending) -> bool:
        return self._endings.get(ending.name) is ending

    def _forget(self, ending: _Ending) -> None:
        del self._endings[ending.name]
        if ending.handle is not None:
            ending.handle.cancel()


def _log_of(shard: LedShard[TransactionShard]) -> TransactionLog:
    transaction_log: Any = shard.log
    return transaction_log  # type: ignore[no-any-return]
