"""The records of `__consumer_offsets`, byte for byte as Kafka writes them: committed offsets and classic groups.
Those of groups of the consumer protocol are in `consumer_records`.

Every key and value begins with an int16 version; the key's version also names the type of record. Written here:
offset keys 1 with values 4 (1 when the client set a retention time), group keys 2 with values 3. Read: all versions.
"""

import struct
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from headrace.coordinator.groups.consumer.records import (
    ConsumerKey,
    ConsumerValue,
    decode_consumer_key,
    encode_key,
    encode_value,
)
from headrace.coordinator.runtime.record_reader import RecordReader, too_short
from headrace.errors import ErrorCode, KafkaError
from headrace.wire.varint import put_unsigned_varint

NO_TIMESTAMP: Final = -1
NO_LEADER_EPOCH: Final = -1

_OFFSET_KEY_VERSION: Final = 1
_GROUP_KEY_VERSION: Final = 2

_NEWEST_VALUE: Final = 4

_INT16 = struct.Struct(">h")
_LENGTH = struct.Struct(">H")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_OFFSET_HEAD_V1 = struct.Struct(">hqh")
_OFFSET_TAIL_V1 = struct.Struct(">qq")
_OFFSET_HEAD_V4 = struct.Struct(">hqi")
_OFFSET_V4 = struct.Struct(">hqibq3s16s")
"""Version 4 without text, with the topic's id."""
_COMMON_METADATA: Final = 15
"""Where the metadata of a version 4 begins when its length takes one byte."""
_NO_TAGS: Final = b"\x00"
_ONE_TAG_TOPIC_ID: Final = b"\x01\x00\x10"
"""One tagged field, number 0, of 16 bytes."""
_TOPIC_ID_TAG: Final = 0


class OffsetKey(NamedTuple):
    group_id: str
    topic: str
    partition: int


class GroupKey(NamedTuple):
    group_id: str


class UnknownKey(NamedTuple):
    """A record of a protocol that is not offered, such as that of share groups."""

    version: int


WrittenKey: TypeAlias = OffsetKey | GroupKey | ConsumerKey
Key: TypeAlias = WrittenKey | UnknownKey


class CommittedOffset(NamedTuple):
    """A committed offset; timestamps in ms, `expire_timestamp` only from clients that set a retention time."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp: int
    expire_timestamp: int = NO_TIMESTAMP
    topic_id: bytes = b""
    """The id of the topic it was committed for, 16 bytes; empty where that is not known."""
    record_offset: int = -1
    """Where in the log the commit stands, which only commits of transactions need; else -1."""


class MemberMetadata(NamedTuple):
    """One member of a classic group; timeouts in ms."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class GroupMetadata(NamedTuple):
    """A classic group as of one generation; `state_timestamp` in ms."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_timestamp: int
    members: tuple[MemberMetadata, ...] = ()


Value: TypeAlias = CommittedOffset | GroupMetadata | ConsumerValue


def encode(key: WrittenKey, value: Value | None) -> tuple[bytes, bytes | None]:
    """Key and value of a record; a value of None is a tombstone."""
    if isinstance(key, OffsetKey):
        encoded_key = encode_offset_key(*key)
        if isinstance(value, CommittedOffset):
            return encoded_key, encode_offset(value)
    else:
        encoded_key = encode_group_key(key.group_id) if isinstance(key, GroupKey) else encode_key(key)
    if value is None:
        return encoded_key, None
    assert not isinstance(value, CommittedOffset)
    return encoded_key, encode_group(value) if isinstance(value, GroupMetadata) else encode_value(value)


@lru_cache(maxsize=16_384)
def encode_offset_key(group_id: str, topic: str, partition: int) -> bytes:
    return _INT16.pack(_OFFSET_KEY_VERSION) + _string(group_id) + _string(topic) + _INT32.pack(partition)


def encode_group_key(group_id: str) -> bytes:
    return _INT16.pack(_GROUP_KEY_VERSION) + _string(group_id)


def encode_offset(value: CommittedOffset) -> bytes:
    offset, leader_epoch, text, commit_timestamp, expire_timestamp, topic_id, _ = value
    if not text and expire_timestamp == NO_TIMESTAMP and topic_id:
        # As nearly all are, and thousands of consumers commit all the time.
        return _OFFSET_V4.pack(4, offset, leader_epoch, 1, commit_timestamp, _ONE_TAG_TOPIC_ID, topic_id)
    metadata = text.encode()
    if expire_timestamp == NO_TIMESTAMP:
        head = _OFFSET_HEAD_V4.pack(4, value.offset, value.leader_epoch)
        size = bytearray()
        put_unsigned_varint(size, len(metadata) + 1)
        tags = _ONE_TAG_TOPIC_ID + value.topic_id if value.topic_id else _NO_TAGS
        return b"".join((head, size, metadata, _INT64.pack(value.commit_timestamp), tags))
    tail = _OFFSET_TAIL_V1.pack(value.commit_timestamp, value.expire_timestamp)
    return _OFFSET_HEAD_V1.pack(1, value.offset, len(metadata)) + metadata + tail


def encode_group(value: GroupMetadata) -> bytes:
    out = [
        _INT16.pack(3),
        _string(value.protocol_type),
        _INT32.pack(value.generation),
        _nullable_string(value.protocol),
        _nullable_string(value.leader),
        _INT64.pack(value.state_timestamp),
        _INT32.pack(len(value.members)),
    ]
    for member in value.members:
        out += (
            _string(member.member_id),
            _nullable_string(member.instance_id),
            _string(member.client_id),
            _string(member.client_host),
            _INT32.pack(member.rebalance_timeout_ms),
            _INT32.pack(member.session_timeout_ms),
            _bytes(member.subscription),
            _bytes(member.assignment),
        )
    return b"".join(out)


def decode_key(data: bytes) -> Key:
    """What kind of record this is, and of whom.

    Raises KafkaError(corrupt_message) for a key that ends early.
    """
    reader = RecordReader(data)
    if reader.version < _GROUP_KEY_VERSION:
        return _decode_offset_key(data)
    if reader.version == _GROUP_KEY_VERSION:
        return GroupKey(reader.string())
    return decode_consumer_key(data) or UnknownKey(reader.version)


def _decode_offset_key(data: bytes) -> OffsetKey:
    # Loading reads hundreds of thousands of these: no reader, no copies.
    try:
        group_end = 4 + _LENGTH.unpack_from(data, 2)[0]
        topic_start = group_end + 2
        topic_end = topic_start + _LENGTH.unpack_from(data, group_end)[0]
        (partition,) = _INT32.unpack_from(data, topic_end)
    except struct.error as error:
        raise too_short(data) from error
    return OffsetKey(data[4:group_end].decode(), data[topic_start:topic_end].decode(), partition)


def decode_offset(data: bytes, record_offset: int = -1) -> CommittedOffset:
    """Raises KafkaError(corrupt_message) for a value that ends early or has an unknown version."""
    common = _decode_common_offset(data, record_offset)
    if common is not None:
        return common
    reader = _value_reader(data)
    version = reader.version
    offset = reader.int64()
    leader_epoch = reader.int32() if version >= 3 else NO_LEADER_EPOCH
    metadata = reader.string()
    commit_timestamp = reader.int64()
    expire_timestamp = reader.int64() if version == 1 else NO_TIMESTAMP
    topic_id = reader.tagged_fields().get(_TOPIC_ID_TAG, b"")
    return CommittedOffset(offset, leader_epoch, metadata, commit_timestamp, expire_timestamp, topic_id, record_offset)


def _decode_common_offset(data: bytes, record_offset: int) -> CommittedOffset | None:
    """Version 4 with short metadata and no tag but the topic id, as nearly all are; None for any other."""
    if data[:2] != b"\x00\x04" or len(data) < 24:
        return None
    metadata_end = _COMMON_METADATA + data[_COMMON_METADATA - 1] - 1
    tags = metadata_end + 8
    topic_id = data[tags + len(_ONE_TAG_TOPIC_ID) :]
    if data[tags:] != _NO_TAGS and (len(topic_id) != 16 or data[tags:-16] != _ONE_TAG_TOPIC_ID):
        return None
    _, offset, leader_epoch = _OFFSET_HEAD_V4.unpack_from(data)
    (commit_timestamp,) = _INT64.unpack_from(data, metadata_end)
    metadata = data[_COMMON_METADATA:metadata_end].decode()
    return CommittedOffset(offset, leader_epoch, metadata, commit_timestamp, NO_TIMESTAMP, topic_id, record_offset)


def decode_group(data: bytes) -> GroupMetadata:
    """Raises KafkaError(corrupt_message) for a value that ends early or has an unknown version."""
    reader = _value_reader(data)
    version = reader.version
    protocol_type = reader.string()
    generation = reader.int32()
    protocol = reader.nullable_string()
    leader = reader.nullable_string()
    state_timestamp = reader.int64() if version >= 2 else NO_TIMESTAMP
    members = tuple(_decode_member(reader) for _ in range(reader.array_length()))
    return GroupMetadata(protocol_type, generation, protocol, leader, state_timestamp, members)


def _decode_member(reader: RecordReader) -> MemberMetadata:
    member_id = reader.string()
    instance_id = reader.nullable_string() if reader.version >= 3 else None
    client_id = reader.string()
    client_host = reader.string()
    rebalance_timeout_ms = reader.int32() if reader.version >= 1 else -1
    session_timeout_ms = reader.int32()
    if rebalance_timeout_ms == -1:
        rebalance_timeout_ms = session_timeout_ms
    subscription = reader.bytes_()
    assignment = reader.bytes_()
    reader.tagged_fields()
    return MemberMetadata(
        member_id,
        instance_id,
        client_id,
        client_host,
        rebalance_timeout_ms,
        session_timeout_ms,
        subscription,
        assignment,
    )


def _string(value: str) -> bytes:
    data = value.encode()
    return _INT16.pack(len(data)) + data


def _nullable_string(value: str | None) -> bytes:
    return _INT16.pack(-1) if value is None else _string(value)


def _bytes(value: bytes) -> bytes:
    return _INT32.pack(len(value)) + value


def _value_reader(data: bytes) -> RecordReader:
    reader = RecordReader(data)
    if not 0 <= reader.version <= _NEWEST_VALUE:
        raise KafkaError(ErrorCode.corrupt_message, f"a value of __consumer_offsets has version {reader.version}")
    return reader
