"""Records of `__transaction_state`, as Kafka's transaction coordinator writes them. Pure.

Layouts: `transaction-coordinator/src/main/resources/common/message` of Kafka; from version 1 on values are flexible.
"""

from enum import IntEnum
from typing import NamedTuple

from headrace.coordinator.runtime.record_reader import RecordReader
from headrace.errors import ErrorCode, KafkaError


class TransactionState(IntEnum):
    """States of a transactional id, with the numbers that the records carry."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7


class TransactionMetadata(NamedTuple):
    """What the last record of a transactional id says; times in ms."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    start_ms: int


def decode_transaction(key: bytes, value: bytes | None) -> tuple[str, TransactionMetadata | None] | None:
    """A transactional id and its metadata, None where the record takes that away; None for another kind of record.

    Raises KafkaError: corrupt_message, unsupported_version.
    """
    reader = RecordReader.of_key(key)
    if reader.version != 0:
        return None
    transactional_id = reader.string()
    if value is None:
        return transactional_id, None
    version = int.from_bytes(value[:2], "big", signed=True)
    if version not in (0, 1):
        raise KafkaError(
            ErrorCode.unsupported_version, f"the state of transactional id {transactional_id} has version {version}"
        )
    reader = RecordReader(value, flexible=version > 0)
    producer_id = reader.int64()
    producer_epoch = int.from_bytes(reader.take(2), "big", signed=True)
    timeout_ms, state = reader.int32(), reader.int8()
    for _ in range(reader.array_length()):
        reader.string()
        reader.take(4 * reader.array_length())
        reader.tagged_fields()
    reader.int64()  # the last update
    start_ms = reader.int64()
    try:
        known = TransactionState(state)
    except ValueError:
        raise KafkaError(
            ErrorCode.unsupported_version, f"transactional id {transactional_id} is in the unknown state {state}"
        ) from None
    return transactional_id, TransactionMetadata(
        transactional_id, producer_id, producer_epoch, timeout_ms, known, start_ms
    )
