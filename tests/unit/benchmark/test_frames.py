"""The schemas read the hand-packed frames."""

import json
from typing import Any

import pytest

from bench import frames
from headrace.wire.apis import ApiKey, schema
from headrace.wire.records import iter_records
from headrace.wire.validation import validate_produced

HEADER_SIZE = 4 + 2 + 2 + 4 + 2 + len("bench")


def read(frame: bytes | bytearray) -> tuple[Any, int]:
    """Return the request in a frame, and its size without header."""
    return schema(ApiKey.PRODUCE, 8).read_request(memoryview(frame).toreadonly(), HEADER_SIZE)


def test_a_produce_frame_has_one_valid_batch_per_partition() -> None:
    frame = frames.produce("a-topic", range(3), records=70, record_size=100)

    request, size = read(frame)

    assert HEADER_SIZE + size == len(frame)
    assert request.acks == 1
    assert [topic.name for topic in request.topic_data] == ["a-topic"]
    partitions = request.topic_data[0].partition_data
    assert [partition.index for partition in partitions] == [0, 1, 2]
    for partition in partitions:
        assert validate_produced(partition.records, 1 << 20)[0].record_count == 70
        assert [len(record.value or b"") for record in iter_records(partition.records)] == [100] * 70


@pytest.mark.parametrize("codec", ["none", "zstd", "lz4"])
def test_keyed_records_have_two_headers_and_the_documented_size(codec: str) -> None:
    frame = frames.produce_keyed("a-topic", range(2), records=10, codec=codec)
    request, _ = read(frame)
    batches = [partition.records for partition in request.topic_data[0].partition_data]
    assert batches[0] != batches[1]
    for batch in batches:
        assert validate_produced(batch, 1 << 20).header.record_count == 10
        for record in iter_records(batch):
            assert 80 <= len(record.key or b"") + len(record.value or b"") < 420
            assert len(record.headers) == 2


def test_json_values_have_one_kilobyte() -> None:
    request, _ = read(frames.produce_json("a-topic", range(1), records=3))
    for record in iter_records(request.topic_data[0].partition_data[0].records):
        assert record.key
        assert 1000 <= len(record.value or b"") <= 1024
        assert json.loads(record.value or b"")


def test_error_codes_are_found_in_a_response() -> None:
    partitions: list[dict[str, object]] = [
        {"index": 0, "error_code": 0, "base_offset": 7, "log_append_time": -1},
        {"index": 1, "error_code": 3, "base_offset": -1, "error_message": "unknown"},
        {"index": 2, "error_code": 0, "base_offset": 8},
    ]
    answers = [{"record_errors": [], **partition} for partition in partitions]
    response = bytearray(4)
    schema(ApiKey.PRODUCE, 8).encode_response(
        response, {"responses": [{"name": "a-topic", "partition_responses": answers}]}
    )
    assert frames.produce_errors(bytes(response)) == [0, 3, 0]
