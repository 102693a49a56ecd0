"""Check batches and markers against a partition's producers and open transactions."""

from collections.abc import Mapping
from typing import TypeAlias

from headrace.errors import ErrorCode, KafkaError
from headrace.replication.producer_state import AppendedBatch, PackedProducer, ProducerState
from headrace.replication.verification import VerificationGuard
from headrace.storage.log.producers.open_transactions import OpenTransaction, OpenTransactions
from headrace.wire.batch import TRANSACTIONAL_FLAG, BatchHeader

Before: TypeAlias = dict[int, tuple[PackedProducer | None, OpenTransaction | None]]
"""Producer id to the producer's state and open transaction before a write."""


class ProducerChecks:
    """The producers of one partition and their transactions."""

    __slots__ = ("producers", "transactions")

    def __init__(self, producers: ProducerState, transactions: OpenTransactions) -> None:
        self.producers = producers
        self.transactions = transactions

    def check(self, header: BatchHeader, guard: VerificationGuard | None) -> AppendedBatch | None:
        """Return the appended batch that this one repeats; None if it may be appended.

        `guard` verifies a batch that begins a transaction. Raises KafkaError: out_of_order_sequence_number,
        invalid_producer_epoch, invalid_txn_state, invalid_record.
        """
        producer_id = header.producer_id
        if header.attributes & TRANSACTIONAL_FLAG:
            if producer_id < 0:
                raise KafkaError(ErrorCode.invalid_record, "a transactional batch needs a producer id")
            begin = self.transactions.begin_of(producer_id, header.producer_epoch)
            return self.producers.check_transactional(header, guard, begin=begin)
        earlier = self.producers.check(header)
        if earlier is None and self.transactions.first_offset is not None and producer_id in self.transactions:
            raise KafkaError(
                ErrorCode.invalid_txn_state,
                f"producer {producer_id} has an open transaction, and this batch is not part of it",
            )
        return earlier

    def check_own(self, header: BatchHeader, guard: VerificationGuard | None) -> None:
        """Check a transactional batch without sequence numbers, which the broker has built on the producer's behalf.

        Raises KafkaError: invalid_producer_epoch, invalid_txn_state.
        """
        is_open = self.transactions.is_open(header.producer_id, header.producer_epoch)
        self.producers.check_verified(header, guard, is_open=is_open)
        self.producers.check_epoch(header)

    def check_marker(
        self, producer_id: int, producer_epoch: int, coordinator_epoch: int, transaction_version: int
    ) -> None:
        """Check a marker. Raises KafkaError: invalid_producer_epoch, transaction_coordinator_fenced."""
        is_open = producer_id in self.transactions
        self.producers.check_marker(
            producer_id, producer_epoch, coordinator_epoch, transaction_version=transaction_version, is_open=is_open
        )

    def appended(self, header: BatchHeader, base_offset: int, last_offset: int) -> None:
        """Update the state with an appended data batch."""
        self.producers.update(header, base_offset, last_offset, header.max_timestamp)
        if header.attributes & TRANSACTIONAL_FLAG:
            self.transactions.add_at(header, base_offset)

    def note(self, producer_id: int, before: Before) -> None:
        """Save the producer's state and open transaction in `before`, unless they are already there."""
        if producer_id not in before:
            before[producer_id] = self.producers.copy_of(producer_id), self.transactions.copy_of(producer_id)

    def put_back(self, before: Mapping[int, tuple[PackedProducer | None, OpenTransaction | None]]) -> None:
        """Restore the states and open transactions that `note` has saved in `before`."""
        self.producers.put_back({producer_id: packed for producer_id, (packed, _) in before.items()})
        self.transactions.put_back({producer_id: begun for producer_id, (_, begun) in before.items()})
