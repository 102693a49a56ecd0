"""Hand-written codec for Fetch 13 to 17 between brokers; records of a reply are views of the received bytes.

Records are neither copied nor decoded. Layout: https://kafka.apache.org/protocol#The_Messages_Fetch; sessions: KIP-227,
epochs: KIP-595, topic ids: KIP-516, replica epochs: KIP-903.
"""

from collections.abc import Iterable, Mapping, Sequence
from struct import Struct, error
from typing import Final, NamedTuple, TypeAlias

from headrace.types import new_tuple
from headrace.wire.varint import put_unsigned_varint, unsigned_varint

FETCH_VERSION: Final = 17
"""The version between brokers of Kafka 3.9. Versions 13 to 16 have the same partitions and replies."""
_FIRST_WITH_REPLICA_STATE: Final = 15

PartitionKey: TypeAlias = tuple[bytes, int]
"""The 16 bytes of the topic id, and the partition."""

ENTRY: Final = Struct(">iiqiqiB")
"""A partition in a request: partition, leader epoch, fetch offset, last fetched epoch, log start offset, max bytes, and
no tagged fields."""

_HEAD: Final = Struct(">iiibii")
_CONSUMER: Final = -1
"""The replica id of a request before version 15 that does not come from a follower."""
_INT32: Final = Struct(">i")
_REPLICA_STATE: Final = Struct(">BBBiqB")
"""One tagged field: tag 1 of 13 bytes with replica id and replica epoch."""
_REPLICA_STATE_TAG: Final = 1
_REPLICA_STATE_SIZE: Final = 13
_REPLY_HEAD: Final = Struct(">ihi")
_PARTITION: Final = Struct(">ihqqq")
_ABORTED_SIZE: Final = 16
_TOPIC_ID_SIZE: Final = 16
_DIVERGING: Final = Struct(">iq")
_DIVERGING_TAG: Final = 0


class MalformedReplyError(Exception):
    """The reply does not follow the schema."""


class FetchLimits(NamedTuple):
    """The leader waits up to `max_wait_ms` for `min_bytes`; a reply has at most `max_bytes`."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int


class FetchedPartition(NamedTuple):
    """A partition in a reply. `records` may end within a batch.

    If the follower's log differs from the leader's, `diverging` is the leader's largest epoch that is not above the
    last fetched one, and its end offset; None otherwise.
    """

    key: PartitionKey
    error_code: int
    high_watermark: int
    log_start_offset: int
    diverging: tuple[int, int] | None
    records: memoryview


class FetchReply(NamedTuple):
    """A reply. `error_code` concerns the whole request."""

    error_code: int
    session_id: int
    partitions: list[FetchedPartition]


def encode_fetch(
    limits: FetchLimits,
    session: tuple[int, int],
    entries: Mapping[PartitionKey, bytes],
    forgotten: Iterable[PartitionKey],
    replica: tuple[int, int] | None,
    version: int = FETCH_VERSION,
) -> bytearray:
    """Return the body of a request. `entries` are packed by `ENTRY`; `session` is the id and epoch of the session.

    `replica` is the id and epoch of the follower; None fetches like a consumer, up to the high watermark.
    """
    out = bytearray()
    if version < _FIRST_WITH_REPLICA_STATE:
        out += _INT32.pack(_CONSUMER if replica is None else replica[0])
    out += _HEAD.pack(*limits, 0, *session)
    topics: dict[bytes, list[bytes]] = {}
    for (topic_id, _), entry in entries.items():
        topics.setdefault(topic_id, []).append(entry)
    _put_topics(out, topics)
    gone: dict[bytes, list[bytes]] = {}
    for topic_id, partition in forgotten:
        gone.setdefault(topic_id, []).append(_INT32.pack(partition))
    _put_topics(out, gone)
    out.append(1)  # an empty rack
    if replica is None or version < _FIRST_WITH_REPLICA_STATE:
        out.append(0)
    else:
        out += _REPLICA_STATE.pack(1, _REPLICA_STATE_TAG, _REPLICA_STATE_SIZE, *replica, 0)
    return out


def _put_topics(out: bytearray, topics: Mapping[bytes, Sequence[bytes]]) -> None:
    put_unsigned_varint(out, len(topics) + 1)
    for topic_id, items in topics.items():
        out += topic_id
        put_unsigned_varint(out, len(items) + 1)
        out += b"".join(items)
        out.append(0)


def parse_fetch_reply(body: memoryview) -> FetchReply:
    """Return the reply in `body`, with views of its records. Raises MalformedReplyError."""
    try:
        _, error_code, session_id = _REPLY_HEAD.unpack_from(body)
        count, position = unsigned_varint(body, _REPLY_HEAD.size)
        partitions: list[FetchedPartition] = []
        for _ in range(count - 1):
            topic_id = bytes(body[position : position + _TOPIC_ID_SIZE])
            inner, position = unsigned_varint(body, position + _TOPIC_ID_SIZE)
            for _ in range(inner - 1):
                fetched, position = _partition(body, position, topic_id)
                partitions.append(fetched)
            position = _after_tags(body, position)
        position = _after_tags(body, position)
    except (error, IndexError, ValueError) as failure:
        raise MalformedReplyError(f"the Fetch reply is malformed: {failure}") from failure
    if position != len(body):
        raise MalformedReplyError(f"the Fetch reply has {len(body) - position} bytes too many")
    return FetchReply(error_code, session_id, partitions)


def _partition(body: memoryview, position: int, topic_id: bytes) -> tuple[FetchedPartition, int]:
    partition, error_code, high_watermark, _, log_start_offset = _PARTITION.unpack_from(body, position)
    # a reply to a follower lists no aborted transactions; one to a consumer may
    aborted, position = unsigned_varint(body, position + _PARTITION.size)
    for _ in range(aborted - 1):
        position = _after_tags(body, position + _ABORTED_SIZE)
    size, position = unsigned_varint(body, position + _INT32.size)  # after the preferred read replica
    end = position + max(size - 1, 0)
    if end > len(body):
        raise IndexError("the records end after the reply")
    records = body[position:end]
    diverging = None
    if body[end]:
        diverging, end = _tags(body, end)
    else:
        end += 1
    key = (topic_id, partition)
    values = (key, error_code, high_watermark, log_start_offset, diverging, records)
    return new_tuple(FetchedPartition, values), end


def _tags(body: memoryview, position: int) -> tuple[tuple[int, int] | None, int]:
    """Return the diverging epoch and its end offset, and the position after all tagged fields."""
    diverging = None
    count, position = unsigned_varint(body, position)
    for _ in range(count):
        tag, position = unsigned_varint(body, position)
        size, position = unsigned_varint(body, position)
        if tag == _DIVERGING_TAG:
            epoch, end_offset = _DIVERGING.unpack_from(body, position)
            diverging = (epoch, end_offset) if epoch >= 0 else None
        position += size
    return diverging, position


def _after_tags(body: memoryview, position: int) -> int:
    count, position = unsigned_varint(body, position)
    for _ in range(count):
        _, position = unsigned_varint(body, position)
        size, position = unsigned_varint(body, position)
        position += size
    return position
