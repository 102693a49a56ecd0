"""Records of `__transaction_state`, byte for byte as Kafka's transaction coordinator writes them. Pure.

Layouts: `transaction-coordinator/src/main/resources/common/message` in Kafka. Values of version 0 are plain; version 1,
written from `transaction.version` 1 on, is flexible.
"""

import struct
from functools import lru_cache
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
_ID_TAG: Final = struct.Struct(">BBq")
"""Tag, size, producer id."""
_VERSION_TAG: Final = struct.Struct(">BBh")
_FEW: Final = 64
"""Maximum number of partitions whose encoding is cached."""
_CACHED: Final = 256
"""Maximum number of cached encodings."""


def encode_key(transactional_id: str) -> bytes:
    name = transactional_id.encode()
    return _KEY_HEAD.pack(0, len(name)) + name


def encode_value(metadata: TransactionMetadata, *, flexible: bool) -> bytes:
    """Encode the metadata in version 1 (`flexible`), or in version 0, which has no tagged fields."""
    head = _HEAD.pack(
        1 if flexible else 0, metadata.producer_id, metadata.producer_epoch, metadata.timeout_ms, metadata.state
    )
    if metadata.state is TransactionState.EMPTY:
        partitions = b"\x00" if flexible else b"\xff\xff\xff\xff"
    elif len(metadata.partitions) <= _FEW:
        partitions = _few_partitions(metadata.partitions, flexible=flexible)
    else:
        partitions = _encode_partitions(metadata.partitions, flexible=flexible)
    times = _TIMES.pack(metadata.last_update_ms, metadata.start_ms)
    return head + partitions + times + (_tags(metadata) if flexible else b"")


@lru_cache(maxsize=_CACHED)
def _few_partitions(partitions: frozenset[TopicPartition], *, flexible: bool) -> bytes:
    """Like `_encode_partitions`, with a cache: most producers use the same partitions again and again."""
    return _encode_partitions(partitions, flexible=flexible)


def _encode_partitions(partitions: frozenset[TopicPartition], *, flexible: bool) -> bytes:
    out = bytearray()
    by_topic: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
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
    return bytes(out)


def _put_count(out: bytearray, count: int, *, flexible: bool) -> None:
    if flexible:
        put_unsigned_varint(out, count + 1)
    else:
        out += _INT32.pack(count)


def _tags(metadata: TransactionMetadata) -> bytes:
    count = 0
    content = b""
    if metadata.previous_producer_id != NO_PRODUCER_ID:
        count += 1
        content = _ID_TAG.pack(_PREVIOUS_ID_TAG, _INT64.size, metadata.previous_producer_id)
    if metadata.next_producer_id != NO_PRODUCER_ID:
        count += 1
        content += _ID_TAG.pack(_NEXT_ID_TAG, _INT64.size, metadata.next_producer_id)
    if metadata.client_version:
        count += 1
        content += _VERSION_TAG.pack(_CLIENT_VERSION_TAG, _INT16.size, metadata.client_version)
    return bytes((count,)) + content


def decode_key(key: bytes) -> str | None:
    """Return the transactional id; None for a record of another type."""
    reader = RecordReader.of_key(key)
    return reader.string() if reader.version == 0 else None


def decode_value(transactional_id: str, value: bytes) -> TransactionMetadata | None:
    """Return the metadata of a transactional id; None if its state is DEAD.

    Raises KafkaError: corrupt_message, unsupported_version.
    """
    version = int.from_bytes(value[:2], "big", signed=True)
    if version not in (0, 1):
        raise KafkaError(
            ErrorCode.unsupported_version,
            f"the record of transactional id {transactional_id} has version {version}, but only versions 0 and 1 are"
            " supported: a newer Kafka may have written it",
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
    """Return the epoch before a commit or abort raised it (transaction version 2); the record has no field for it."""
    if client_version < 2 or state in (TransactionState.EMPTY, TransactionState.ONGOING):
        return NO_EPOCH
    return MAX_EPOCH - 1 if has_new_id else epoch - 1
