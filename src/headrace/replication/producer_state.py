"""What a partition remembers of idempotent producers, to refuse gaps and to answer repeats with the first answer.

Pure: `check` decides about a batch, `update` takes an appended one into account; recovery replays `update` alone.
The rules are those of KIP-98: for each producer id its epoch and its last five batches are kept.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

from headrace.errors import ErrorCode, KafkaError
from headrace.storage.log.producers.producer_snapshot import ProducerEntry
from headrace.types import new_tuple
from headrace.wire.batch import NO_PRODUCER_ID, NO_SEQUENCE, BatchHeader

WINDOW: Final = 5
"""Batches remembered of each producer: as many as an idempotent client may have in flight on a connection."""
_SEQUENCE_MASK: Final = 0x7FFFFFFF


class AppendedBatch(NamedTuple):
    """One batch that stands in the log; `timestamp` in ms."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp: int


class Producer:
    """The state of one producer id."""

    __slots__ = ("batches", "epoch", "last_timestamp")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: deque[AppendedBatch] = deque(maxlen=WINDOW)
        self.last_timestamp = -1

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else -1


ProducerCopy: TypeAlias = tuple[int, tuple[AppendedBatch, ...], int]
"""A producer's epoch, batches and last timestamp: plain, for one is made with nearly every write."""


class ProducerState:
    """All producers of one partition."""

    __slots__ = ("_producers",)

    def __init__(self) -> None:
        self._producers: dict[int, Producer] = {}

    def __len__(self) -> int:
        return len(self._producers)

    def items(self) -> list[tuple[int, Producer]]:
        """`(producer id, state)` of every producer."""
        return list(self._producers.items())

    def check(self, header: BatchHeader) -> AppendedBatch | None:
        """The batch already in the log that `header` repeats, or None when it may be appended.

        Raises KafkaError: invalid_producer_epoch when a newer epoch of this producer has written,
        out_of_order_sequence_number when batches in between are missing.
        """
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return None  # nothing is known of it (new, or expired): any sequence is a beginning
        if header.producer_epoch < producer.epoch:
            raise KafkaError(
                ErrorCode.invalid_producer_epoch,
                f"producer {header.producer_id} writes with epoch {header.producer_epoch} after {producer.epoch}",
            )
        if header.producer_epoch > producer.epoch:
            if header.base_sequence != 0:
                raise self._out_of_order(header, "a new epoch begins with sequence 0")
            return None
        last = producer.batches[-1].last_sequence if producer.batches else -1
        if last < 0 or header.base_sequence == (last + 1) & _SEQUENCE_MASK:
            return None  # what comes next repeats nothing
        last_sequence = header.last_sequence
        for batch in producer.batches:
            if batch.first_sequence == header.base_sequence and batch.last_sequence == last_sequence:
                return batch
        raise self._out_of_order(header, f"the last was {last}")

    def update(self, header: BatchHeader, first_offset: int, last_offset: int, timestamp: int) -> None:
        """Take the batch now at `first_offset` to `last_offset` into account; `timestamp` is its largest, in ms."""
        producer = self._producers.get(header.producer_id)
        if producer is None or header.producer_epoch > producer.epoch:
            producer = self._producers[header.producer_id] = Producer(header.producer_epoch)
        first = header.base_sequence
        last = NO_SEQUENCE if first < 0 else (first + header.last_offset_delta) & _SEQUENCE_MASK
        producer.batches.append(new_tuple(AppendedBatch, (first, last, first_offset, last_offset, timestamp)))
        producer.last_timestamp = timestamp

    def copy_of(self, producer_id: int) -> ProducerCopy | None:
        """The state of one producer, for `put_back`; None for one that is not known."""
        producer = self._producers.get(producer_id)
        if producer is None:
            return None
        return producer.epoch, tuple(producer.batches), producer.last_timestamp

    def put_back(self, before: Mapping[int, ProducerCopy | None]) -> None:
        """Forget what these producers have done since `copy_of` told their state."""
        for producer_id, copy in before.items():
            if copy is None:
                self._producers.pop(producer_id, None)
                continue
            epoch, batches, last_timestamp = copy
            producer = self._producers[producer_id] = Producer(epoch)
            producer.batches.extend(batches)
            producer.last_timestamp = last_timestamp

    def replay(self, header: BatchHeader) -> None:
        """Take a batch met in the log during recovery into account."""
        if header.producer_id != NO_PRODUCER_ID and not header.is_control:
            self.update(header, header.base_offset, header.last_offset, header.max_timestamp)

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Forget producers that wrote nothing for `expiration_ms` (`producer.id.expiration.ms`)."""
        for producer_id, producer in self.items():
            if now_ms - producer.last_timestamp >= expiration_ms:
                del self._producers[producer_id]

    def clear(self) -> None:
        """Forget everybody, before a replay from the start."""
        self._producers.clear()

    def snapshot(self) -> list[ProducerEntry]:
        """The state as Kafka's snapshot file has it: the last batch of each producer."""
        return [
            ProducerEntry(
                producer_id=producer_id,
                epoch=producer.epoch,
                last_sequence=producer.last_sequence,
                last_offset=producer.batches[-1].last_offset if producer.batches else -1,
                offset_delta=(producer.batches[-1].last_offset - producer.batches[-1].first_offset)
                if producer.batches
                else 0,
                timestamp=producer.last_timestamp,
                coordinator_epoch=-1,
                current_txn_first_offset=-1,
            )
            for producer_id, producer in self._producers.items()
        ]

    def restore(self, entries: list[ProducerEntry]) -> None:
        """Begin from a snapshot."""
        for entry in entries:
            producer = Producer(entry.epoch)
            producer.last_timestamp = entry.timestamp
            if entry.last_sequence >= 0:
                first_sequence = (entry.last_sequence - entry.offset_delta) & _SEQUENCE_MASK
                producer.batches.append(
                    AppendedBatch(
                        first_sequence,
                        entry.last_sequence,
                        entry.last_offset - entry.offset_delta,
                        entry.last_offset,
                        entry.timestamp,
                    )
                )
            self._producers[entry.producer_id] = producer

    def recall(self, headers: Iterable[BatchHeader]) -> None:
        """Fill the windows with the batches before a snapshot that was restored, which has only each producer's last.

        A client whose answers were lost with a connection sends up to five of its latest batches again.
        """
        windows: dict[tuple[int, int], deque[AppendedBatch]] = {}
        for header in headers:
            if header.producer_id == NO_PRODUCER_ID or header.is_control:
                continue
            key = header.producer_id, header.producer_epoch
            batches = windows.setdefault(key, deque(maxlen=WINDOW))
            batches.append(
                AppendedBatch(
                    header.base_sequence,
                    header.last_sequence,
                    header.base_offset,
                    header.last_offset,
                    header.max_timestamp,
                )
            )
        for producer_id, producer in self._producers.items():
            batches = windows.get((producer_id, producer.epoch), deque())
            if batches and producer.batches and batches[-1].last_offset == producer.batches[-1].last_offset:
                producer.batches = batches

    @staticmethod
    def _out_of_order(header: BatchHeader, why: str) -> KafkaError:
        return KafkaError(
            ErrorCode.out_of_order_sequence_number,
            f"producer {header.producer_id} epoch {header.producer_epoch} sends sequence {header.base_sequence}: {why}",
        )
