"""Records of classic groups in `__consumer_offsets`, byte for byte as Kafka writes them.

Writes keys of version 2 and values of version 3, and reads all versions.
"""

import struct
from typing import Final, NamedTuple

from headrace.coordinator.groups.records.fields import (
    bytes_,
    nullable_string,
    string,
    value_reader,
)
from headrace.coordinator.groups.records.offsets import NO_TIMESTAMP
from headrace.coordinator.runtime.record_reader import RecordReader

KEY_VERSION: Final = 2

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")


class GroupKey(NamedTuple):
    group_id: str


class MemberMetadata(NamedTuple):
    """A member of a classic group; timeouts in ms."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class GroupMetadata(NamedTuple):
    """A generation of a classic group; `state_timestamp` in ms."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_timestamp: int
    members: tuple[MemberMetadata, ...] = ()


def encode_group_key(group_id: str) -> bytes:
    return _INT16.pack(KEY_VERSION) + string(group_id)


def encode_group(value: GroupMetadata) -> bytes:
    out = [
        _INT16.pack(3),
        string(value.protocol_type),
        _INT32.pack(value.generation),
        nullable_string(value.protocol),
        nullable_string(value.leader),
        _INT64.pack(value.state_timestamp),
        _INT32.pack(len(value.members)),
    ]
    for member in value.members:
        out += (
            string(member.member_id),
            nullable_string(member.instance_id),
            string(member.client_id),
            string(member.client_host),
            _INT32.pack(member.rebalance_timeout_ms),
            _INT32.pack(member.session_timeout_ms),
            bytes_(member.subscription),
            bytes_(member.assignment),
        )
    return b"".join(out)


def decode_group(data: bytes) -> GroupMetadata:
    """Decode a GroupMetadataValue. Raises KafkaError(corrupt_message) for a truncated value or an unknown version."""
    reader = value_reader(data)
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
