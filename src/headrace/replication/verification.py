"""Verification of transactional batches (KIP-890): a transaction is known to its coordinator before its first batch.

Without it a batch that was delayed on its way could begin a transaction that no marker ever ends.
"""

from collections.abc import Awaitable, Mapping, Sequence
from typing import Final, Protocol, TypeAlias

from headrace.errors import ErrorCode
from headrace.types import TopicPartition


class VerificationGuard:
    """One attempt of a producer to begin a transaction in a partition; valid until a marker, or the first batch.

    `lowest_sequence` is the first sequence that was tried: later batches must not overtake it. With `begins_at_zero`
    (version 2) a producer that the partition does not know begins with sequence 0. `since_ms` is when it began.
    """

    __slots__ = ("begins_at_zero", "epoch", "lowest_sequence", "since_ms")

    def __init__(self, epoch: int, sequence: int, *, begins_at_zero: bool, since_ms: int) -> None:
        self.epoch = epoch
        self.lowest_sequence = sequence
        self.begins_at_zero = begins_at_zero
        self.since_ms = since_ms

    def tried(self, epoch: int, sequence: int) -> None:
        """Another batch needs the same verification."""
        if epoch > self.epoch:
            self.epoch = epoch
            self.lowest_sequence = sequence
        elif epoch == self.epoch and sequence < self.lowest_sequence:
            self.lowest_sequence = sequence


UNVERIFIED: Final = VerificationGuard(-1, -1, begins_at_zero=False, since_ms=0)
"""For appends while `transaction.partition.verification.enable` is off."""

Verified: TypeAlias = Mapping[TopicPartition, ErrorCode]
"""The coordinator's error for each partition; a partition without one, or with `none`, is in the transaction."""


class TransactionVerifier(Protocol):
    """The coordinator of transactions, as the leaders of partitions see it."""

    def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        adds: bool,
    ) -> Verified | Awaitable[Verified]:
        """Compare the partitions with those of the producer's open transaction; with `adds`, add those it lacks.

        Does not raise. What it returns for later is always done in the end, when the broker stops too.
        """
