"""Records of `__transaction_state`, byte for byte as Kafka's transaction coordinator writes them. Pure.

Layouts: `transaction-coordinator/src/main/resources/common/message` in Kafka. Values of version 0 are plain; version 1,
written from `transaction.version` 1 on, is flexible.
"""

import struct
from typing import Final

from headrace.coordinator.runtime.record_reader import RecordReader
from headrace.coordinator.transactions.states import (
    MAX_EPOCH,
    NO_EPOCH,
    NO_PRODUCER_ID,
    TransactionMetadata,
    TransactionState,
)
from headrace.errors import ErrorCode, KafkaError
from headrace.types import TopicPartition
from headrace.wire.varint import put_unsigned_varint

_KEY_HEAD: Final = struct.Struct(">hh")
_HEAD: Final = struct.Struct(">hqhib")
"""Version, producer id, epoch, timeout, state."""
_TIMES: Final = struct.Struct(">qq")
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_PREVIOUS_ID_TAG, _NEXT_ID_TAG, _CLIENT_VERSION_TAG = 0, 1, 2


def encode_key(transactional_id: str) -> bytes:
    name = transactional_id.encode()
    return _KEY_HEAD.pack(0, len(name)) + name


def encode_value(metadata: TransactionMetadata, *, flexible: bool) -> bytes:
    """Encode the metadata in version 1, or in version 0, which has no tagged fields."""
    out = bytearray(
        _HEAD.pack(
            1 if flexible else 0,
            metadata.producer_id,
            metadata.producer_epoch,
            metadata.timeout_ms,
            metadata.state,
        )
    )
    _put_partitions(out, metadata, flexible=flexible)
    out += _TIMES.pack(metadata.last_update_ms, metadata.start_ms)
    if flexible:
        _put_tags(out, metadata)
    return bytes(out)


def _put_partitions(out: bytearray, metadata: TransactionMetadata, *, flexible: bool) -> None:
    if metadata.state is TransactionState.EMPTY:
        out += b"\x00" if flexible else b"\xff\xff\xff\xff"
        return
    by_topic: dict[str, list[int]] = {}
    for topic, index in sorted(metadata.partitions):
        by_topic.setdefault(topic, []).append(index)
    _put_count(out, len(by_topic), flexible=flexible)
    for topic, indexes in by_topic.items():
        name = topic.encode()
        if flexible:
            put_unsigned_varint(out, len(name) + 1)
        else:
            out += _INT16.pack(len(name))
        out += name
        _put_count(out, len(indexes), flexible=flexible)
        out += struct.pack(f">{len(indexes)}i", *indexes)
        if flexible:
            out.append(0)


def _put_count(out: bytearray, count: int, *, flexible: bool) -> None:
    if flexible:
        put_unsigned_varint(out, count + 1)
    else:
        out += _INT32.pack(count)


def _put_tags(out: bytearray, metadata: TransactionMetadata) -> None:
    tags: list[tuple[int, bytes]] = []
    if metadata.previous_producer_id != NO_PRODUCER_ID:
        tags.append((_PREVIOUS_ID_TAG, _INT64.pack(metadata.previous_producer_id)))
    if metadata.next_producer_id != NO_PRODUCER_ID:
        tags.append((_NEXT_ID_TAG, _INT64.pack(metadata.next_producer_id)))
    if metadata.client_version:
        tags.append((_CLIENT_VERSION_TAG, _INT16.pack(metadata.client_version)))
    put_unsigned_varint(out, len(tags))
    for tag, content in tags:
        put_unsigned_varint(out, tag)
        put_unsigned_varint(out, len(content))
        out += content


def decode_key(key: bytes) -> str | None:
    """Return the transactional id; None for a record of another type."""
    reader = RecordReader.of_key(key)
    return reader.string() if reader.version == 0 else None


def decode_value(transactional_id: str, value: bytes) -> TransactionMetadata | None:
    """Return the metadata of an id; None if it is dead.

    Raises KafkaError: corrupt_message, unsupported_version.
    """
    version = int.from_bytes(value[:2], "big", signed=True)
    if version not in (0, 1):
        raise KafkaError(
            ErrorCode.unsupported_version,
            f"the record of transactional id {transactional_id} has the unknown version {version}",
        )
    reader = RecordReader(value, flexible=version > 0)
    producer_id = reader.int64()
    epoch = int.from_bytes(reader.take(2), "big", signed=True)
    timeout_ms, number = reader.int32(), reader.int8()
    try:
        state = TransactionState(number)
    except ValueError:
        raise KafkaError(
            ErrorCode.unsupported_version, f"transactional id {transactional_id} is in the unknown state {number}"
        ) from None
    partitions = frozenset(_partitions(reader))
    last_update_ms, start_ms = reader.int64(), reader.int64()
    tags = reader.tagged_fields()
    if state is TransactionState.DEAD:
        return None
    previous = _number(tags.get(_PREVIOUS_ID_TAG), NO_PRODUCER_ID)
    client_version = _number(tags.get(_CLIENT_VERSION_TAG), 0)
    return TransactionMetadata(
        producer_id,
        epoch,
        timeout_ms,
        state,
        frozenset() if state is TransactionState.EMPTY else partitions,
        start_ms,
        last_update_ms,
        client_version,
        _last_epoch(state, epoch, client_version, has_new_id=previous not in (NO_PRODUCER_ID, producer_id)),
        previous,
        _number(tags.get(_NEXT_ID_TAG), NO_PRODUCER_ID),
    )


def _partitions(reader: RecordReader) -> list[TopicPartition]:
    found = []
    for _ in range(reader.array_length()):
        topic = reader.string()
        indexes = reader.take(4 * max(reader.array_length(), 0))
        found += [TopicPartition(topic, index) for (index,) in _INT32.iter_unpack(indexes)]
        reader.tagged_fields()
    return found


def _number(content: bytes | None, default: int) -> int:
    return default if content is None else int.from_bytes(content, "big", signed=True)


def _last_epoch(state: TransactionState, epoch: int, client_version: int, *, has_new_id: bool) -> int:
    """Return the epoch before version 2 raised it to end the transaction; the record has no field for it."""
    if client_version < 2 or state in (TransactionState.EMPTY, TransactionState.ONGOING):
        return NO_EPOCH
    return MAX_EPOCH - 1 if has_new_id else epoch - 1
