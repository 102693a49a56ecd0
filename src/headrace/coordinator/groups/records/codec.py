"""Every record of `__consumer_offsets` of this coordinator: which kind of record a key is of.

Keys and values begin with an int16 version; the key's version also names the type of record.
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
    """A record of a protocol that is not offered, such as that of share groups."""

    version: int


WrittenKey: TypeAlias = OffsetKey | GroupKey | ConsumerKey
Key: TypeAlias = WrittenKey | UnknownKey


Value: TypeAlias = CommittedOffset | GroupMetadata | ConsumerValue

WrittenRecords: TypeAlias = list[tuple[WrittenKey, Value | None]]
"""Keys and values to write; a value of None is a tombstone."""


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


def decode_key(data: bytes) -> Key:
    """What kind of record this is, and of whom.

    Raises KafkaError(corrupt_message) for a key that ends early.
    """
    reader = RecordReader(data)
    if reader.version < KEY_VERSION:
        return decode_offset_key(data)
    if reader.version == KEY_VERSION:
        return GroupKey(reader.string())
    return decode_consumer_key(data) or UnknownKey(reader.version)
