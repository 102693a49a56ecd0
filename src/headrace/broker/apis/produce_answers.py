"""Encode replies to Produce by hand.

Layout: https://kafka.apache.org/protocol#The_Messages_Produce
"""

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from headrace.broker.current_leader import CurrentLeader, put_endpoints, put_leader
from headrace.errors import KafkaError
from headrace.replication.batch_rules import RecordsRefusedError
from headrace.server.context import NO_REPLY, RawReply, RequestContext
from headrace.server.dispatch import Replies
from headrace.server.frames import InvalidRequestError
from headrace.wire.encoder import put_count, put_string
from headrace.wire.ids import id_to_text
from headrace.wording import listed

FLEXIBLE: Final = 9
_LOG_START_OFFSET: Final = 5
_RECORD_ERRORS: Final = 8
_TOPIC_IDS: Final = 13
_MAX_NAME: Final = 249
"""Maximum length of a valid topic name (characters). The names in a request may be longer."""
_INT32 = struct.Struct(">i")
_PARTITION = struct.Struct(">ihqqq")
_PARTITION_FLEXIBLE = struct.Struct(">ihqqqBBB")
_PARTITION_V8 = struct.Struct(">ihqqqih")
_PARTITION_V3 = struct.Struct(">ihqq")


class Outcome(NamedTuple):
    """The outcome of one partition's batch; times in ms; -1 for no offset or time."""

    partition: int
    error: int
    base_offset: int = -1
    log_append_time: int = -1
    log_start_offset: int = -1
    message: str | None = None
    record_errors: Sequence[tuple[int, str]] = ()
    leader: CurrentLeader | None = None
    """The partition's leader, if it is another broker."""


Results: TypeAlias = list[tuple[bytes, list[Outcome]]]
"""The encoded topic names of one request, with the outcomes of their batches."""

TopicNames: TypeAlias = Callable[[UUID | None], str | None]
"""Returns the name of the topic with an id; None if there is none."""


def name_bytes(topic: Any, version: int) -> bytes:
    """Return the encoded name or id of a topic in a request."""
    if version >= _TOPIC_IDS:
        topic_id: UUID | None = topic.topic_id
        return bytes(16) if topic_id is None else topic_id.bytes
    return _encoded(topic.name, flexible=version >= FLEXIBLE)


@lru_cache(maxsize=256)
def _encoded(name: str, *, flexible: bool) -> bytes:
    out = bytearray()
    put_string(out, name, flexible=flexible)
    return bytes(out)


def replies_to(
    requests: Sequence[tuple[RequestContext, int]], results: Sequence[Results], name_of: TopicNames
) -> Replies:
    """Return the replies, in order, to requests with these `acks`; InvalidRequestError for a failed one with acks=0."""
    return [
        _reply(topics, acks, context.api_version, name_of)
        for (context, acks), topics in zip(requests, results, strict=True)
    ]


def _reply(results: Results, acks: int, version: int, name_of: TopicNames) -> RawReply | InvalidRequestError:
    if acks != 0:
        return RawReply((_encode(results, version),))
    if failed := any_failed(results):
        # As in Kafka: without a reply, closing the connection is the only sign of failure.
        where = _partitions_with(failed.error, results, version, name_of)
        return InvalidRequestError(f"a Produce with acks=0 failed for {where}: {failed.message}")
    return NO_REPLY


def _partitions_with(error: int, results: Results, version: int, name_of: TopicNames) -> str:
    failed = [(name, outcome.partition) for name, outcomes in results for outcome in outcomes if outcome.error == error]
    return listed((f"{_decoded(name, version, name_of)}-{index}" for name, index in failed), len(failed))


def _decoded(name: bytes, version: int, name_of: TopicNames) -> str:
    """Return the name of a topic from `name_bytes`, as printable text; its id if the topic is unknown."""
    if version >= _TOPIC_IDS:
        topic_id = UUID(bytes=name)
        return name_of(topic_id) or id_to_text(topic_id)
    start = 2
    if version >= FLEXIBLE:
        start = next(place for place, byte in enumerate(name, 1) if byte < 0x80)
    text = name[start:].decode(errors="replace")[:_MAX_NAME]
    return text if text.isprintable() else ascii(text)


def any_failed(results: Results) -> Outcome | None:
    """Return the first failed outcome of a request; None if all succeeded."""
    return next((outcome for _, outcomes in results for outcome in outcomes if outcome.error), None)


def failed(index: int, error: KafkaError, log_start_offset: int = -1, leader: CurrentLeader | None = None) -> Outcome:
    """Return the outcome of a refused batch."""
    records = error.records if isinstance(error, RecordsRefusedError) else ()
    return Outcome(index, error.code.value, -1, -1, log_start_offset, str(error), records, leader)


def _encode(results: Results, version: int) -> bytearray:
    flexible = version >= FLEXIBLE
    has_errors = version >= _RECORD_ERRORS
    out = bytearray()
    leaders: list[CurrentLeader] = []
    put_count(out, len(results), flexible=flexible)
    for name, outcomes in results:
        out += name
        put_count(out, len(outcomes), flexible=flexible)
        for index, error, offset, append_time, start, message, record_errors, leader in outcomes:
            if message is not None and has_errors:
                out += _PARTITION.pack(index, error, offset, append_time, start)
                _put_errors(out, record_errors, message, leader, flexible=flexible)
                if leader is not None:
                    leaders.append(leader)
            elif flexible:
                # no record errors (1), no message (0), no tags (0)
                out += _PARTITION_FLEXIBLE.pack(index, error, offset, append_time, start, 1, 0, 0)
            elif has_errors:
                # no record errors (0), no message (-1)
                out += _PARTITION_V8.pack(index, error, offset, append_time, start, 0, -1)
            elif version >= _LOG_START_OFFSET:
                out += _PARTITION.pack(index, error, offset, append_time, start)
            else:
                out += _PARTITION_V3.pack(index, error, offset, append_time)
        if flexible:
            out.append(0)
    if leaders:
        out += b"\x00\x00\x00\x00"
        put_endpoints(out, leaders)
    else:
        # not throttled, and no tags
        out += b"\x00\x00\x00\x00\x00" if flexible else b"\x00\x00\x00\x00"
    return out


def _put_errors(
    out: bytearray,
    record_errors: Sequence[tuple[int, str]],
    message: str,
    leader: CurrentLeader | None,
    *,
    flexible: bool,
) -> None:
    put_count(out, len(record_errors), flexible=flexible)
    for place, reason in record_errors:
        out += _INT32.pack(place)
        put_string(out, reason, flexible=flexible)
        if flexible:
            out.append(0)
    put_string(out, message, flexible=flexible)
    if leader is not None:
        out.append(1)
        put_leader(out, leader, 0)
    elif flexible:
        out.append(0)
