"""The consumer's embedded protocol: subscriptions and assignments.

Classic consumers send these inside JoinGroup and SyncGroup. The coordinator decodes them when classic members join a
group of the consumer protocol (KIP-848). Every version extends version 0.
"""

import struct
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

CONSUMER_PROTOCOL_TYPE = "consumer"

MAX_TOPICS: Final = 100_000
"""Decoding more topics would block the event loop; a few members with 4 MiB of metadata can send that many."""

_NEWEST: Final = 3
_OWNED_SINCE: Final = 1
_GENERATION_SINCE: Final = 2
_RACK_SINCE: Final = 3

_VERSION_AND_COUNT = struct.Struct(">hi")
_REMEMBERED_LISTS: Final = 16
_VERSION_BYTES: Final = 2
_LENGTH = struct.Struct(">h")
_INT32 = struct.Struct(">i")


class Subscription(NamedTuple):
    """A member's subscription; `owned` are its current partitions (KIP-429)."""

    version: int
    topics: tuple[str, ...]
    owned: tuple[tuple[str, tuple[int, ...]], ...] = ()
    rack_id: str | None = None


class Assignment(NamedTuple):
    """Partitions by topic, and the user data of a custom assignor."""

    partitions: Mapping[str, tuple[int, ...]]
    user_data: bytes = b""


def subscribed_topics(subscriptions: Iterable[bytes]) -> set[str] | None:
    """Return the topics in encoded subscriptions of any version.

    Return None if one cannot be decoded, or if they have more than `MAX_TOPICS` topics together. A list of topics that
    occurs in several subscriptions is decoded and counted once, if there are at most 16 different lists.
    """
    topics: set[str] = set()
    decoded = 0
    lists: deque[bytes] = deque(maxlen=_REMEMBERED_LISTS)
    for metadata in subscriptions:
        if any(metadata.startswith(known, _VERSION_BYTES) for known in lists):
            continue
        try:
            _, count = _VERSION_AND_COUNT.unpack_from(metadata)
            decoded += max(count, 0)
            if decoded > MAX_TOPICS:
                return None
            position = _VERSION_AND_COUNT.size
            for _ in range(count):
                (size,) = _LENGTH.unpack_from(metadata, position)
                position += _LENGTH.size
                if size < 0 or position + size > len(metadata):
                    return None
                topics.add(metadata[position : position + size].decode())
                position += size
        except (struct.error, UnicodeDecodeError):
            return None
        lists.append(metadata[_VERSION_BYTES:position])
    return topics


def decode_subscription(data: bytes) -> Subscription:
    """Decode a ConsumerProtocolSubscription. Raises ValueError if the bytes are not a subscription."""
    reader = _Reader(data)
    version = reader.int16()
    if version < 0:
        raise ValueError(f"a subscription cannot have version {version}")
    topics = tuple(reader.string() for _ in range(reader.count()))
    reader.bytes_()
    owned = reader.partitions() if version >= _OWNED_SINCE else {}
    if version >= _GENERATION_SINCE:
        reader.int32()
    rack_id = reader.nullable_string() if version >= _RACK_SINCE else None
    return Subscription(min(version, _NEWEST), topics, tuple(owned.items()), rack_id)


def decode_assignment(data: bytes) -> Assignment:
    """Decode a ConsumerProtocolAssignment. Raises ValueError if the bytes are not an assignment."""
    reader = _Reader(data)
    if (version := reader.int16()) < 0:
        raise ValueError(f"an assignment cannot have version {version}")
    return Assignment(reader.partitions(), reader.bytes_())


def encode_assignment(partitions: Mapping[str, Iterable[int]], version: int) -> bytes:
    """Encode an assignment without user data, in the version of the member's subscription."""
    out = bytearray(_VERSION_AND_COUNT.pack(version, len(partitions)))
    for topic, indexes in partitions.items():
        name, numbers = topic.encode(), sorted(indexes)
        out += _LENGTH.pack(len(name)) + name + struct.pack(f">{len(numbers) + 1}i", len(numbers), *numbers)
    return bytes(out + _INT32.pack(-1))


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def int16(self) -> int:
        return int.from_bytes(self._take(2), "big", signed=True)

    def int32(self) -> int:
        return int.from_bytes(self._take(4), "big", signed=True)

    def count(self) -> int:
        """Read the length of an array, whose items take at least one byte."""
        count = self.int32()
        if not 0 <= count <= len(self._data) - self._position:
            raise ValueError(f"invalid array length {count}")
        return count

    def nullable_string(self) -> str | None:
        size = self.int16()
        return None if size < 0 else self._take(size).decode()

    def string(self) -> str:
        return self.nullable_string() or ""

    def bytes_(self) -> bytes:
        return self._take(max(self.int32(), 0))

    def partitions(self) -> dict[str, tuple[int, ...]]:
        return {self.string(): tuple(self.int32() for _ in range(self.count())) for _ in range(self.count())}

    def _take(self, size: int) -> bytes:
        end = self._position + size
        if end > len(self._data):
            raise ValueError("it is truncated")
        data = self._data[self._position : end]
        self._position = end
        return data
