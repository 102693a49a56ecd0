"""Replay the records of a KRaft metadata log: topics, partitions, settings. Pure.

Decodes only what a single broker can use, and counts what it cannot adopt. Formats are Kafka's
(`metadata/src/main/resources/common/metadata`), in the flexible encoding of KIP-482.
"""

import struct
from collections.abc import Callable, Iterable
from typing import Final
from uuid import UUID

from headrace.adoption.kafka_cluster import KafkaCluster, KafkaPartition
from headrace.cluster.image import (
    BROKER_CONFIG,
    CLIENT_METRICS_CONFIG,
    GROUP_CONFIG,
    TOPIC_CONFIG,
    ConfigResource,
)
from headrace.errors import ErrorCode, KafkaError
from headrace.wire.varint import unsigned_varint

_FRAME_VERSION: Final = 1
_NO_LEADER_CHANGE: Final = -2
_CONFIG_KINDS: Final = {2: TOPIC_CONFIG, 4: BROKER_CONFIG, 16: CLIENT_METRICS_CONFIG, 32: GROUP_CONFIG}

# Types of the records to decode, with the newest known version of each.
_TOPIC: Final = 2
_PARTITION: Final = 3
_CONFIG: Final = 4
_PARTITION_CHANGE: Final = 5
_REMOVE_TOPIC: Final = 9
_FEATURE_LEVEL: Final = 12
_PRODUCER_IDS: Final = 15
_BEGIN: Final = 23
_END: Final = 24
_ABORT: Final = 25
_KNOWN_VERSIONS: Final = {
    _TOPIC: 0,
    _PARTITION: 2,
    _CONFIG: 0,
    _PARTITION_CHANGE: 2,
    _REMOVE_TOPIC: 0,
    _FEATURE_LEVEL: 0,
    _PRODUCER_IDS: 0,
    _BEGIN: 0,
    _END: 0,
    _ABORT: 0,
}
_CLIENT_QUOTA: Final = 14
_NOT_ADOPTABLE: Final = {
    10: "delegation token",
    11: "SCRAM credential",
    _CLIENT_QUOTA: "client quota",
    18: "ACL",
}
_REMOVALS: Final = {19: 18, 22: 11, 26: 10}
"""Records that remove an ACL, a credential or a token. Those of quotas have a field for it."""
_IGNORED: Final = frozenset({0, 1, 7, 8, 17, 20, 21, 27, 28})
"""Registrations of brokers and controllers, and other records that a broker with the only replicas does not need."""


def replay(values: Iterable[bytes]) -> KafkaCluster:
    """Return the cluster that the records describe.

    Raises KafkaError: unsupported_version for a record of a newer Kafka, corrupt_message for a malformed one.
    """
    cluster = KafkaCluster("Kafka's metadata log")
    pending: list[bytes] | None = None
    for value in values:
        reader = _Reader.of_record(value)
        kind = reader.kind
        _check_known(kind, reader.version, cluster)
        if kind == _BEGIN:
            pending = []
        elif kind == _ABORT:
            pending = None
        elif kind == _END:
            for item in pending or ():
                _apply(cluster, item)
            pending = None
        elif pending is not None:
            pending.append(value)
        else:
            _apply(cluster, value)
    cluster.source += f" (metadata.version {cluster.features.get('metadata.version', 0)})"
    return cluster


def _check_known(kind: int, version: int, cluster: KafkaCluster) -> None:
    if kind in _IGNORED or kind in _NOT_ADOPTABLE or kind in _REMOVALS:
        return
    newest = _KNOWN_VERSIONS.get(kind)
    if newest is None or version > newest:
        raise KafkaError(
            ErrorCode.unsupported_version,
            f"the metadata log (metadata.version {cluster.features.get('metadata.version', 0)}) has a record of type "
            f"{kind} version {version}, from a newer Kafka than this Headrace supports",
        )


def _apply(cluster: KafkaCluster, value: bytes) -> None:
    reader = _Reader.of_record(value)
    kind = reader.kind
    if kind in _IDENTITIES:
        _leave_behind(cluster, reader, value)
    elif kind in _APPLIERS:
        try:
            _APPLIERS[kind](cluster, reader)
        except (KeyError, StopIteration, UnicodeDecodeError) as error:
            raise KafkaError(
                ErrorCode.corrupt_message,
                f"a metadata record of type {kind} names an unknown topic or partition, or is not UTF-8: {error!r}",
            ) from error


def _topic(cluster: KafkaCluster, reader: "_Reader") -> None:
    name, topic_id = reader.string(), reader.uuid()
    cluster.topics[name] = topic_id
    cluster.partitions[topic_id] = {}


def _partition(cluster: KafkaCluster, reader: "_Reader") -> None:
    index, topic_id = reader.int32(), reader.uuid()
    replicas = reader.int32s()
    for _ in range(3):  # in-sync, removing and adding replicas
        reader.int32s()
    reader.int32()  # leader
    leader_epoch = reader.int32()
    reader.int32()  # partition epoch
    directories = reader.uuids() if reader.version >= 1 else ()
    cluster.partitions[topic_id][index] = KafkaPartition(replicas, leader_epoch, directories)


def _partition_change(cluster: KafkaCluster, reader: "_Reader") -> None:
    index, topic_id = reader.int32(), reader.uuid()
    partition = cluster.partitions[topic_id][index]
    tags = reader.tagged_fields()
    if 1 in tags and _Reader(tags[1]).int32() != _NO_LEADER_CHANGE:
        partition = partition._replace(leader_epoch=partition.leader_epoch + 1)
    if 2 in tags:
        partition = partition._replace(replicas=_Reader(tags[2]).int32s())
    if 8 in tags:
        partition = partition._replace(directories=_Reader(tags[8]).uuids())
    cluster.partitions[topic_id][index] = partition


def _remove_topic(cluster: KafkaCluster, reader: "_Reader") -> None:
    topic_id = reader.uuid()
    cluster.removed.add(topic_id)
    del cluster.partitions[topic_id]
    name = next(name for name, each in cluster.topics.items() if each == topic_id)
    del cluster.topics[name]
    cluster.configs.pop(ConfigResource(TOPIC_CONFIG, name), None)


def _config(cluster: KafkaCluster, reader: "_Reader") -> None:
    kind, resource_name, name, value = reader.int8(), reader.string(), reader.string(), reader.nullable_string()
    if kind not in _CONFIG_KINDS:
        return
    values = cluster.configs.setdefault(ConfigResource(_CONFIG_KINDS[kind], resource_name), {})
    if value is None:
        values.pop(name, None)
    else:
        values[name] = value


def _feature_level(cluster: KafkaCluster, reader: "_Reader") -> None:
    name = reader.string()
    cluster.features[name] = reader.int16()


def _producer_ids(cluster: KafkaCluster, reader: "_Reader") -> None:
    reader.int32()  # broker id
    reader.int64()  # broker epoch
    cluster.next_producer_id = reader.int64()


def _leave_behind(cluster: KafkaCluster, reader: "_Reader", value: bytes) -> None:
    """Count what the record sets once, however often it is set, and no longer once it is removed."""
    kind = reader.kind
    items = cluster.left_behind[_NOT_ADOPTABLE[_REMOVALS.get(kind, kind)]]
    try:
        item = _IDENTITIES[kind](reader)
        is_removal = kind in _REMOVALS or (kind == _CLIENT_QUOTA and _removes_quota(reader))
    except (KafkaError, UnicodeDecodeError):
        # A newer Kafka may use another layout. Objects that cannot be adopted must not prevent the adoption.
        item, is_removal = value.hex(), kind in _REMOVALS
    if is_removal:
        items.discard(item)
    else:
        items.add(item)


def _quota(reader: "_Reader") -> str:
    entity = []
    for _ in range(reader.uvarint() - 1):
        entity.append((reader.string(), reader.nullable_string()))
        reader.tagged_fields()
    return f"{sorted(entity, key=str)} {reader.string()}"


def _removes_quota(reader: "_Reader") -> bool:
    reader.int64()  # value
    return reader.int8() != 0


def _credential(reader: "_Reader") -> str:
    user = reader.string()
    return f"{user} {reader.int8()}"


def _acl(reader: "_Reader") -> str:
    return str(reader.uuid())


def _token(reader: "_Reader") -> str:
    reader.string()  # owner
    reader.string()  # requester
    for _ in range(reader.uvarint() - 1):
        reader.string()  # renewer
    for _ in range(3):  # time of issue, latest possible expiry, and expiry
        reader.int64()
    return reader.string()


class _Reader:
    """Reads consecutive fields. Raises KafkaError(corrupt_message) if the data ends early."""

    __slots__ = ("_data", "_position", "kind", "version")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0
        self.kind = self.version = -1

    @classmethod
    def of_record(cls, data: bytes) -> "_Reader":
        """Return a reader positioned at the first field of a record, after reading its `kind` and `version`.

        Raises KafkaError(unsupported_version) for a record of a newer Kafka.
        """
        reader = cls(data)
        if (frame := reader.uvarint()) != _FRAME_VERSION:
            raise KafkaError(
                ErrorCode.unsupported_version,
                f"a metadata record has frame version {frame}, from a newer Kafka than this Headrace supports",
            )
        reader.kind, reader.version = reader.uvarint(), reader.uvarint()
        return reader

    def int8(self) -> int:
        return self._take(1)[0]

    def int16(self) -> int:
        return int.from_bytes(self._take(2), "big", signed=True)

    def int32(self) -> int:
        return int.from_bytes(self._take(4), "big", signed=True)

    def int64(self) -> int:
        return int.from_bytes(self._take(8), "big", signed=True)

    def uuid(self) -> UUID:
        return UUID(bytes=self._take(16))

    def int32s(self) -> tuple[int, ...]:
        count = self.uvarint() - 1
        return struct.unpack(f">{max(count, 0)}i", self._take(4 * max(count, 0)))

    def uuids(self) -> tuple[UUID, ...]:
        return tuple(self.uuid() for _ in range(self.uvarint() - 1))

    def string(self) -> str:
        return self.nullable_string() or ""

    def nullable_string(self) -> str | None:
        size = self.uvarint() - 1
        return None if size < 0 else self._take(size).decode()

    def tagged_fields(self) -> dict[int, bytes]:
        return {self.uvarint(): self._take(self.uvarint()) for _ in range(self.uvarint())}

    def uvarint(self) -> int:
        try:
            value, self._position = unsigned_varint(self._data, self._position)
        except (IndexError, ValueError) as error:
            raise self._ends_early() from error
        return value

    def _take(self, size: int) -> bytes:
        end = self._position + size
        if end > len(self._data):
            raise self._ends_early()
        taken = self._data[self._position : end]
        self._position = end
        return taken

    def _ends_early(self) -> KafkaError:
        return KafkaError(ErrorCode.corrupt_message, f"a metadata record ends early: {self._data[:64].hex()}")


_APPLIERS: Final[dict[int, Callable[[KafkaCluster, _Reader], None]]] = {
    _TOPIC: _topic,
    _PARTITION: _partition,
    _CONFIG: _config,
    _PARTITION_CHANGE: _partition_change,
    _REMOVE_TOPIC: _remove_topic,
    _FEATURE_LEVEL: _feature_level,
    _PRODUCER_IDS: _producer_ids,
}
_IDENTITIES: Final[dict[int, Callable[[_Reader], str]]] = {
    10: _token,
    11: _credential,
    _CLIENT_QUOTA: _quota,
    18: _acl,
    19: _acl,
    22: _credential,
    26: _Reader.string,
}
"""Read the identity of an object that cannot be adopted."""
