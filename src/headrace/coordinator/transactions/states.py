"""The states of transactional ids, and their metadata. Pure."""

from enum import IntEnum
from typing import Final, NamedTuple

from headrace.types import TopicPartition

NO_PRODUCER_ID: Final = -1
NO_EPOCH: Final = -1
MAX_EPOCH: Final = 2**15 - 1
NO_TIME: Final = -1
NEVER_MS: Final = 2**31 - 1
"""The timeout of transactions with two-phase commit (KIP-939), which never time out."""


class TransactionState(IntEnum):
    """States of a transactional id, with their numbers in records."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def kafka_name(self) -> str:
        """The name in DescribeTransactions and ListTransactions."""
        return _NAMES[self]

    @property
    def is_prepared(self) -> bool:
        """True if commit or abort is decided, and markers are being written."""
        cls = TransactionState
        return self is cls.PREPARE_COMMIT or self is cls.PREPARE_ABORT or self is cls.PREPARE_EPOCH_FENCE


_NAMES: Final = {state: "".join(part.capitalize() for part in state.name.split("_")) for state in TransactionState}
STATE_OF_NAME: Final = {name: state for state, name in _NAMES.items()}


class ProducerIdentity(NamedTuple):
    """A producer id and its epoch."""

    producer_id: int
    epoch: int


NOBODY: Final = ProducerIdentity(NO_PRODUCER_ID, NO_EPOCH)


class TransactionMetadata(NamedTuple):
    """The state of a transactional id; times in ms."""

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = NO_TIME
    last_update_ms: int = NO_TIME
    client_version: int = 0
    """The `transaction.version` that the client used for its latest request."""
    last_epoch: int = NO_EPOCH
    """The previous epoch, if the producer requested the new one: a request with it is a retry. Not in the log."""
    previous_producer_id: int = NO_PRODUCER_ID
    """The producer id before the latest change."""
    next_producer_id: int = NO_PRODUCER_ID
    """The producer id after this transaction, if the current one has no epochs left."""

    @property
    def identity(self) -> ProducerIdentity:
        return ProducerIdentity(self.producer_id, self.producer_epoch)

    @property
    def is_exhausted(self) -> bool:
        """True if no epoch is left: the last one is reserved for fencing."""
        return is_exhausted(self.producer_epoch)


def is_exhausted(epoch: int) -> bool:
    return epoch >= MAX_EPOCH - 1
