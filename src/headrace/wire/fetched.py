"""Hand-written codec for Fetch 13 to 17 between brokers.

Records are neither copied nor decoded: those of a reply are views of the received bytes.
Layout: https://kafka.apache.org/protocol#The_Messages_Fetch; sessions: KIP-227, epochs: KIP-595, topic ids: KIP-516,
replica epochs: KIP-903.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from functools import lru_cache
from struct import Struct, error
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from headrace.types import Buffer, new_tuple
from headrace.wire.varint import put_unsigned_varint, unsigned_varint

FETCH_VERSION: Final = 17
"""The version that Kafka 3.9 uses between brokers. Versions 13 to 16 have the same partitions and replies."""
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
_ONE_PARTITION: Final = Struct(">ihiB16sBihqqqBi")
"""A reply with one partition up to its records: no throttling, error, session; 2 for one topic, topic id, 2 for one
partition, the fields of `_PARTITION`, 0 or 1 for no aborted transactions, preferred read replica."""
_ABORTED_SIZE: Final = 16
_TOPIC_ID_SIZE: Final = 16
_DIVERGING: Final = Struct(">iq")
_DIVERGING_TAG: Final = 0


FOLLOWER_FETCH_VERSIONS: Final = range(15, 18)
"""The versions that `parse_follower_fetch` decodes."""
_USUAL_SIZE: Final = 4096
_ASKED: Final = Struct(">iiibiiB")
"""Max wait, min bytes, max bytes, isolation level, id and epoch of the session, and the number of topics + 1."""
_ASKED_TOPIC: Final = Struct(">16sB")
"""Topic id, and the number of partitions + 1."""
_ASKED_TAIL: Final = Struct(">BBBBBBiqB")
"""No tagged fields of the last topic, no forgotten topics, no rack; one tagged field with tag 1 and 13 bytes: replica
id and epoch without tagged fields."""
_ASKED_END: Final = bytes((0, 1, 1, 1, 1, 13))


class MalformedReplyError(Exception):
    """The reply does not follow the schema."""


class FetchLimits(NamedTuple):
    """The leader waits up to `max_wait_ms` for `min_bytes`; a reply has at most `max_bytes`."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int


class FetchedPartition(NamedTuple):
    """A partition in a reply. `records` may end within a batch.

    If the follower's log diverges from the leader's, `diverging` is the leader's largest epoch up to the last fetched
    one, with its end offset; otherwise None.
    """

    key: PartitionKey
    error_code: int
    high_watermark: int
    log_start_offset: int
    diverging: tuple[int, int] | None
    records: memoryview


class FetchReply(NamedTuple):
    """A decoded Fetch reply. `error_code` applies to the whole request; each partition has its own."""

    error_code: int
    session_id: int
    partitions: list[FetchedPartition]


def encode_fetch(
    limits: FetchLimits,
    session: tuple[int, int],
    entries: Mapping[PartitionKey, bytes],
    forgotten: Collection[PartitionKey],
    replica: tuple[int, int] | None,
    version: int = FETCH_VERSION,
) -> Buffer:
    """Return the body of a request. `entries` are packed by `ENTRY`; `session` is the id and epoch of the session.

    `replica` is the id and epoch of the follower; None fetches like a consumer, up to the high watermark.
    """
    if len(entries) == 1 and not forgotten and replica is not None and version >= _FIRST_WITH_REPLICA_STATE:
        [((topic_id, _), entry)] = entries.items()
        head = _HEAD.pack(*limits, 0, *session)
        state = _REPLICA_STATE.pack(1, _REPLICA_STATE_TAG, _REPLICA_STATE_SIZE, *replica, 0)
        # one topic with one partition; no tagged fields, no forgotten topics, no rack
        return b"".join((head, b"\2", topic_id, b"\2", entry, b"\0\1\1", state))
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
        found = _one_partition(body)
        if found is not None:
            return found
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
        raise MalformedReplyError(f"the Fetch reply has {len(body) - position} extra bytes at its end")
    return FetchReply(error_code, session_id, partitions)


def _one_partition(body: memoryview) -> FetchReply | None:
    """Return a reply with one partition and no tagged fields, the usual one for a busy partition; None for others."""
    if len(body) <= _ONE_PARTITION.size:
        return None
    fields = _ONE_PARTITION.unpack_from(body)
    _, error_code, session_id, topics, topic_id, count, partition, partition_error = fields[:8]
    high_watermark, _, log_start_offset, aborted, _ = fields[8:]
    if topics != 2 or count != 2 or aborted > 1:
        return None
    size, position = unsigned_varint(body, _ONE_PARTITION.size)
    end = position + max(size - 1, 0)
    if bytes(body[end:]) != b"\0\0\0":
        return None
    values = ((topic_id, partition), partition_error, high_watermark, log_start_offset, None, body[position:end])
    return FetchReply(error_code, session_id, [new_tuple(FetchedPartition, values)])


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


class AskedPartition(NamedTuple):
    """A partition in a request; the fields have the schema's names."""

    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    partition_max_bytes: int
    tags: int


class AskedTopic(NamedTuple):
    topic_id: UUID | None
    partitions: list[AskedPartition]


class ReplicaState(NamedTuple):
    replica_id: int
    replica_epoch: int


class FollowerFetch(NamedTuple):
    """A request; the fields have the schema's names."""

    max_wait: timedelta
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: list[AskedTopic]
    replica_state: ReplicaState
    forgotten_topics_data: tuple[()] = ()
    rack_id: str = ""


def parse_follower_fetch(frame: memoryview, position: int) -> FollowerFetch | None:
    """Return the request whose body begins at `position`; None if it is unusual or malformed.

    Usual requests contain few partitions and no forgotten topics. The schema's reader takes ten times as long.
    """
    size = len(frame)
    tail = size - _ASKED_TAIL.size
    if size > _USUAL_SIZE or tail < position + _ASKED.size or frame[tail : tail + len(_ASKED_END)] != _ASKED_END:
        return None
    max_wait_ms, min_bytes, max_bytes, isolation, session_id, epoch, topics_1 = _ASKED.unpack_from(frame, position)
    position += _ASKED.size
    topics: list[AskedTopic] = []
    for number in range(topics_1 - 1):
        if number:
            if frame[position]:
                return None  # tagged fields of the previous topic
            position += 1
        if position + _ASKED_TOPIC.size > tail:
            return None
        topic_id, partitions_and_one = _ASKED_TOPIC.unpack_from(frame, position)
        position += _ASKED_TOPIC.size
        end = position + (partitions_and_one - 1) * ENTRY.size
        if not position < end <= tail:
            return None
        partitions = [new_tuple(AskedPartition, entry) for entry in ENTRY.iter_unpack(frame[position:end])]
        if any(partition.tags for partition in partitions):
            return None
        topics.append(AskedTopic(_uuid(topic_id), partitions))
        position = end
    # Without topics, the first byte of the tail is the number of forgotten topics.
    if position != tail or not topics or topics_1 > 0x7F:
        return None
    replica_id, replica_epoch, tags = _ASKED_TAIL.unpack_from(frame, tail)[6:]
    if tags or replica_id < 0:
        return None
    return FollowerFetch(
        _milliseconds(max_wait_ms),
        min_bytes,
        max_bytes,
        isolation,
        session_id,
        epoch,
        topics,
        ReplicaState(replica_id, replica_epoch),
    )


@lru_cache(maxsize=1024)
def _uuid(content: bytes) -> UUID | None:
    return UUID(bytes=content) if any(content) else None


@lru_cache(maxsize=64)
def _milliseconds(value: int) -> timedelta:
    return timedelta(milliseconds=value)
