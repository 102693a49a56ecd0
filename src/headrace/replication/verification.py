"""Verify with the coordinator that a transaction is open before its first batch is appended (KIP-890).

Otherwise a delayed batch could begin a transaction that no marker ever ends.
"""

from collections.abc import Awaitable, Mapping, Sequence
from typing import Final, Protocol, TypeAlias

from headrace.errors import ErrorCode
from headrace.types import TopicPartition


class VerificationGuard:
    """A producer's attempt to begin a transaction in a partition; valid until a marker or the first batch.

    Batches must not overtake the one with `lowest_sequence`. With `begins_at_zero` (transaction version 2), an unknown
    producer must begin with sequence 0. `since_ms` is the time of the first attempt.
    """

    __slots__ = ("begins_at_zero", "epoch", "lowest_sequence", "since_ms")

    def __init__(self, epoch: int, sequence: int, *, begins_at_zero: bool, since_ms: int) -> None:
        self.epoch = epoch
        self.lowest_sequence = sequence
        self.begins_at_zero = begins_at_zero
        self.since_ms = since_ms

    def add_attempt(self, epoch: int, sequence: int) -> None:
        """Account for another batch that needs this verification."""
        if epoch > self.epoch:
            self.epoch = epoch
            self.lowest_sequence = sequence
        elif epoch == self.epoch and sequence < self.lowest_sequence:
            self.lowest_sequence = sequence


UNVERIFIED: Final = VerificationGuard(-1, -1, begins_at_zero=False, since_ms=0)
"""Guard for appends without verification (`transaction.partition.verification.enable=false`)."""

Verified: TypeAlias = Mapping[TopicPartition, ErrorCode]
"""Partition to error; a partition without one, or with `none`, is in the transaction."""


class TransactionVerifier(Protocol):
    """The transaction coordinator, for leaders of partitions."""

    def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        adds: bool,
        client: str,
    ) -> Verified | Awaitable[Verified]:
        """Check that the partitions are in the producer's open transaction; with `adds`, add missing ones.

        `client` is the sender of the request, for the log. Does not raise. An awaitable result always completes, even
        if the broker stops.
        """
