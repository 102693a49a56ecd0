"""The transaction coordinator of one broker, which executes the decisions of `transactions.machine`."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

from headrace.clock import Clock
from headrace.coordinator.endings import Endings, MarkerWriter, TransactionLog, log_of
from headrace.coordinator.runtime.results import Result
from headrace.coordinator.runtime.runtime import Runtime
from headrace.coordinator.runtime.shards import LedShard
from headrace.coordinator.transactions import machine
from headrace.coordinator.transactions.machine import NeedsProducerIdError, WriteMarkers
from headrace.coordinator.transactions.shard import TransactionShard
from headrace.coordinator.transactions.states import NEVER_MS, ProducerIdentity, TransactionMetadata
from headrace.errors import ErrorCode, KafkaError
from headrace.slices import Steps
from headrace.types import TopicPartition
from headrace.wire.compression import Codec

log = logging.getLogger(__name__)

TOPIC: Final = "__transaction_state"
A = TypeVar("A")


@dataclass(slots=True)
class TransactionSettings:
    """The broker settings that concern transactions."""

    partition_count: int = 50
    max_timeout_ms: int = 900_000
    id_expiration_ms: int = 604_800_000
    has_two_phase_commit: bool = False


class TransactionCoordinator:
    """Handles requests about the transactional ids in partitions that this broker leads."""

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
        """`version` returns the cluster's `transaction.version`; `take_producer_id` returns None if it has no id."""
        self.settings = settings
        self._version = version
        self._take_producer_id = take_producer_id
        self._clock = clock
        self._endings = Endings(loop, clock, markers, self._complete)
        self._clients: dict[str, str] = {}
        """By transactional id: the last client that began or continued a transaction. Not stored in the log."""
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

    def note_partition_count(self, count: int) -> None:
        """Set the actual number of partitions of `__transaction_state`."""
        self._runtime.shards.partition_count = count

    def elected(self, partition: int, transaction_log: TransactionLog) -> None:
        """Load a partition of `__transaction_state`, then serve its ids."""
        self._runtime.elected(partition, transaction_log)

    def resigned(self, partition: int) -> None:
        """Drop a partition that this broker no longer leads, and stop writing its markers."""
        shard = self._runtime.resigned(partition)
        if shard is not None:
            self._endings.stop(shard)
            for name in shard.state.ids:
                self._clients.pop(name, None)

    def close(self) -> None:
        """Stop writing markers. The next start resumes it."""
        self._endings.stop()
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
        """Return the producer's id and epoch.

        Raises NeedsProducerIdError if no producer id is available, and KafkaError: invalid_request,
        transactional_id_authorization_failed, unsupported_version, invalid_transaction_timeout,
        concurrent_transactions, producer_fenced, and those of `_find` and of an append.
        """
        if not name:
            raise KafkaError(ErrorCode.invalid_request, "a transactional id cannot be empty")
        if has_two_phases and not self.settings.has_two_phase_commit:
            raise KafkaError(
                ErrorCode.transactional_id_authorization_failed,
                "two-phase commit is disabled: set transaction.two.phase.commit.enable=true on the broker",
            )
        if keeps_prepared:
            raise KafkaError(
                ErrorCode.unsupported_version, "keeping prepared transactions (KIP-939) is not supported, as in Kafka"
            )
        if not has_two_phases and not 0 < timeout_ms <= self.settings.max_timeout_ms:
            raise KafkaError(
                ErrorCode.invalid_transaction_timeout,
                f"transaction.timeout.ms {timeout_ms} is not between 1 and {self.settings.max_timeout_ms}"
                " (transaction.max.timeout.ms of the broker)",
            )
        shard, metadata = self._find_completed(name)

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
        """Add partitions to a transaction.

        Raises KafkaError: invalid_producer_id_mapping, concurrent_transactions, producer_fenced, and those of `_find`
        and of an append.
        """
        shard, metadata = self._find_completed(name)
        now_ms = self._clock.wall_ms()
        result = machine.add_partitions(
            name, metadata, producer, partitions, client_version=client_version, now_ms=now_ms
        )
        self._runtime.carry_out(shard, name, result)

    def verify(
        self, name: str, producer: ProducerIdentity, partitions: frozenset[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """Check that partitions are in the producer's transaction. Return an error code per partition."""
        try:
            _, metadata = self._find(name)
        except KafkaError as error:
            return dict.fromkeys(partitions, error.code)
        return machine.verify_partitions(metadata, producer, partitions)

    def end(self, name: str, producer: ProducerIdentity, *, commit: bool, client_version: int) -> ProducerIdentity:
        """Prepare the commit or abort of a transaction. Return the producer's id and epoch for the next one.

        Raises NeedsProducerIdError if no producer id is available, and KafkaError: invalid_producer_id_mapping,
        concurrent_transactions, producer_fenced, invalid_txn_state, and those of `_find` and of an append.
        """
        shard, metadata = self._find_completed(name)

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
        """Return the metadata of a transactional id, without partitions that already have their marker.

        Raises KafkaError: transactional_id_not_found, and those of `_find`.
        """
        _, metadata = self._find(name)
        if metadata is None:
            raise KafkaError(ErrorCode.transactional_id_not_found)
        missing = self._endings.missing(name)
        return metadata if missing is None else metadata._replace(partitions=missing)

    def note_client(self, name: str, client: str) -> None:
        """Remember the client of an existing transactional id, so that log lines can name the client."""
        self._clients[name] = client

    def present(self) -> list[TransactionMetadata]:
        """Return the metadata of all ids in loaded shards."""
        found: list[TransactionMetadata] = []
        for shard in self._shards.loaded():
            found.extend(shard.state.ids.values())
        return found

    def all(self) -> Iterator[tuple[str, TransactionMetadata]]:
        """Yield all ids with their metadata. Raises KafkaError(coordinator_load_in_progress)."""
        for shard in self._shards.all():
            yield from list(shard.state.ids.items())

    def committed(self, name: str) -> "asyncio.Future[KafkaError | None] | None":
        """Return a future that is done when the latest record of this id is committed.

        Return None if it already is, or if this broker does not coordinate the id.
        """
        try:
            shard = self._shards.of(name)
        except KafkaError:
            return None
        return log_of(shard).committed()

    # Time

    def abort_timed_out(self) -> Steps[None]:
        """Abort transactions that have timed out, in steps."""
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
            log.warning(
                "%s: cannot abort the timed-out transaction of transactional id %s, will retry: %s",
                shard.name,
                name,
                error,
            )
        else:
            log.warning(
                "%s: aborted the transaction of transactional id %s (client %s, producer %d, epoch %d), which was open"
                " for more than %d ms (transaction.timeout.ms of the producer)",
                shard.name,
                name,
                self._clients.get(name, "unknown: no request since the coordinator started"),
                metadata.producer_id,
                metadata.producer_epoch,
                metadata.timeout_ms,
            )

    def forget_expired(self) -> Steps[None]:
        """Remove idle ids, in steps."""
        for shard in self._shards.loaded():
            for name in shard.state.expired(self.settings.id_expiration_ms, self._clock.wall_ms()):
                if name is not None and self._shards.leads(shard):
                    try:
                        self._shards.append_and_replay(shard, [(name, None)])
                        self._clients.pop(name, None)
                    except KafkaError as error:
                        log.warning("%s: cannot remove idle transactional ids, will retry: %s", shard.name, error)
                        break
                yield

    # Decisions

    def _find(self, name: str) -> tuple[LedShard[TransactionShard], TransactionMetadata | None]:
        """Return the shard of a transactional id and its metadata, which is None for an unknown id.

        Raises KafkaError: invalid_request, not_coordinator, coordinator_load_in_progress.
        """
        if not name:
            raise KafkaError(ErrorCode.invalid_request, "a transactional id cannot be empty")
        shard = self._shards.of(name)
        return shard, shard.state.ids.get(name)

    def _find_completed(self, name: str) -> tuple[LedShard[TransactionShard], TransactionMetadata | None]:
        """Like `_find`, but first complete the last transaction if that is possible at once."""
        self._endings.write_now(name)
        return self._find(name)

    def _with_id(self, decide: Callable[[int | None], Result[A]]) -> Result[A]:
        """Decide, with a fresh producer id if required. Raises NeedsProducerIdError if none is available."""
        try:
            return decide(None)
        except NeedsProducerIdError:
            return decide(self._take_producer_id())

    # Markers

    def _write_markers(self, shard: LedShard[TransactionShard], name: str, markers: WriteMarkers, _: int) -> None:
        self._endings.begin(shard, name, markers)

    def _complete(self, shard: LedShard[TransactionShard], name: str) -> None:
        self._runtime.carry_out(shard, name, machine.complete(name, shard.state.ids[name], self._clock.wall_ms()))
