"""Records of groups of the consumer protocol in `__consumer_offsets`, byte for byte as Kafka 4.3 writes them.

Keys have the plain encoding, values the flexible one (KIP-482) in version 0. Newer fields are tagged fields.
"""

import struct
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

from headrace.coordinator.runtime.record_reader import RecordReader
from headrace.errors import ErrorCode, KafkaError
from headrace.wire.varint import put_unsigned_varint

_INT8 = struct.Struct(">b")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_VERSION_0: Final = b"\x00\x00"
_UUID: Final = 16
_ABSENT: Final = b"\x00"
_PRESENT: Final = b"\x01"
"""Precedes a nullable structure that is not null."""


class TopicIdPartition(NamedTuple):
    topic_id: bytes
    """16 bytes."""
    partition: int


Partitions: TypeAlias = frozenset[TopicIdPartition]
PartitionEpochs: TypeAlias = Mapping[TopicIdPartition, int]
"""By partition: the member epoch in which it was assigned."""


class ClassicMemberMetadata(NamedTuple):
    """Metadata of a member that uses the classic protocol; timeout in ms."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    """Its assignors, preferred first, with their subscriptions."""


class MemberState(IntEnum):
    """Progress of a member towards its target assignment, with the numbers in its record."""

    STABLE = 0
    """It has the target assignment of its epoch."""
    UNREVOKED_PARTITIONS = 1
    """It was asked to revoke partitions and has not confirmed that yet."""
    UNRELEASED_PARTITIONS = 2
    """It waits for partitions that other members have not revoked yet."""
    UNKNOWN = 127
    """Written by a newer coordinator: the member must rejoin."""


class ConsumerGroupKey(NamedTuple):
    group_id: str


class PartitionMetadataKey(NamedTuple):
    """Written by Kafka before 4.1; Headrace only deletes it."""

    group_id: str


class MemberKey(NamedTuple):
    group_id: str
    member_id: str


class TargetAssignmentKey(NamedTuple):
    group_id: str


class TargetMemberKey(NamedTuple):
    group_id: str
    member_id: str


class CurrentAssignmentKey(NamedTuple):
    group_id: str
    member_id: str


class RegexKey(NamedTuple):
    group_id: str
    regex: str


ConsumerKey: TypeAlias = (
    ConsumerGroupKey
    | PartitionMetadataKey
    | MemberKey
    | TargetAssignmentKey
    | TargetMemberKey
    | CurrentAssignmentKey
    | RegexKey
)


class GroupEpoch(NamedTuple):
    """The group epoch, and a hash of the subscribed topics (0 for none)."""

    epoch: int
    metadata_hash: int


class MemberSubscription(NamedTuple):
    """Metadata of a member; timeout in ms."""

    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    regex: str
    rebalance_timeout_ms: int
    assignor: str | None
    classic: ClassicMemberMetadata | None = None


class AssignmentEpoch(NamedTuple):
    """The epoch of the target assignment, and the time of its computation in ms (0 if unknown)."""

    epoch: int
    timestamp: int


class TargetAssignment(NamedTuple):
    partitions: Partitions


class CurrentAssignment(NamedTuple):
    epoch: int
    previous_epoch: int
    state: MemberState
    assigned: PartitionEpochs
    revoking: PartitionEpochs


class ResolvedRegex(NamedTuple):
    """The sorted topics that matched a regular expression, the version of the metadata, and the time (ms)."""

    topics: tuple[str, ...]
    version: int
    timestamp: int


ConsumerValue: TypeAlias = (
    GroupEpoch | MemberSubscription | AssignmentEpoch | TargetAssignment | CurrentAssignment | ResolvedRegex
)


# Encoding

_KEY_TYPES: Final[Mapping[type[ConsumerKey], int]] = {
    ConsumerGroupKey: 3,
    PartitionMetadataKey: 4,
    MemberKey: 5,
    TargetAssignmentKey: 6,
    TargetMemberKey: 7,
    CurrentAssignmentKey: 8,
    RegexKey: 16,
}
_TYPES_OF_KEYS: Final = {number: key for key, number in _KEY_TYPES.items()}


def encode_key(key: ConsumerKey) -> bytes:
    out = bytearray(_INT16.pack(_KEY_TYPES[type(key)]))
    for part in key:
        data = part.encode()
        out += _INT16.pack(len(data)) + data
    return bytes(out)


def encode_value(value: ConsumerValue) -> bytes:
    out = bytearray(_VERSION_0)
    if isinstance(value, GroupEpoch):
        out += _INT32.pack(value.epoch)
        _put_tags(out, {0: _INT64.pack(value.metadata_hash)} if value.metadata_hash else {})
    elif isinstance(value, MemberSubscription):
        _put_subscription(out, value)
    elif isinstance(value, AssignmentEpoch):
        out += _INT32.pack(value.epoch)
        _put_tags(out, {0: _INT64.pack(value.timestamp)} if value.timestamp else {})
    elif isinstance(value, TargetAssignment):
        _put_partitions(out, dict.fromkeys(value.partitions, 0), with_epochs=False)
        _put_tags(out, {})
    elif isinstance(value, CurrentAssignment):
        out += _INT32.pack(value.epoch) + _INT32.pack(value.previous_epoch) + _INT8.pack(value.state)
        _put_partitions(out, value.assigned, with_epochs=True)
        _put_partitions(out, value.revoking, with_epochs=True)
        _put_tags(out, {})
    else:
        _put_strings(out, value.topics)
        out += _INT64.pack(value.version) + _INT64.pack(value.timestamp)
        _put_tags(out, {})
    return bytes(out)


def _put_subscription(out: bytearray, value: MemberSubscription) -> None:
    _put_string(out, value.instance_id)
    _put_string(out, value.rack_id)
    _put_string(out, value.client_id)
    _put_string(out, value.client_host)
    _put_strings(out, value.topics)
    _put_string(out, value.regex)
    out += _INT32.pack(value.rebalance_timeout_ms)
    _put_string(out, value.assignor)
    _put_tags(out, {0: _ABSENT if value.classic is None else _encode_classic(value.classic)})


def _encode_classic(value: ClassicMemberMetadata) -> bytes:
    out = bytearray(_PRESENT + _INT32.pack(value.session_timeout_ms))
    put_unsigned_varint(out, len(value.protocols) + 1)
    for name, metadata in value.protocols:
        _put_string(out, name)
        put_unsigned_varint(out, len(metadata) + 1)
        out += metadata
        _put_tags(out, {})
    _put_tags(out, {})
    return bytes(out)


def _put_partitions(out: bytearray, partitions: PartitionEpochs, *, with_epochs: bool) -> None:
    by_topic: dict[bytes, list[int]] = defaultdict(list)
    for one in sorted(partitions):
        by_topic[one.topic_id].append(one.partition)
    put_unsigned_varint(out, len(by_topic) + 1)
    for topic_id, indexes in by_topic.items():
        out += topic_id
        _put_int32s(out, indexes)
        epochs = bytearray()
        if with_epochs:
            _put_int32s(epochs, [partitions[TopicIdPartition(topic_id, index)] for index in indexes])
        _put_tags(out, {0: bytes(epochs)} if with_epochs else {})


def _put_int32s(out: bytearray, values: list[int]) -> None:
    put_unsigned_varint(out, len(values) + 1)
    out += struct.pack(f">{len(values)}i", *values)


def _put_strings(out: bytearray, values: Iterable[str]) -> None:
    values = tuple(values)
    put_unsigned_varint(out, len(values) + 1)
    for value in values:
        _put_string(out, value)


def _put_string(out: bytearray, value: str | None) -> None:
    data = b"" if value is None else value.encode()
    put_unsigned_varint(out, 0 if value is None else len(data) + 1)
    out += data


def _put_tags(out: bytearray, tags: Mapping[int, bytes]) -> None:
    put_unsigned_varint(out, len(tags))
    for tag, data in tags.items():
        put_unsigned_varint(out, tag)
        put_unsigned_varint(out, len(data))
        out += data


# Decoding


def decode_consumer_key(data: bytes) -> ConsumerKey | None:
    """Decode a key. Return None if it is not of the consumer protocol.

    Raises KafkaError(corrupt_message) for a truncated key.
    """
    reader = RecordReader.of_key(data)
    key_type = _TYPES_OF_KEYS.get(reader.version)
    if key_type is None:
        return None
    return key_type._make(reader.string() for _ in key_type._fields)


def decode_value(key: ConsumerKey, data: bytes) -> ConsumerValue:
    """Decode the value of a KIP-848 group's record.

    Raises KafkaError(corrupt_message) for a truncated value or an unknown version.
    """
    reader = RecordReader(data, flexible=True)
    if reader.version != 0:
        raise KafkaError(
            ErrorCode.corrupt_message,
            f"a value of __consumer_offsets for {key} has version {reader.version}, but only version 0 is supported:"
            " a newer Kafka may have written it",
        )
    return _DECODERS[type(key)](reader)


def _group_epoch(reader: RecordReader) -> GroupEpoch:
    epoch = reader.int32()
    tag = reader.tagged_fields().get(0)
    return GroupEpoch(epoch, _INT64.unpack(tag)[0] if tag else 0)


def _subscription(reader: RecordReader) -> MemberSubscription:
    return MemberSubscription(
        reader.nullable_string(),
        reader.nullable_string(),
        reader.string(),
        reader.string(),
        tuple(reader.string() for _ in range(reader.array_length())),
        reader.string(),
        reader.int32(),
        reader.nullable_string(),
        _decode_classic(reader.tagged_fields().get(0)),
    )


def _decode_classic(data: bytes | None) -> ClassicMemberMetadata | None:
    if data is None or data[:1] != _PRESENT:
        return None
    reader = RecordReader.of_structure(data[1:])
    session_timeout_ms = reader.int32()
    protocols = []
    for _ in range(reader.array_length()):
        protocols.append((reader.string(), reader.bytes_()))
        reader.tagged_fields()
    return ClassicMemberMetadata(session_timeout_ms, tuple(protocols))


def _assignment_epoch(reader: RecordReader) -> AssignmentEpoch:
    epoch = reader.int32()
    tag = reader.tagged_fields().get(0)
    return AssignmentEpoch(epoch, _INT64.unpack(tag)[0] if tag else 0)


def _target_assignment(reader: RecordReader) -> TargetAssignment:
    return TargetAssignment(frozenset(_partitions(reader, default_epoch=0)))


def _current_assignment(reader: RecordReader) -> CurrentAssignment:
    epoch = reader.int32()
    previous_epoch = reader.int32()
    number = reader.int8()
    state = MemberState(number) if number in MemberState.__members__.values() else MemberState.UNKNOWN
    # Before Kafka 4.3, partitions had no epochs: use the member's epoch, the upper bound.
    assigned = _partitions(reader, default_epoch=epoch)
    revoking = _partitions(reader, default_epoch=epoch)
    return CurrentAssignment(epoch, previous_epoch, state, assigned, revoking)


def _resolved_regex(reader: RecordReader) -> ResolvedRegex:
    topics = tuple(reader.string() for _ in range(reader.array_length()))
    return ResolvedRegex(topics, reader.int64(), reader.int64())


def _partitions(reader: RecordReader, *, default_epoch: int) -> dict[TopicIdPartition, int]:
    out = {}
    for _ in range(reader.array_length()):
        topic_id = reader.take(_UUID)
        indexes = [reader.int32() for _ in range(reader.array_length())]
        tag = reader.tagged_fields().get(0, b"")
        # The tag is an array with an int32 per partition, preceded by its length.
        size = 4 * len(indexes)
        epochs = struct.unpack(f">{len(indexes)}i", tag[-size:]) if indexes and len(tag) > size else None
        for position, index in enumerate(indexes):
            out[TopicIdPartition(topic_id, index)] = default_epoch if epochs is None else epochs[position]
    return out


_DECODERS: Final[Mapping[type, Callable[[RecordReader], ConsumerValue]]] = {
    ConsumerGroupKey: _group_epoch,
    MemberKey: _subscription,
    TargetAssignmentKey: _assignment_epoch,
    TargetMemberKey: _target_assignment,
    CurrentAssignmentKey: _current_assignment,
    RegexKey: _resolved_regex,
}
