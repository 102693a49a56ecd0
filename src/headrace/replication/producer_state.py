"""The state of idempotent producers in a partition, which detects gaps and duplicates.

Pure: `check` validates a batch, `update` applies an appended one; recovery only replays `update`. As in KIP-98 and
KIP-890, the state of a producer id is its epoch and its last five batches.
"""

from collections.abc import Container, Mapping
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

from headrace.errors import ErrorCode, KafkaError
from headrace.replication.verification import UNVERIFIED, VerificationGuard
from headrace.storage.log.producers.producer_snapshot import ENTRY, ProducerEntry
from headrace.wire.batch import NO_PRODUCER_ID, NO_SEQUENCE, TRANSACTIONAL_FLAG, BatchHeader

WINDOW: Final = 5
"""Batches remembered per producer: as many as an idempotent client may have in flight."""
_SEQUENCE_MASK: Final = 0x7FFFFFFF

PackedProducer: TypeAlias = bytes
"""A producer as its snapshot entry, followed by the batches before its last one, newest first.

A topic may have 100,000 producers; objects would take six times the memory.
"""
_BATCH: Final = Struct(">iqiq")
"""Last sequence, last offset, offset delta, timestamp, in the layout of a snapshot entry."""
_LAST_BATCH: Final = slice(10, 10 + _BATCH.size)
_EARLIER: Final = slice(ENTRY.size, ENTRY.size + (WINDOW - 2) * _BATCH.size)
"""The earlier batches that are kept after an append, besides the last one."""
_EPOCH_AND_SEQUENCE: Final = Struct(">8xhi")
_EPOCHS: Final = Struct(">8xh24xi")
"""The producer's epoch and its coordinator's epoch."""
_TIMESTAMP: Final = Struct(">26xq")
_MAX_EPOCH: Final = 2**15 - 1
_VERSION_2: Final = 2
"""The `transaction.version` from which markers raise the producer's epoch."""


class AppendedBatch(NamedTuple):
    """A batch in the log; `timestamp` in ms."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp: int


class Producer(NamedTuple):
    """The state of a producer id; `batches` oldest first, `last_timestamp` in ms."""

    epoch: int
    batches: tuple[AppendedBatch, ...]
    last_timestamp: int

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else -1


class ProducerState:
    """All producers of one partition."""

    __slots__ = ("_producers", "_verifications")

    def __init__(self) -> None:
        self._producers: dict[int, PackedProducer] = {}
        self._verifications: dict[int, VerificationGuard] = {}

    def __len__(self) -> int:
        return len(self._producers)

    def items(self) -> list[tuple[int, Producer]]:
        """Return `(producer id, state)` of all producers."""
        return [(producer_id, _unpacked(packed)) for producer_id, packed in self._producers.items()]

    @property
    def packed(self) -> Mapping[int, PackedProducer]:
        """The producers by id, for a snapshot."""
        return self._producers

    def check(self, header: BatchHeader) -> AppendedBatch | None:
        """Return the appended batch that `header` repeats; None if it may be appended.

        Raises KafkaError: invalid_producer_epoch for an older epoch, out_of_order_sequence_number for a wrong sequence.
        """
        packed = self._producers.get(header.producer_id)
        if self._verifications:
            self._check_order(header, packed)
        if packed is None:
            return None  # unknown (new or expired): any sequence is valid
        epoch, last = _EPOCH_AND_SEQUENCE.unpack_from(packed)
        if header.producer_epoch < epoch:
            raise _fenced(header, epoch)
        if header.producer_epoch > epoch:
            if header.base_sequence != 0:
                raise _out_of_order(header, "a new epoch must begin with sequence 0")
            return None
        if header.base_sequence == (last + 1) & _SEQUENCE_MASK:
            return None  # next in sequence
        repeated = _repeated(packed, header)
        if repeated is None:
            raise _out_of_order(header, f"the last sequence was {last}")
        return repeated

    # Transactions

    def start_verification(
        self, producer_id: int, epoch: int, sequence: int, *, begins_at_zero: bool, now_ms: int
    ) -> VerificationGuard:
        """Begin or continue to verify a transaction. Raises KafkaError(invalid_producer_epoch)."""
        packed = self._producers.get(producer_id)
        if packed is not None:
            known, _ = _EPOCHS.unpack_from(packed)
            if epoch < known:
                raise KafkaError(
                    ErrorCode.invalid_producer_epoch,
                    f"producer {producer_id} has epoch {known}, but the request has epoch {epoch}",
                )
        guard = self._verifications.get(producer_id)
        if guard is None:
            guard = VerificationGuard(epoch, sequence, begins_at_zero=begins_at_zero, since_ms=now_ms)
            self._verifications[producer_id] = guard
        else:
            guard.add_attempt(epoch, sequence)
        return guard

    def check_transactional(
        self, header: BatchHeader, guard: VerificationGuard | None, *, begin: int | None
    ) -> AppendedBatch | None:
        """Like `check`, for a transactional batch; `begin` is its transaction's first offset, None if it is not open.

        Also raises KafkaError: invalid_txn_state if it begins a transaction that `guard` does not verify;
        out_of_order_sequence_number if it repeats a batch of an ended transaction. Such a batch is not a retry, because
        producers wait for their batches before they commit. librdkafka reuses the sequence numbers of unanswered
        batches after an abort; otherwise its new records would be acknowledged as duplicates of aborted ones, and lost.
        """
        packed = self._producers.get(header.producer_id)
        if packed is not None and not _is_next(packed, header):
            repeated = _repeated(packed, header)
            if repeated is not None:
                if begin is None or repeated.first_offset < begin:
                    raise _out_of_order(header, "it belongs to a transaction that has ended")
                return repeated
        self.check_verified(header, guard, is_open=begin is not None)
        return self.check(header)

    def _check_order(self, header: BatchHeader, packed: PackedProducer | None) -> None:
        """Reject a batch that overtakes one that is being verified.

        Raises KafkaError(out_of_order_sequence_number).
        """
        guard = self._verifications.get(header.producer_id)
        if guard is None:
            return
        overtakes = header.base_sequence > guard.lowest_sequence
        if not overtakes and not (guard.begins_at_zero and header.base_sequence):
            return
        if packed is not None and (
            header.producer_epoch < _EPOCHS.unpack_from(packed)[0] or _repeated(packed, header) is not None
        ):
            return
        if guard.begins_at_zero and header.base_sequence and (packed is None or not _unpacked(packed).batches):
            raise _out_of_order(header, "an unknown producer must begin with sequence 0")
        if overtakes:
            raise _out_of_order(header, f"sequence {guard.lowest_sequence} must be appended first")

    def check_verified(self, header: BatchHeader, guard: VerificationGuard | None, *, is_open: bool) -> None:
        """Reject a transaction that begins without a valid guard.

        Raises KafkaError(invalid_txn_state).
        """
        if is_open or guard is UNVERIFIED:
            return
        if guard is None or guard is not self._verifications.get(header.producer_id):
            raise KafkaError(
                ErrorCode.invalid_txn_state, f"producer {header.producer_id} has no ongoing transaction for this batch"
            )

    def check_epoch(self, header: BatchHeader) -> None:
        """Check a batch without sequence numbers. Raises KafkaError(invalid_producer_epoch)."""
        packed = self._producers.get(header.producer_id)
        if packed is not None and header.producer_epoch < _EPOCHS.unpack_from(packed)[0]:
            raise _fenced(header, _EPOCHS.unpack_from(packed)[0])

    def check_marker(
        self, producer_id: int, epoch: int, coordinator_epoch: int, *, transaction_version: int, is_open: bool
    ) -> None:
        """Check the epochs of a marker. Raises KafkaError: invalid_producer_epoch, transaction_coordinator_fenced.

        A marker of transaction version 2 has a higher epoch than the producer, unless it is a duplicate.
        """
        packed = self._producers.get(producer_id)
        if packed is None:
            return
        known, known_coordinator = _EPOCHS.unpack_from(packed)
        repeats = epoch == known and (not is_open or epoch == _MAX_EPOCH)
        if epoch < known or (transaction_version >= _VERSION_2 and epoch == known and not repeats):
            bound = "above" if transaction_version >= _VERSION_2 else "at least"
            raise KafkaError(
                ErrorCode.invalid_producer_epoch,
                f"the marker's epoch {epoch} must be {bound} {known}, the epoch of producer {producer_id}",
            )
        if coordinator_epoch < known_coordinator:
            raise KafkaError(
                ErrorCode.transaction_coordinator_fenced,
                f"the marker has coordinator epoch {coordinator_epoch}, but an earlier marker has {known_coordinator}",
            )

    def end_transaction(self, header: BatchHeader, coordinator_epoch: int) -> None:
        producer_id, epoch = header.producer_id, header.producer_epoch
        self._verifications.pop(producer_id, None)
        packed = self._producers.get(producer_id)
        if packed is None or _EPOCHS.unpack_from(packed)[0] != epoch:
            self._producers[producer_id] = ENTRY.pack(
                producer_id, epoch, -1, -1, 0, header.max_timestamp, coordinator_epoch, -1
            )
            return
        _, _, last, last_offset, delta, _, _, _ = ENTRY.unpack_from(packed)
        self._producers[producer_id] = (
            ENTRY.pack(producer_id, epoch, last, last_offset, delta, header.max_timestamp, coordinator_epoch, -1)
            + packed[ENTRY.size :]
        )

    def update(self, header: BatchHeader, first_offset: int, last_offset: int, timestamp: int) -> None:
        """Apply a batch that was appended at these offsets; `timestamp` is its maximum, in ms."""
        producer_id, epoch = header.producer_id, header.producer_epoch
        earlier = b""
        coordinator_epoch = -1
        packed = self._producers.get(producer_id)
        if packed is not None:
            known_epoch, coordinator_epoch = _EPOCHS.unpack_from(packed)
            if epoch <= known_epoch:
                epoch = known_epoch
                earlier = packed[_LAST_BATCH] + packed[_EARLIER]
        first = header.base_sequence
        last = NO_SEQUENCE if first < 0 else (first + header.last_offset_delta) & _SEQUENCE_MASK
        self._producers[producer_id] = (
            ENTRY.pack(
                producer_id, epoch, last, last_offset, last_offset - first_offset, timestamp, coordinator_epoch, -1
            )
            + earlier
        )
        if self._verifications and header.attributes & TRANSACTIONAL_FLAG:
            self._verifications.pop(producer_id, None)

    def copy_of(self, producer_id: int) -> PackedProducer | None:
        """Return the state of a producer for `put_back`; None if it is unknown."""
        return self._producers.get(producer_id)

    def put_back(self, before: Mapping[int, PackedProducer | None]) -> None:
        """Restore the states that `copy_of` returned."""
        for producer_id, packed in before.items():
            if packed is None:
                self._producers.pop(producer_id, None)
            else:
                self._producers[producer_id] = packed

    def replay(self, header: BatchHeader) -> None:
        """Apply a batch in the log during recovery."""
        if header.producer_id != NO_PRODUCER_ID and not header.is_control:
            self.update(header, header.base_offset, header.last_offset, header.max_timestamp)

    def expire(self, now_ms: int, expiration_ms: int, keep: Container[int] = ()) -> None:
        """Remove producers idle for `expiration_ms`, except those in `keep`, and verification guards of that age."""
        oldest = now_ms - expiration_ms
        idle = [
            producer_id
            for producer_id, packed in self._producers.items()
            if _TIMESTAMP.unpack_from(packed)[0] <= oldest and producer_id not in keep
        ]
        for producer_id in idle:
            del self._producers[producer_id]
        for producer_id in [known_id for known_id, guard in self._verifications.items() if guard.since_ms <= oldest]:
            del self._verifications[producer_id]

    def clear(self) -> None:
        """Remove all producers, before a replay from the start."""
        self._producers.clear()

    def snapshot(self) -> list[ProducerEntry]:
        """Return the entries of a snapshot file, with the last batch of every producer."""
        return [ProducerEntry.unpacked(packed) for packed in self._producers.values()]

    def restore(self, entries: list[ProducerEntry]) -> None:
        for entry in entries:
            self._producers[entry.producer_id] = ENTRY.pack(
                entry.producer_id,
                entry.epoch,
                entry.last_sequence,
                entry.last_offset,
                entry.offset_delta,
                entry.timestamp,
                entry.coordinator_epoch,
                -1,
            )

    def recall(self, found: "ProducerState") -> None:
        """Add the batches in `found`, from before a restored snapshot, which has only the last batch of every producer.

        A client retries up to five batches after it loses its connection.
        """
        for producer_id, packed in found._producers.items():
            known = self._producers.get(producer_id)
            if known is not None and _identity(packed) == _identity(known):
                self._producers[producer_id] = known[: ENTRY.size] + packed[ENTRY.size :]


def _is_next(packed: PackedProducer, header: BatchHeader) -> bool:
    """Return True for a batch with a higher epoch or the next sequence number, which cannot be a repeat."""
    epoch, last = _EPOCH_AND_SEQUENCE.unpack_from(packed)
    known: int = epoch
    return header.producer_epoch > known or (
        header.producer_epoch == known and header.base_sequence == (last + 1) & _SEQUENCE_MASK
    )


def _repeated(packed: PackedProducer, header: BatchHeader) -> AppendedBatch | None:
    """Return the remembered batch that `header` repeats."""
    producer = _unpacked(packed)
    if producer.epoch != header.producer_epoch:
        return None
    last_sequence = header.last_sequence
    for batch in producer.batches:
        if batch.first_sequence == header.base_sequence and batch.last_sequence == last_sequence:
            return batch
    return None


def _fenced(header: BatchHeader, epoch: int) -> KafkaError:
    return KafkaError(
        ErrorCode.invalid_producer_epoch,
        f"producer {header.producer_id} has epoch {epoch}, but the batch has epoch {header.producer_epoch}",
    )


def _out_of_order(header: BatchHeader, reason: str) -> KafkaError:
    return KafkaError(
        ErrorCode.out_of_order_sequence_number,
        f"producer {header.producer_id} epoch {header.producer_epoch} sent sequence {header.base_sequence}: {reason}",
    )


def _identity(packed: PackedProducer) -> tuple[int, int]:
    """Return the epoch and last offset."""
    _, epoch, _, last_offset, _, _, _, _ = ENTRY.unpack_from(packed)
    return epoch, last_offset


def _unpacked(packed: PackedProducer) -> Producer:
    _, epoch, _, last_offset, _, timestamp, _, _ = ENTRY.unpack_from(packed)
    if last_offset < 0:  # only its epoch is known
        return Producer(epoch, (), timestamp)
    newest_first = [_batch(*fields) for fields in _BATCH.iter_unpack(packed[_LAST_BATCH] + packed[ENTRY.size :])]
    return Producer(epoch, tuple(reversed(newest_first)), timestamp)


def _batch(last_sequence: int, last_offset: int, offset_delta: int, timestamp: int) -> AppendedBatch:
    first_sequence = NO_SEQUENCE if last_sequence < 0 else (last_sequence - offset_delta) & _SEQUENCE_MASK
    return AppendedBatch(first_sequence, last_sequence, last_offset - offset_delta, last_offset, timestamp)
