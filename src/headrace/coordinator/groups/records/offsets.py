"""Records of committed offsets in `__consumer_offsets`, byte for byte as Kafka writes them.

Writes keys of version 1 and values of version 4 (1 if the client set a retention time), and reads all versions.
"""

import struct
from typing import Final, NamedTuple

from headrace.coordinator.groups.records.fields import string, value_reader
from headrace.coordinator.runtime.name_cache import cached_by_name
from headrace.coordinator.runtime.record_reader import too_short
from headrace.wire.varint import put_unsigned_varint

NO_TIMESTAMP: Final = -1
NO_LEADER_EPOCH: Final = -1

_KEY_VERSION: Final = 1

_INT16 = struct.Struct(">h")
_LENGTH = struct.Struct(">H")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_HEAD_V1 = struct.Struct(">hqh")
_TAIL_V1 = struct.Struct(">qq")
_HEAD_V4 = struct.Struct(">hqi")
_OFFSET_V4 = struct.Struct(">hqibq3s16s")
"""Version 4 without metadata, with the topic id."""
_COMMON_METADATA: Final = 15
"""Position of the metadata in a value of version 4 if the length of the metadata takes one byte."""
_NO_TAGS: Final = b"\x00"
_ONE_TAG_TOPIC_ID: Final = b"\x01\x00\x10"
"""One tagged field, number 0, of 16 bytes."""
_TOPIC_ID_TAG: Final = 0


class OffsetKey(NamedTuple):
    group_id: str
    topic: str
    partition: int


class CommittedOffset(NamedTuple):
    """A committed offset; timestamps in ms. `expire_timestamp` is set only if the client set a retention time."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp: int
    expire_timestamp: int = NO_TIMESTAMP
    topic_id: bytes = b""
    """16 bytes, empty if unknown."""
    record_offset: int = -1
    """Offset of this record in `__consumer_offsets`, needed for transactional commits only; else -1."""


@cached_by_name(16_384)
def encode_offset_key(group_id: str, topic: str, partition: int) -> bytes:
    return _INT16.pack(_KEY_VERSION) + string(group_id) + string(topic) + _INT32.pack(partition)


def encode_offset(value: CommittedOffset) -> bytes:
    offset, leader_epoch, text, commit_timestamp, expire_timestamp, topic_id, _ = value
    if not text and expire_timestamp == NO_TIMESTAMP and topic_id:
        # The fast path of nearly all commits.
        return _OFFSET_V4.pack(4, offset, leader_epoch, 1, commit_timestamp, _ONE_TAG_TOPIC_ID, topic_id)
    metadata = text.encode()
    if expire_timestamp == NO_TIMESTAMP:
        head = _HEAD_V4.pack(4, value.offset, value.leader_epoch)
        size = bytearray()
        put_unsigned_varint(size, len(metadata) + 1)
        tags = _ONE_TAG_TOPIC_ID + value.topic_id if value.topic_id else _NO_TAGS
        return b"".join((head, size, metadata, _INT64.pack(value.commit_timestamp), tags))
    tail = _TAIL_V1.pack(value.commit_timestamp, value.expire_timestamp)
    return _HEAD_V1.pack(1, value.offset, len(metadata)) + metadata + tail


def decode_offset_key(data: bytes) -> OffsetKey:
    """Decode an OffsetCommitKey. Raises KafkaError(corrupt_message) for a truncated key."""
    # Loading decodes hundreds of thousands of keys, so this uses no reader and makes no copies.
    try:
        group_end = 4 + _LENGTH.unpack_from(data, 2)[0]
        topic_start = group_end + 2
        topic_end = topic_start + _LENGTH.unpack_from(data, group_end)[0]
        (partition,) = _INT32.unpack_from(data, topic_end)
    except struct.error as error:
        raise too_short(data) from error
    return OffsetKey(data[4:group_end].decode(), data[topic_start:topic_end].decode(), partition)


def decode_offset(data: bytes, record_offset: int = -1) -> CommittedOffset:
    """Decode an OffsetCommitValue. Raises KafkaError(corrupt_message) for a truncated value or an unknown version."""
    common = _decode_common_offset(data, record_offset)
    if common is not None:
        return common
    reader = value_reader(data)
    version = reader.version
    offset = reader.int64()
    leader_epoch = reader.int32() if version >= 3 else NO_LEADER_EPOCH
    metadata = reader.string()
    commit_timestamp = reader.int64()
    expire_timestamp = reader.int64() if version == 1 else NO_TIMESTAMP
    topic_id = reader.tagged_fields().get(_TOPIC_ID_TAG, b"")
    return CommittedOffset(offset, leader_epoch, metadata, commit_timestamp, expire_timestamp, topic_id, record_offset)


def _decode_common_offset(data: bytes, record_offset: int) -> CommittedOffset | None:
    """Decode the common form: version 4 with short metadata and no tag but the topic id. Return None for others."""
    if data[:2] != b"\x00\x04" or len(data) < 24:
        return None
    metadata_end = _COMMON_METADATA + data[_COMMON_METADATA - 1] - 1
    tags = metadata_end + 8
    topic_id = data[tags + len(_ONE_TAG_TOPIC_ID) :]
    if data[tags:] != _NO_TAGS and (len(topic_id) != 16 or data[tags:-16] != _ONE_TAG_TOPIC_ID):
        return None
    _, offset, leader_epoch = _HEAD_V4.unpack_from(data)
    (commit_timestamp,) = _INT64.unpack_from(data, metadata_end)
    metadata = data[_COMMON_METADATA:metadata_end].decode()
    return CommittedOffset(offset, leader_epoch, metadata, commit_timestamp, NO_TIMESTAMP, topic_id, record_offset)
