"""Decisions about transactional ids: requests go in; records, effects and the reply come out (KIP-98, KIP-890).

Pure and stateless: every function gets the id's metadata and the time. PREPARE_COMMIT or PREPARE_ABORT decides
irrevocably how a transaction ends. Its markers are effects; after all of them, `complete` writes the last record.
While a transaction is prepared, requests get CONCURRENT_TRANSACTIONS.

Epochs: with transaction version 1, only InitProducerId and timeouts raise them; with version 2, every commit and abort
does too, so that late requests of a transaction cannot affect the next one.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from headrace.coordinator.runtime.results import Result
from headrace.coordinator.transactions.states import (
    MAX_EPOCH,
    NEVER_MS,
    NO_EPOCH,
    NO_PRODUCER_ID,
    NO_TIME,
    NOBODY,
    ProducerIdentity,
    TransactionMetadata,
    TransactionState,
    is_exhausted,
)
from headrace.errors import ErrorCode, KafkaError
from headrace.types import TopicPartition

State: TypeAlias = TransactionState

EPOCH_BUMP_VERSION: Final = 2
"""The `transaction.version` from which every commit or abort raises the epoch."""
_ENDED: Final = frozenset({State.COMPLETE_COMMIT, State.COMPLETE_ABORT})


class NeedsProducerIdError(Exception):
    """The decision requires a fresh producer id: retry with one."""


@dataclass(frozen=True, slots=True)
class WriteMarkers:
    """Write the markers of a prepared transaction after its prepared state is committed."""

    producer: ProducerIdentity
    commit: bool
    partitions: frozenset[TopicPartition]
    client_version: int


def markers_of(metadata: TransactionMetadata) -> WriteMarkers:
    return WriteMarkers(
        metadata.identity, metadata.state is State.PREPARE_COMMIT, metadata.partitions, metadata.client_version
    )


def _moved(metadata: TransactionMetadata, now_ms: int, **changes: Any) -> TransactionMetadata:
    changes.setdefault("next_producer_id", NO_PRODUCER_ID)
    return metadata._replace(previous_producer_id=metadata.producer_id, last_update_ms=now_ms, **changes)


def _refused(code: ErrorCode, message: str = "") -> Result[Any]:
    return Result(None, error=KafkaError(code, message) if message else KafkaError(code))


# InitProducerId


def init_producer_id(
    name: str,
    metadata: TransactionMetadata | None,
    expected: ProducerIdentity | None,
    timeout_ms: int,
    *,
    version: int,
    fresh_id: int | None,
    now_ms: int,
) -> Result[ProducerIdentity]:
    """Assign a producer its id and an epoch that fences its predecessors; `expected` is its current identity (KIP-360).

    An open transaction is aborted first, and the producer has to retry. `version` is the `transaction.version`.
    Raises NeedsProducerIdError.
    """
    if metadata is None:
        metadata = TransactionMetadata(_require_id(fresh_id), NO_EPOCH, timeout_ms, last_update_ms=now_ms)
    if metadata.state.is_prepared:
        return _refused(ErrorCode.concurrent_transactions)
    if expected is not None and not _may_expect(metadata, expected):
        return _refused(ErrorCode.producer_fenced)
    if metadata.state is State.ONGOING:
        result = _fence(name, metadata, version=version, fresh_id=fresh_id, now_ms=now_ms)
        result.error = KafkaError(ErrorCode.concurrent_transactions)
        return result.answering(NOBODY)
    began = {
        "state": State.EMPTY,
        "partitions": frozenset[TopicPartition](),
        "start_ms": NO_TIME,
        "timeout_ms": timeout_ms,
    }
    if metadata.is_exhausted and (expected is None or expected.epoch == metadata.producer_epoch):
        last = NO_EPOCH if expected is None else metadata.producer_epoch
        changed = _moved(
            metadata, now_ms, producer_id=_require_id(fresh_id), producer_epoch=0, last_epoch=last, **began
        )
    elif expected is None or metadata.producer_epoch in (NO_EPOCH, expected.epoch):
        last = NO_EPOCH if expected is None else metadata.producer_epoch
        changed = _moved(metadata, now_ms, producer_epoch=metadata.producer_epoch + 1, last_epoch=last, **began)
    elif expected.epoch == metadata.last_epoch:
        changed = _moved(metadata, now_ms, **began)  # a retry after a lost reply
    else:
        return _refused(ErrorCode.producer_fenced)
    return Result(changed.identity, records=[(name, changed)])


def _require_id(fresh_id: int | None) -> int:
    if fresh_id is None:
        raise NeedsProducerIdError("no producer id is available")
    return fresh_id


def _may_expect(metadata: TransactionMetadata, expected: ProducerIdentity) -> bool:
    return (
        metadata.producer_epoch == NO_EPOCH
        or expected.producer_id == metadata.producer_id
        or (expected.producer_id == metadata.previous_producer_id and is_exhausted(expected.epoch))
    )


def _fence(
    name: str, metadata: TransactionMetadata, *, version: int, fresh_id: int | None, now_ms: int
) -> Result[ProducerIdentity]:
    """Abort an open transaction with an epoch that fences its producer."""
    raised = min(metadata.producer_epoch + 1, MAX_EPOCH)
    if version >= EPOCH_BUMP_VERSION:
        return _ended(name, metadata, commit=False, fresh_id=fresh_id, now_ms=now_ms)
    changed = _moved(
        metadata, now_ms, state=State.PREPARE_ABORT, producer_epoch=raised, last_epoch=NO_EPOCH, client_version=0
    )
    return Result(NOBODY, records=[(name, changed)], effects=[markers_of(changed)])


def _ended(
    name: str, metadata: TransactionMetadata, *, commit: bool, fresh_id: int | None, now_ms: int
) -> Result[ProducerIdentity]:
    """Prepare a commit or abort with the next epoch, or a new producer id after the last (transaction version 2)."""
    next_id = _require_id(fresh_id) if metadata.is_exhausted else NO_PRODUCER_ID
    changed = _moved(
        metadata,
        now_ms,
        state=State.PREPARE_COMMIT if commit else State.PREPARE_ABORT,
        producer_epoch=min(metadata.producer_epoch + 1, MAX_EPOCH),
        last_epoch=metadata.producer_epoch,
        next_producer_id=next_id,
        client_version=EPOCH_BUMP_VERSION,
        start_ms=metadata.start_ms if metadata.state is State.ONGOING else now_ms,
    )
    answer = changed.identity if next_id == NO_PRODUCER_ID else ProducerIdentity(next_id, 0)
    return Result(answer, records=[(name, changed)], effects=[markers_of(changed)])


# AddPartitionsToTxn


def add_partitions(
    name: str,
    metadata: TransactionMetadata | None,
    producer: ProducerIdentity,
    partitions: frozenset[TopicPartition],
    *,
    client_version: int,
    now_ms: int,
) -> Result[None]:
    """Add partitions to the producer's transaction; the first ones begin it."""
    if metadata is None:
        return _refused(ErrorCode.invalid_producer_id_mapping)
    if metadata.state.is_prepared:
        return _refused(ErrorCode.concurrent_transactions)
    if metadata.producer_id != producer.producer_id:
        return _refused(ErrorCode.invalid_producer_id_mapping)
    if metadata.producer_epoch != producer.epoch:
        return _refused(ErrorCode.producer_fenced)
    is_ongoing = metadata.state is State.ONGOING
    if is_ongoing and partitions <= metadata.partitions:
        return Result(None)
    changed = _moved(
        metadata,
        now_ms,
        state=State.ONGOING,
        partitions=metadata.partitions | partitions if is_ongoing else partitions,
        start_ms=metadata.start_ms if is_ongoing else now_ms,
        client_version=client_version,
    )
    return Result(None, records=[(name, changed)])


def verify_partitions(
    metadata: TransactionMetadata | None, producer: ProducerIdentity, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, ErrorCode]:
    """Check that partitions are in the producer's transaction (KIP-890, part 1). Return an error code per partition."""
    if metadata is None or metadata.producer_id != producer.producer_id:
        return dict.fromkeys(partitions, ErrorCode.invalid_producer_id_mapping)
    if metadata.producer_epoch != producer.epoch:
        return dict.fromkeys(partitions, ErrorCode.producer_fenced)
    if metadata.state.is_prepared:
        return dict.fromkeys(partitions, ErrorCode.concurrent_transactions)
    return {
        partition: ErrorCode.none if partition in metadata.partitions else ErrorCode.transaction_abortable
        for partition in partitions
    }


# EndTxn


def end(
    name: str,
    metadata: TransactionMetadata | None,
    producer: ProducerIdentity,
    *,
    commit: bool,
    client_version: int,
    fresh_id: int | None,
    now_ms: int,
) -> Result[ProducerIdentity]:
    """Prepare a transaction's commit or abort. With transaction version 2, return the producer's next id and epoch.

    Raises NeedsProducerIdError.
    """
    if metadata is None:
        return _refused(ErrorCode.invalid_producer_id_mapping)
    if client_version < EPOCH_BUMP_VERSION:
        return _end_with_version_1(name, metadata, producer, commit=commit, now_ms=now_ms)
    if metadata.state.is_prepared:
        return _refused(ErrorCode.concurrent_transactions)
    is_retry = _is_repeated(metadata, producer)
    if metadata.producer_id != producer.producer_id and not is_retry:
        return _refused(ErrorCode.invalid_producer_id_mapping)
    if metadata.producer_epoch != producer.epoch and not is_retry:
        return _refused(ErrorCode.producer_fenced)
    if is_retry:
        requested = State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT
        if metadata.state is requested:
            return Result(metadata.identity)
        return _refused(ErrorCode.invalid_txn_state)
    if commit and metadata.state is not State.ONGOING:
        return _refused(ErrorCode.invalid_txn_state)
    return _ended(name, metadata, commit=commit, fresh_id=fresh_id, now_ms=now_ms)


def _is_repeated(metadata: TransactionMetadata, producer: ProducerIdentity) -> bool:
    """Return True for a retry of EndTxn by a producer that has not received its new epoch."""
    if metadata.state not in _ENDED or metadata.client_version < EPOCH_BUMP_VERSION:
        return False
    if metadata.producer_id == producer.producer_id:
        return metadata.producer_epoch == producer.epoch + 1
    return (
        metadata.previous_producer_id == producer.producer_id
        and producer.epoch == MAX_EPOCH - 1
        and metadata.producer_epoch == 0
    )


def _end_with_version_1(
    name: str, metadata: TransactionMetadata, producer: ProducerIdentity, *, commit: bool, now_ms: int
) -> Result[ProducerIdentity]:
    if metadata.producer_id != producer.producer_id:
        return _refused(ErrorCode.invalid_producer_id_mapping)
    if metadata.producer_epoch != producer.epoch:
        return _refused(ErrorCode.producer_fenced)
    if metadata.state.is_prepared:
        return _refused(ErrorCode.concurrent_transactions)
    if metadata.state is State.ONGOING:
        state = State.PREPARE_COMMIT if commit else State.PREPARE_ABORT
        changed = _moved(metadata, now_ms, state=state, client_version=0)
        return Result(NOBODY, records=[(name, changed)], effects=[markers_of(changed)])
    if metadata.state is (State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT):
        return Result(NOBODY)
    return _refused(ErrorCode.invalid_txn_state)


def complete(name: str, metadata: TransactionMetadata, now_ms: int) -> Result[None]:
    """Complete a transaction after all markers are written."""
    changes: dict[str, Any] = {
        "state": State.COMPLETE_COMMIT if metadata.state is State.PREPARE_COMMIT else State.COMPLETE_ABORT,
        "partitions": frozenset[TopicPartition](),
    }
    if metadata.next_producer_id != NO_PRODUCER_ID and metadata.client_version >= EPOCH_BUMP_VERSION:
        changes |= {"producer_id": metadata.next_producer_id, "producer_epoch": 0}
    return Result(None, records=[(name, _moved(metadata, now_ms, **changes))])


# Time


def has_timed_out(metadata: TransactionMetadata, now_ms: int) -> bool:
    return (
        metadata.state is State.ONGOING
        and metadata.timeout_ms != NEVER_MS
        and metadata.start_ms + metadata.timeout_ms < now_ms
    )


def time_out(
    name: str, metadata: TransactionMetadata, *, version: int, fresh_id: int | None, now_ms: int
) -> Result[None]:
    """Abort a transaction that has timed out. Raises NeedsProducerIdError."""
    return _fence(name, metadata, version=version, fresh_id=fresh_id, now_ms=now_ms).answering(None)


def has_expired(metadata: TransactionMetadata, expiration_ms: int, now_ms: int) -> bool:
    """Return True if the id has been idle for so long that it may be removed."""
    is_idle = metadata.state is State.EMPTY or metadata.state in _ENDED
    return is_idle and metadata.last_update_ms <= now_ms - expiration_ms
