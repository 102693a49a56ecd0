"""The decoder of followers' fetches against the schema."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from headrace.wire.apis import ApiKey, request_encoder, schema
from headrace.wire.fetched import ENTRY, FOLLOWER_FETCH_VERSIONS, FetchLimits, encode_fetch, parse_follower_fetch

FIRST, SECOND = UUID(int=7), UUID(int=1 << 100)
LIMITS = FetchLimits(max_wait_ms=500, min_bytes=1, max_bytes=10_485_760)
ENTRIES = {
    (FIRST.bytes, 0): ENTRY.pack(0, 4, 100, 3, 10, 1_000_000, 0),
    (SECOND.bytes, 2): ENTRY.pack(2, 5, 200, -1, 0, 1_000_000, 0),
    (FIRST.bytes, 1): ENTRY.pack(1, 4, 101, 3, 10, 1_000_000, 0),
}
PARTITION = ("partition", "current_leader_epoch", "fetch_offset", "last_fetched_epoch", "log_start_offset")


def usual(entries: dict[tuple[bytes, int], bytes] = ENTRIES, version: int = 17) -> bytes:
    return bytes(encode_fetch(LIMITS, (9, 3), entries, [], (4, 77), version))


def fields_of(request: Any) -> tuple[object, ...]:
    topics = [
        (topic.topic_id, [(*(getattr(each, name) for name in PARTITION), each.partition_max_bytes)])
        for topic in request.topics
        for each in topic.partitions
    ]
    replica = request.replica_state
    return (
        request.max_wait,
        request.min_bytes,
        request.max_bytes,
        request.isolation_level,
        request.session_id,
        request.session_epoch,
        topics,
        (replica.replica_id, replica.replica_epoch),
        tuple(request.forgotten_topics_data),
        request.rack_id,
    )


def schema_fields(**changes: Any) -> bytes:
    """Return a follower's request that the schema encodes, with some fields changed."""
    partition = {**dict.fromkeys(PARTITION, 1), "partition_max_bytes": 9}
    fields = {
        "replica_state": {"replica_id": 4, "replica_epoch": 77},
        "max_wait": 500,
        "min_bytes": 1,
        "max_bytes": 1000,
        "isolation_level": 0,
        "session_id": 9,
        "session_epoch": 3,
        "topics": [{"topic_id": FIRST, "partitions": [partition]}],
        "forgotten_topics_data": [],
        "rack_id": "",
        **changes,
    }
    out = bytearray()
    request_encoder(ApiKey.FETCH, 17)(out, fields)
    return bytes(out)


@pytest.mark.parametrize("version", FOLLOWER_FETCH_VERSIONS)
def test_a_usual_request_is_decoded_as_by_the_schema(version: int) -> None:
    for count in (1, 3):
        body = usual(dict(list(ENTRIES.items())[:count]), version)

        request = parse_follower_fetch(memoryview(b"head" + body), 4)

        assert request is not None
        assert request.max_wait == timedelta(milliseconds=500)
        assert fields_of(request) == fields_of(schema(ApiKey.FETCH, version).read_request(body, 0)[0])


def test_the_zero_topic_id_is_none_as_in_the_schema() -> None:
    request = parse_follower_fetch(memoryview(usual({(bytes(16), 0): ENTRIES[FIRST.bytes, 0]})), 0)
    assert request is not None
    assert request.topics[0].topic_id is None


def test_other_requests_are_left_to_the_schema() -> None:
    bodies = {
        "no topic": usual({}),
        "many": usual({(FIRST.bytes, index): ENTRY.pack(index, 4, 100, 3, 10, 1000, 0) for index in range(200)}),
        "forgets": bytes(encode_fetch(LIMITS, (9, 3), ENTRIES, [(SECOND.bytes, 7)], (4, 77))),
        "consumer": bytes(encode_fetch(LIMITS, (9, 3), ENTRIES, [], None)),
        "rack": schema_fields(rack_id="r"),
        "no replica": schema_fields(replica_state={"replica_id": -1, "replica_epoch": -1}),
        "no partition": schema_fields(topics=[{"topic_id": FIRST, "partitions": []}]),
        "no topics": schema_fields(topics=[]),
        "cluster id": schema_fields(cluster_id="c"),
    }
    assert {name: parse_follower_fetch(memoryview(body), 0) for name, body in bodies.items()} == dict.fromkeys(bodies)


def test_a_damaged_request_is_left_to_the_schema_or_read_as_by_it() -> None:
    body = usual()
    for position in range(len(body)):
        assert parse_follower_fetch(memoryview(body[:position]), 0) is None
        assert parse_follower_fetch(memoryview(body[:position] + body[position + 1 :]), 0) is None
        for value in (0, 1, 2, 0x7F, 0x80, 0xFF):
            damaged = body[:position] + bytes((value,)) + body[position + 1 :]
            request = parse_follower_fetch(memoryview(damaged), 0)
            if request is not None:
                assert fields_of(request) == fields_of(schema(ApiKey.FETCH, 17).read_request(damaged, 0)[0])
