"""Write the markers of transactions that end, and complete a transaction when all of its markers are written."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final, Protocol, cast

from headrace.clock import Clock
from headrace.coordinator.runtime.shards import CoordinatorLog, LedShard
from headrace.coordinator.transactions.machine import WriteMarkers
from headrace.coordinator.transactions.shard import TransactionShard
from headrace.errors import ErrorCode, KafkaError
from headrace.types import TopicPartition

log = logging.getLogger(__name__)

_SLICE_S: Final = 0.001
"""Maximum time that marker writes may block the event loop."""
_RETRY_S: Final = 0.5
"""Delay before a marker or a record is retried."""
_FEW: Final = 64
"""Maximum number of markers to write without a pause."""
_NEEDLESS: Final = frozenset({ErrorCode.unknown_topic_or_partition})
"""Errors of a partition that needs no marker, because it was deleted."""
_FENCED: Final = frozenset({ErrorCode.invalid_producer_epoch, ErrorCode.transaction_coordinator_fenced})
"""Errors of a partition that has seen a newer producer or coordinator."""


class TransactionLog(CoordinatorLog, Protocol):
    """The partition of `__transaction_state` that stores a shard."""

    @property
    def coordinator_epoch(self) -> int:
        """The leader epoch of the partition, which markers contain."""

    def committed(self) -> "asyncio.Future[KafkaError | None] | None":
        """Return a future that is done when all appended records are committed; None if they already are."""


class MarkerWriter(Protocol):
    """Writes markers to partitions."""

    def write(
        self, partition: TopicPartition, markers: WriteMarkers, coordinator_epoch: int
    ) -> "asyncio.Future[KafkaError | None] | None":
        """Append the marker. Return None if it is committed, otherwise a future of None (once committed) or the error.

        Raises KafkaError: unknown_topic_or_partition (deleted), and the errors of an append.
        """


@dataclass(eq=False, slots=True)
class _Ending:
    """A prepared transaction whose markers are being written."""

    shard: "LedShard[TransactionShard]"
    name: str
    markers: WriteMarkers
    missing: set[TopicPartition]
    to_send: list[TopicPartition]
    refused: set[TopicPartition] = field(default_factory=set)
    """Partitions that will never accept the marker."""
    in_flight: int = 0
    has_failed: bool = False
    is_queued: bool = False
    retry: Any = field(default=None, repr=False)
    """The timer of the next attempt."""


class Endings:
    """Writes the markers of prepared transactions, then calls `complete`.

    `complete` writes the last record of a transaction. If the write fails, it raises KafkaError and is called again.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        markers: MarkerWriter,
        complete: Callable[[LedShard[TransactionShard], str], None],
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._markers = markers
        self._complete = complete
        self._endings: dict[str, _Ending] = {}
        self._queue: deque[_Ending] = deque()
        """Transactions with markers to write, which take turns: one with many partitions does not delay the others."""
        self._pump: asyncio.Handle | None = None

    def begin(self, shard: LedShard[TransactionShard], name: str, markers: WriteMarkers) -> None:
        """Write markers after the prepared state is committed, and after the reply to the request."""
        ending = _Ending(shard, name, markers, set(markers.partitions), sorted(markers.partitions, reverse=True))
        self._endings[name] = ending
        self._enqueue_once_committed(ending)

    def write_now(self, name: str) -> None:
        """Write the queued markers of a transactional id now if they are few: its next transaction may be waiting."""
        ending = self._endings.get(name)
        if ending is not None and ending.is_queued and len(ending.to_send) <= _FEW:
            ending.is_queued = False
            self._send_some(ending)

    def missing(self, name: str) -> frozenset[TopicPartition] | None:
        """Return the partitions that still need a marker; None if no transaction of this id is ending."""
        ending = self._endings.get(name)
        return None if ending is None else frozenset(ending.missing)

    def stop(self, shard: LedShard[TransactionShard] | None = None) -> None:
        """Stop writing the markers of a shard, or of all shards."""
        for ending in list(self._endings.values()):
            if shard is None or ending.shard is shard:
                self._forget(ending)
        if not self._endings and self._pump is not None:
            self._pump.cancel()
            self._pump = None

    def _enqueue_once_committed(self, ending: _Ending) -> None:
        """Write no markers while the prepared state may be lost."""
        ending.retry = None
        waiting = log_of(ending.shard).committed()
        if waiting is None:
            self._enqueue(ending)
        else:
            waiting.add_done_callback(lambda done: self._decided(ending, done))

    def _decided(self, ending: _Ending, done: "asyncio.Future[KafkaError | None]") -> None:
        if done.cancelled() or not self._is_current(ending):
            return
        if done.result() is None:
            ending.has_failed = False
            self._enqueue(ending)
        else:  # for example too few in-sync replicas; if the log is gone, `stop` drops the ending
            if not ending.has_failed:
                ending.has_failed = True
                log.warning(
                    "Cannot commit the end of the transaction for transactional id %s; trying again: %s",
                    ending.name,
                    done.result(),
                )
            ending.retry = self._loop.call_later(_RETRY_S, self._enqueue_once_committed, ending)

    def _enqueue(self, ending: _Ending) -> None:
        """Write the markers soon, but after the reply to the request that ended the transaction."""
        ending.retry = None
        ending.is_queued = True
        self._queue.append(ending)
        if self._pump is None:
            self._pump = self._loop.call_soon(self._send)

    def _send(self) -> None:
        """Write queued markers for one time slice, then let other tasks run."""
        self._pump = None
        deadline = self._clock.monotonic() + _SLICE_S
        while self._queue:
            ending = self._queue.popleft()
            if not ending.is_queued:
                continue  # `write_now` has written its markers
            ending.is_queued = False
            self._send_some(ending, deadline)
            if self._clock.monotonic() > deadline:
                break
        if self._queue and self._pump is None:
            self._pump = self._loop.call_soon(self._send)

    def _send_some(self, ending: _Ending, deadline: float = inf) -> None:
        """Write markers of one transaction until the deadline."""
        while ending.to_send and self._is_current(ending):
            self._send_one(ending, ending.to_send.pop())
            if self._clock.monotonic() > deadline:
                break
        if not self._is_current(ending):
            return
        if ending.to_send:
            self._enqueue(ending)
        else:
            self._finish_or_retry(ending)

    def _send_one(self, ending: _Ending, partition: TopicPartition) -> None:
        try:
            waiting = self._markers.write(partition, ending.markers, log_of(ending.shard).coordinator_epoch)
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
        if self._is_current(ending):
            self._finish_or_retry(ending)

    def _answered(self, ending: _Ending, partition: TopicPartition, error: KafkaError | None) -> None:
        if error is None or error.code in _NEEDLESS:
            ending.missing.discard(partition)
        elif error.code in _FENCED:
            # As in Kafka, the transaction stays prepared until a newer coordinator ends it.
            log.error(
                "%s refuses the marker of transactional id %s (%s). The transaction stays prepared until its"
                " coordinator is loaded again: restart the broker",
                partition,
                ending.name,
                error,
            )
            ending.refused.add(partition)
        elif not ending.has_failed:
            ending.has_failed = True
            log.warning(
                "Cannot write the marker of transactional id %s to %s, will retry: %s",
                ending.name,
                partition,
                error,
            )

    def _finish_or_retry(self, ending: _Ending) -> None:
        """Complete the transaction if all markers are written; otherwise retry those that may still be accepted."""
        if ending.in_flight or ending.to_send or ending.retry is not None:
            return
        if ending.missing:
            ending.to_send = sorted(ending.missing - ending.refused, reverse=True)
            if ending.to_send:
                ending.retry = self._loop.call_later(_RETRY_S, self._enqueue, ending)
            return
        try:
            self._complete(ending.shard, ending.name)
        except KafkaError as error:
            log.warning("Cannot complete the transaction of transactional id %s, will retry: %s", ending.name, error)
            ending.retry = self._loop.call_later(_RETRY_S, self._enqueue, ending)
        else:
            del self._endings[ending.name]

    def _is_current(self, ending: _Ending) -> bool:
        return self._endings.get(ending.name) is ending

    def _forget(self, ending: _Ending) -> None:
        del self._endings[ending.name]
        ending.is_queued = False
        if ending.retry is not None:
            ending.retry.cancel()


def log_of(shard: LedShard[TransactionShard]) -> TransactionLog:
    return cast(TransactionLog, shard.log)
