"""Encode the records of `__consumer_offsets`, and decode their keys.

Keys and values begin with an int16 version; the key's version is the type of record.
"""

from typing import NamedTuple, TypeAlias

from headrace.coordinator.groups.records.classic import (
    KEY_VERSION,
    GroupKey,
    GroupMetadata,
    encode_group,
    encode_group_key,
)
from headrace.coordinator.groups.records.consumer import (
    ConsumerKey,
    ConsumerValue,
    decode_consumer_key,
    encode_key,
    encode_value,
)
from headrace.coordinator.groups.records.offsets import (
    CommittedOffset,
    OffsetKey,
    decode_offset_key,
    encode_offset,
    encode_offset_key,
)
from headrace.coordinator.runtime.record_reader import RecordReader


class UnknownKey(NamedTuple):
    """The key of a record of an unknown type, such as a share group's; `version` is the type."""

    version: int


WrittenKey: TypeAlias = OffsetKey | GroupKey | ConsumerKey
Key: TypeAlias = WrittenKey | UnknownKey


Value: TypeAlias = CommittedOffset | GroupMetadata | ConsumerValue

WrittenRecords: TypeAlias = list[tuple[WrittenKey, Value | None]]
"""Keys and values to write; a value of None is a tombstone."""


def encode(key: WrittenKey, value: Value | None) -> tuple[bytes, bytes | None]:
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


def decode_key(data: bytes) -> Key:
    """Decode the key of any record.

    Raises KafkaError(corrupt_message) for a truncated key.
    """
    reader = RecordReader(data)
    if reader.version < KEY_VERSION:
        return decode_offset_key(data)
    if reader.version == KEY_VERSION:
        return GroupKey(reader.string())
    return decode_consumer_key(data) or UnknownKey(reader.version)
