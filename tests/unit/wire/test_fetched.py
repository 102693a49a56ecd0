"""Fetch by hand against kio's schemas."""

from typing import Any
from uuid import UUID

import pytest

from headrace.wire.apis import ApiKey, schema
from headrace.wire.fetched import (
    ENTRY,
    FETCH_VERSION,
    FetchLimits,
    MalformedReplyError,
    encode_fetch,
    parse_fetch_reply,
)

FIRST, SECOND = UUID(int=7), UUID(int=1 << 100)
LIMITS = FetchLimits(max_wait_ms=500, min_bytes=1, max_bytes=10_485_760)


def reply(*topics: dict[str, Any], **fields: Any) -> memoryview:
    out = bytearray()
    encode = schema(ApiKey.FETCH, FETCH_VERSION).encode_response
    encode(out, {"session_id": 9, "responses": topics, **fields})
    return memoryview(bytes(out))


def topic(topic_id: UUID, *partitions: dict[str, Any]) -> dict[str, Any]:
    return {"topic_id": topic_id, "partitions": partitions}


def partition(index: int, **fields: Any) -> dict[str, Any]:
    return {
        "partition_index": index,
        "high_watermark": 40,
        "log_start_offset": 3,
        "aborted_transactions": None,
        "records": b"",
        **fields,
    }


def test_a_request_is_the_one_that_the_schema_defines() -> None:
    entries = {
        (FIRST.bytes, 0): ENTRY.pack(0, 4, 100, 3, 10, 1_000_000, 0),
        (SECOND.bytes, 2): ENTRY.pack(2, 5, 200, -1, 0, 1_000_000, 0),
        (FIRST.bytes, 1): ENTRY.pack(1, 4, 101, 3, 10, 1_000_000, 0),
    }

    body = encode_fetch(LIMITS, (9, 3), entries, [(SECOND.bytes, 7), (SECOND.bytes, 8)], (4, 77))

    request, size = schema(ApiKey.FETCH, FETCH_VERSION).read_request(bytes(body), 0)
    assert size == len(body)
    assert (request.session_id, request.session_epoch, request.min_bytes, request.max_bytes) == (9, 3, 1, 10_485_760)
    assert (request.replica_state.replica_id, request.replica_state.replica_epoch) == (4, 77)
    asked = [
        (
            each.topic_id,
            [
                (item.partition, item.current_leader_epoch, item.fetch_offset, item.last_fetched_epoch)
                for item in each.partitions
            ],
        )
        for each in request.topics
    ]
    assert asked == [(FIRST, [(0, 4, 100, 3), (1, 4, 101, 3)]), (SECOND, [(2, 5, 200, -1)])]
    assert [(each.topic_id, each.partitions) for each in request.forgotten_topics_data] == [(SECOND, (7, 8))]


@pytest.mark.parametrize(("version", "replica"), [(13, (4, 77)), (14, None), (15, (4, 77)), (16, (4, 77)), (17, None)])
def test_requests_of_all_versions_name_the_replica(version: int, replica: tuple[int, int] | None) -> None:
    entries = {(FIRST.bytes, 0): ENTRY.pack(0, 4, 100, 3, 10, 1_000_000, 0)}

    body = encode_fetch(LIMITS, (9, 3), entries, [], replica, version)

    request, size = schema(ApiKey.FETCH, version).read_request(bytes(body), 0)
    assert size == len(body)
    assert request.topics[0].partitions[0].fetch_offset == 100
    named = request.replica_id if version < 15 else request.replica_state.replica_id
    assert named == (-1 if replica is None else 4)


def test_a_reply_is_read_with_views_of_its_records() -> None:
    body = reply(
        topic(FIRST, partition(0, records=b"abc"), partition(1, records=None)),
        topic(SECOND, partition(5, error_code=6)),
    )

    read = parse_fetch_reply(body)

    assert (read.error_code, read.session_id) == (0, 9)
    assert [(item.key, item.error_code, bytes(item.records)) for item in read.partitions] == [
        ((FIRST.bytes, 0), 0, b"abc"),
        ((FIRST.bytes, 1), 0, b""),
        ((SECOND.bytes, 5), 6, b""),
    ]
    assert read.partitions[0].records.obj is body.obj
    assert (read.partitions[0].high_watermark, read.partitions[0].log_start_offset) == (40, 3)


def test_a_diverging_epoch_is_read_and_other_tagged_fields_are_skipped() -> None:
    tagged = {"diverging_epoch": {"epoch": 3, "end_offset": 25}, "current_leader": {"leader_id": 2, "leader_epoch": 8}}
    nodes = [{"node_id": 2, "host": "b", "port": 9092, "rack": None}]

    for name, diverging in (("diverging_epoch", (3, 25)), ("current_leader", None)):
        read = parse_fetch_reply(reply(topic(FIRST, partition(0, **{name: tagged[name]})), node_endpoints=nodes))
        assert read.partitions[0].diverging == diverging


def test_aborted_transactions_are_skipped() -> None:
    aborted = [{"producer_id": 1, "first_offset": 2}, {"producer_id": 3, "first_offset": 4}]

    read = parse_fetch_reply(reply(topic(FIRST, partition(0, aborted_transactions=aborted, records=b"x" * 300))))

    assert bytes(read.partitions[0].records) == b"x" * 300


def test_a_reply_that_ends_early_or_has_trailing_bytes_is_malformed() -> None:
    body = bytes(reply(topic(FIRST, partition(0, records=b"abc"))))

    for malformed in (*(body[:size] for size in range(len(body))), body + b"\0"):
        with pytest.raises(MalformedReplyError):
            pytest.fail(f"{len(malformed)} bytes: {parse_fetch_reply(memoryview(malformed))}")
