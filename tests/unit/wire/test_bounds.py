"""Requests with impossible array lengths are rejected before they are decoded."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio._kio_native import entity_reader
from kio.static.constants import EntityType

from headrace.slices import run_all
from headrace.wire.apis import ApiKey, request_encoder, schema, schema_class, versions
from headrace.wire.bounds import MAX_ENTRIES, TooManyEntriesError, _structure, compile_bounds
from headrace.wire.strict_fields import compile_strict
from headrace.wire.varint import put_unsigned_varint
from tests.fuzz.entities import requests
from tests.support.examples import examples
from tests.support.schemas import EVERY_VERSION

UNUSUAL = [
    (ApiKey.BROKER_HEARTBEAT, 2),
    (ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0),
    (ApiKey.FETCH, 18),
    (ApiKey.JOIN_GROUP, 9),
    (ApiKey.UPDATE_METADATA, 8),
]
"""Requests with nullable structures, bytes, and tagged fields of all types."""


@settings(max_examples=examples(20))
@given(data=st.data())
def test_a_valid_request_passes_all_checks_unchanged(data: st.DataObject) -> None:
    for api, version in (*UNUSUAL, data.draw(st.sampled_from(EVERY_VERSION))):
        content = bytearray(b"before")
        request_encoder(api, version)(content, data.draw(requests(api, version)))
        body = bytes(content)

        request = schema_class(api, version, EntityType.request)
        compile_bounds(request)(body, 6)
        assert _structure(request, [MAX_ENTRIES]).after(0)(body, 6) == len(body)
        if request.__flexible__:
            strict = run_all(compile_strict(request, 0)(body, 6))
            decode = entity_reader(request)
            assert decode(strict, 0)[0] == decode(body, 6)[0]


def test_a_null_array_is_refused_if_it_is_not_nullable() -> None:
    for api, version, body in (
        (ApiKey.DELETE_GROUPS, 2, b"\x00\x00"),
        (ApiKey.LEAVE_GROUP, 5, b"\x02g\x00\x00"),
        (ApiKey.CREATE_TOPICS, 7, b"\x00"),
    ):
        with pytest.raises(ValueError, match="an array is null"):
            pytest.fail(f"{api.name}: {schema(api, version).read_request(body, 0)}")


def test_a_null_array_is_accepted_if_it_is_nullable() -> None:
    request, _ = schema(ApiKey.METADATA, 12).read_request(b"\x00\x01\x00\x00", 0)
    assert request.topics is None


def test_an_array_longer_than_its_request_is_refused() -> None:
    for api, version, body in (
        # kio's reader would exhaust the memory of the process
        (ApiKey.CREATE_TOPICS, 7, bytes.fromhex("808080ff7f")),
        (ApiKey.METADATA, 12, bytes.fromhex("ffffffff7f00")),
        (ApiKey.METADATA, 4, struct.pack(">i", 2**31 - 1) + b"\x00\x01x"),
        (ApiKey.LEAVE_GROUP, 5, b"\x02g" + bytes.fromhex("ffffffff7f") + bytes(20)),
    ):
        with pytest.raises(ValueError, match=r"an array declares \d+ items, but only \d+ bytes remain"):
            pytest.fail(f"{api.name} v{version}: {schema(api, version).read_request(body, 0)}")


@pytest.mark.parametrize(("api", "array"), [(ApiKey.DESCRIBE_GROUPS, "groups"), (ApiKey.DELETE_GROUPS, "groups_names")])
def test_entries_are_counted_and_limited(api: ApiKey, array: str) -> None:
    known = versions(api)
    assert known is not None
    bounded = compile_bounds(schema_class(api, known.highest, EntityType.request), 10)

    def check(count: int) -> int:
        body = bytearray()
        request_encoder(api, known.highest)(body, {array: ["g"] * count, "include_authorized_operations": False})
        return bounded(bytes(body), 0)

    assert [check(count) for count in (0, 3, 0, 10)] == [0, 3, 0, 10]
    with pytest.raises(TooManyEntriesError):
        check(11)
    assert check(7) == 7


def test_nested_entries_are_counted_together() -> None:
    topic = {"name": "t", "partitions": [{"partition_index": index} for index in range(4)]}
    body = bytearray()
    request_encoder(ApiKey.OFFSET_DELETE, 0)(body, {"group_id": "g", "topics": [topic] * 3})
    assert schema(ApiKey.OFFSET_DELETE, 0).check_request(bytes(body), 0) == 3 + 3 * 4


def test_tagged_fields_count_as_entries() -> None:
    # a known tag, which the reader would read repeatedly
    fetch = bytes(4 * 3 + 1 + 4 + 4) + b"\x01\x01\x01"
    count = bytearray()
    put_unsigned_varint(count, MAX_ENTRIES + 1)
    body = fetch + count + b"\x00\x01\x00" * (MAX_ENTRIES + 1)
    with pytest.raises(TooManyEntriesError):
        schema(ApiKey.FETCH, 17).read_request(body, 0)


def test_a_skipped_string_has_at_most_32767_bytes() -> None:
    body = bytearray()
    put_unsigned_varint(body, 32_769)
    body += bytes(32_768) + b"\x01\x00"
    with pytest.raises(ValueError, match="a string has 32768 bytes"):
        schema(ApiKey.LEAVE_GROUP, 5).read_request(bytes(body), 0)
