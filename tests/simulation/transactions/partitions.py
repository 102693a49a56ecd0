"""Partitions and the coordinator's log. A crash may lose their uncommitted tails."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headrace.coordinator.transactions.machine import WriteMarkers
from headrace.coordinator.transactions.states import ProducerIdentity
from headrace.errors import ErrorCode, KafkaError
from headrace.types import Buffer, TopicPartition
from tests.simulation.clock import VirtualLoop


class Future:
    """The part of a future that the coordinator uses."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[Any], object]] = []
        self._result: Any = None
        self._is_done = False

    def cancelled(self) -> bool:
        return False

    def result(self) -> Any:
        return self._result

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        if self._is_done:
            callback(self)
        else:
            self._callbacks.append(callback)

    def finish(self, result: Any) -> None:
        self._is_done, self._result = True, result
        for callback in self._callbacks:
            callback(self)


class Durable:
    """A log whose tail may be lost until it is committed, after a `delay` in seconds."""

    def __init__(self, loop: VirtualLoop, delay: Callable[[], float]) -> None:
        self._loop = loop
        self._delay = delay
        self.end = 0
        self.committed_end = 0
        self._waiting: list[tuple[int, Future]] = []

    def schedule_commit(self) -> None:
        delay = self._delay()
        if delay == 0 and self.committed_end == self.end - 1:
            self.committed_end = self.end
        else:
            self._loop.call_later(delay, self._commit, self.end)

    def committed(self) -> Any:
        if self.committed_end == self.end:
            return None
        future = Future()
        self._waiting.append((self.end, future))
        return future

    def lose(self) -> None:
        """Lose the uncommitted tail in a crash, without notice."""
        self.end = self.committed_end
        self._waiting = []

    def _commit(self, end: int) -> None:
        self.committed_end = max(self.committed_end, min(end, self.end))
        done = [future for at, future in self._waiting if at <= self.committed_end]
        self._waiting = [item for item in self._waiting if item[0] > self.committed_end]
        for future in done:
            future.finish(None)


class StateLog(Durable):
    """A partition of `__transaction_state`."""

    coordinator_epoch = 0

    def __init__(self, loop: VirtualLoop, delay: Callable[[], float]) -> None:
        super().__init__(loop, delay)
        self.content: list[bytes] = []
        self.refusal: ErrorCode | None = None

    def append(self, batch: bytes, now_ms: int) -> int:
        if self.refusal is not None:
            raise KafkaError(self.refusal)
        self.content.append(bytes(batch))
        self.end += 1
        self.schedule_commit()
        return self.end - 1

    def batches(self) -> Iterator[Buffer]:
        yield from self.content

    def lose(self) -> None:
        super().lose()
        del self.content[self.end :]


class Entry(NamedTuple):
    """A record of a transaction (`tag`), or a marker (`commit` is not None)."""

    producer: ProducerIdentity
    tag: int
    sequence: int
    commit: bool | None = None


@dataclass
class ProducerState:
    epoch: int
    sequence: int = -1
    tags: list[int] = field(default_factory=list)
    """Transactions with records here since the last marker."""


class Partition(Durable):
    """A partition with Kafka's checks. Calls `ended` for every marker."""

    def __init__(
        self,
        name: TopicPartition,
        loop: VirtualLoop,
        delay: Callable[[], float],
        ended: Callable[[TopicPartition, list[int], bool], None],
    ) -> None:
        super().__init__(loop, delay)
        self.name = name
        self.entries: list[Entry] = []
        self.producers: dict[int, ProducerState] = {}
        self.guards: dict[int, object] = {}
        self.refusal: ErrorCode | None = None
        self._ended = ended

    def needs_verification(self, producer: ProducerIdentity) -> object | None:
        """Return the guard for `append` after a verification, or None if the transaction is already open."""
        if self._is_open(producer):
            return None
        return self.guards.setdefault(producer.producer_id, object())

    def _is_open(self, producer: ProducerIdentity) -> bool:
        state = self.producers.get(producer.producer_id)
        return state is not None and bool(state.tags) and state.epoch == producer.epoch

    def contains_open(self, entry: Entry) -> bool:
        """Return True if the log has a record of the entry's transaction that no marker follows."""
        state = self.producers.get(entry.producer.producer_id)
        return state is not None and entry.tag in state.tags

    def append(self, entry: Entry, guard: object | None) -> bool:
        """Append a record and return False if it is a duplicate. Raises KafkaError."""
        producer_id, epoch = entry.producer
        state = self.producers.get(producer_id)
        if state is not None and epoch < state.epoch:
            raise KafkaError(ErrorCode.invalid_producer_epoch)
        if state is not None and epoch == state.epoch and entry.sequence <= state.sequence:
            return False
        if not self._is_open(entry.producer) and self.guards.get(producer_id) is not guard:
            raise KafkaError(ErrorCode.invalid_txn_state)
        self._add(entry)
        return True

    def mark(self, markers: WriteMarkers) -> Any:
        if self.refusal is not None:
            raise KafkaError(self.refusal)
        producer_id, epoch = markers.producer
        state = self.producers.get(producer_id)
        if state is not None and epoch < state.epoch:
            raise KafkaError(ErrorCode.invalid_producer_epoch)
        tags = [] if state is None else list(state.tags)
        self._add(Entry(markers.producer, -1, -1, markers.commit))
        self._ended(self.name, tags, markers.commit)
        return self.committed()

    def lose(self) -> None:
        super().lose()
        kept = self.entries[: self.end]
        self.entries, self.producers, self.guards = [], {}, {}
        for entry in kept:
            self._replay(entry)

    def _add(self, entry: Entry) -> None:
        self._replay(entry)
        self.end += 1
        self.schedule_commit()

    def _replay(self, entry: Entry) -> None:
        self.entries.append(entry)
        producer_id, epoch = entry.producer
        state = self.producers.setdefault(producer_id, ProducerState(epoch))
        if epoch > state.epoch:
            state.epoch, state.sequence = epoch, -1
        self.guards.pop(producer_id, None)
        if entry.commit is not None:
            state.tags = []
        else:
            state.sequence = entry.sequence
            if entry.tag not in state.tags:
                state.tags.append(entry.tag)
