"""Encode the reply to Fetch: handwritten headers and regions of log files.

Layout: https://kafka.apache.org/protocol#The_Messages_Fetch
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from headrace.broker.current_leader import CurrentLeader, put_endpoints, put_leader
from headrace.broker.fetch_session import FetchPartition
from headrace.errors import ErrorCode
from headrace.replication.replica import Replica
from headrace.server.context import RawReply
from headrace.slices import Steps
from headrace.storage.files.log_file import FileSlice
from headrace.storage.log.indexes.txn_index import AbortedTransaction
from headrace.wire.encoder import put_count, put_string
from headrace.wire.varint import put_unsigned_varint

COPIED_BYTES: Final = 4096
"""Regions up to this size (bytes) are read and sent with the headers, at half the cost of a separate `sendfile`."""
AT_ONCE: Final = 500
"""Partitions of a fetch and its session to handle without a pause, in a few milliseconds."""
OFTEN: Final = 64
"""Partitions of a larger fetch between two pauses."""
FLEXIBLE: Final = 12
_TOPIC_IDS: Final = 13

NO_LEADERS: Final[Mapping[FetchPartition, CurrentLeader]] = {}

_INT32 = struct.Struct(">i")
_PARTITION = struct.Struct(">ihqqq")
"""Index, error, high watermark, last stable offset, log start offset (from version 5 on)."""
_ONE_PARTITION = struct.Struct(">B16sBihqqqBi")
"""Number of topics + 1, topic id, number of partitions + 1, the fields of `_PARTITION`, no aborted transactions, and
the preferred replica."""
_HEAD_SESSION = struct.Struct(">ihi")
_DIVERGING = struct.Struct(">BBBiqB")
_ABORTED = struct.Struct(">qq")
"""Producer id and first offset of an aborted transaction."""

SHARED_BYTES: Final = 32 * 1024
"""Regions up to this size (bytes) are read once for all in-sync followers, without a `sendfile` per follower."""


class Copied(NamedTuple):
    """A region that was read into memory."""

    data: bytes
    size: int


Part: TypeAlias = FileSlice | Copied
"""The records of a partition in a reply."""
Answered: TypeAlias = tuple[
    FetchPartition, ErrorCode, Replica | None, Part | None, tuple[int, int] | None, Sequence[AbortedTransaction]
]
"""A requested partition, its error, replica and records, (epoch, end offset) if the client's log has diverged, and the
aborted transactions in the records for READ_COMMITTED."""


def encode(
    changed: list[Answered],
    session_id: int,
    version: int,
    *,
    read_committed: bool,
    leaders: Mapping[FetchPartition, CurrentLeader] = NO_LEADERS,
) -> RawReply:
    """Encode the reply for the partitions in `changed`; `leaders` are returned with errors (KIP-951)."""
    if len(changed) == 1 and version >= _TOPIC_IDS and not read_committed:
        topics = _one_topic(changed[0])
        if topics is not None:
            return RawReply((_HEAD_SESSION.pack(0, 0, session_id) + topics,))
    by_topic: dict[str | UUID, list[Answered]] = {}
    topic: str | UUID | None = None
    of_topic: list[Answered] = []
    for answered in changed:
        if answered[0].topic is not topic:  # hashing a UUID is slow
            topic = answered[0].topic
            of_topic = by_topic.setdefault(topic, [])
        of_topic.append(answered)
    parts: list[bytes | bytearray | FileSlice] = []
    flexible = version >= FLEXIBLE
    out = _head(session_id, version, len(by_topic))
    for topic, partitions in by_topic.items():
        _put_topic(out, topic, len(partitions), flexible=flexible)
        out = _put_partitions(parts, out, partitions, version, leaders, read_committed=read_committed)
        if flexible:
            out.append(0)
    if leaders:
        put_endpoints(out, leaders.values())
    elif flexible:
        out.append(0)
    parts.append(out)
    return RawReply(parts)


def encode_in_steps(
    changed: list[Answered],
    session_id: int,
    version: int,
    *,
    read_committed: bool,
    leaders: Mapping[FetchPartition, CurrentLeader] = NO_LEADERS,
) -> Steps[RawReply]:
    """Like `encode`, for many partitions."""
    by_topic: dict[str | UUID, list[Answered]] = {}
    for start in range(0, len(changed), AT_ONCE):
        for answered in changed[start : start + AT_ONCE]:
            by_topic.setdefault(answered[0].topic, []).append(answered)
        yield
    parts: list[bytes | bytearray | FileSlice] = []
    flexible = version >= FLEXIBLE
    out = _head(session_id, version, len(by_topic))
    for topic, partitions in by_topic.items():
        _put_topic(out, topic, len(partitions), flexible=flexible)
        for start in range(0, len(partitions), OFTEN):
            some = partitions[start : start + OFTEN]
            out = _put_partitions(parts, out, some, version, leaders, read_committed=read_committed)
            yield
        if flexible:
            out.append(0)
    if leaders:
        put_endpoints(out, leaders.values())
    elif flexible:
        out.append(0)
    parts.append(out)
    return RawReply(parts)


def _one_topic(answered: Answered) -> bytes | None:
    """Encode the only partition of a reply on a fast path; None unless it is plain `Copied` records of a topic id."""
    wanted, error, partition, part, diverging, _ = answered
    if type(part) is not Copied or partition is None or error is not ErrorCode.none or diverging is not None:
        return None
    if wanted.preferred_replica >= 0 or not isinstance(wanted.topic, UUID):
        return None
    head = _ONE_PARTITION.pack(
        2,
        wanted.topic.bytes,
        2,
        wanted.index,
        0,
        partition.high_watermark,
        partition.last_stable_offset,
        partition.log.state.log_start_offset,
        0,
        -1,
    )
    size = bytearray()
    put_unsigned_varint(size, part.size + 1)
    return b"".join((head, size, part.data, b"\0\0\0"))


def _head(session_id: int, version: int, topics: int) -> bytearray:
    out = bytearray(_HEAD_SESSION.pack(0, 0, session_id) if version >= 7 else _INT32.pack(0))
    put_count(out, topics, flexible=version >= FLEXIBLE)
    return out


def _put_topic(out: bytearray, topic: str | UUID, partitions: int, *, flexible: bool) -> None:
    if isinstance(topic, UUID):
        out += topic.bytes
    else:
        put_string(out, topic, flexible=flexible)
    put_count(out, partitions, flexible=flexible)


def _put_partitions(
    parts: list[bytes | bytearray | FileSlice],
    out: bytearray,
    partitions: list[Answered],
    version: int,
    leaders: Mapping[FetchPartition, CurrentLeader],
    *,
    read_committed: bool,
) -> bytearray:
    """Append partitions to `out`. Before a file region, move it to `parts` and begin another. Return the last one."""
    flexible = version >= FLEXIBLE
    for answered in partitions:
        wanted, _, _, part, diverging, _ = answered
        _put_partition(out, answered, version, read_committed=read_committed)
        if isinstance(part, Copied):
            out += part.data
        elif part is not None and (part.size > COPIED_BYTES or not _copy(part, out)):
            parts.append(out)
            parts.append(part)
            out = bytearray()
        if flexible:
            if diverging is None and not leaders:
                out.append(0)
            else:
                _put_tags(out, diverging, leaders.get(wanted))
    return out


def _copy(part: FileSlice, out: bytearray) -> bool:
    """Append the region's bytes. Return False if the file has been truncated: the sender will report it."""
    records = part.read()
    if len(records) != part.size:
        return False
    out += records
    return True


def _put_partition(out: bytearray, answered: Answered, version: int, *, read_committed: bool) -> None:
    wanted, error, partition, part, _, aborted = answered
    size = 0 if part is None else part.size
    if partition is None or error is not ErrorCode.none:
        offsets = (-1, -1, -1)
    else:
        offsets = (partition.high_watermark, partition.last_stable_offset, partition.log.state.log_start_offset)
    fixed = _PARTITION.pack(wanted.index, error, *offsets)
    out += fixed if version >= 5 else fixed[:-8]
    # Aborted transactions: a list for an unknown partition, and for read_committed without an error; else null.
    has_list = partition is None or (read_committed and error is ErrorCode.none)
    if version >= FLEXIBLE:
        if aborted:
            put_unsigned_varint(out, len(aborted) + 1)
            for item in aborted:
                out += _ABORTED.pack(item.producer_id, item.first_offset)
                out.append(0)
        else:
            out += b"\x01" if has_list else b"\x00"
        out += _INT32.pack(wanted.preferred_replica)
        put_unsigned_varint(out, size + 1)
    else:
        out += _INT32.pack(len(aborted)) if has_list else b"\xff\xff\xff\xff"
        for one in aborted:
            out += _ABORTED.pack(one.producer_id, one.first_offset)
        if version >= 11:
            out += _INT32.pack(wanted.preferred_replica)
        out += _INT32.pack(size)


def _put_tags(out: bytearray, diverging: tuple[int, int] | None, leader: CurrentLeader | None) -> None:
    if leader is not None:
        out.append(1)
        put_leader(out, leader, 1)
    elif diverging is None:
        out.append(0)
    else:
        # One tagged field with number 0 and 13 bytes: epoch, end offset, no nested tags (KIP-595).
        out += _DIVERGING.pack(1, 0, 13, *diverging, 0)
