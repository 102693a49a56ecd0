"""Unknown tagged fields are removed, and strings that are too long are refused."""

from dataclasses import fields

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from kio.static.constants import EntityType

from headrace.slices import run_all
from headrace.types import Buffer
from headrace.wire.apis import ApiKey, max_entries, request_encoder, schema, schema_class
from headrace.wire.bounds import TooManyEntriesError
from headrace.wire.varint import put_unsigned_varint
from tests.fuzz.entities import requests
from tests.support.examples import examples
from tests.support.schemas import EVERY_VERSION

UNKNOWN = b"\xe8\x07\x02hi"
"""An unknown tag (1000) with two bytes."""


@st.composite
def flexible(draw: st.DrawFn) -> tuple[ApiKey, int]:
    """Draw a flexible version without tagged fields.

    `filter` would import the schemas of all versions, which takes two seconds: it looks for elements that pass.
    """
    api, version = draw(st.sampled_from(EVERY_VERSION))
    request = schema_class(api, version, EntityType.request)
    assume(request.__flexible__)
    assume(not any("tag" in field.metadata for field in fields(request)))
    return api, version


def strict(api: ApiKey, version: int, content: Buffer) -> Buffer:
    read = schema(api, version).strict_request
    assert read is not None
    return run_all(read(content, 0))


@settings(max_examples=examples(20))
@given(data=st.data())
def test_an_unknown_tag_at_the_end_is_removed(data: st.DataObject) -> None:
    api, version = data.draw(flexible())
    content = bytearray()
    request_encoder(api, version)(content, data.draw(requests(api, version)))
    tagged = bytes(content[:-1]) + b"\x01" + UNKNOWN

    known = schema(api, version).decode_request(bytes(content), 0)
    assert schema(api, version).decode_request(strict(api, version, tagged), 0) == known


def test_unknown_tags_are_removed_from_items_and_from_known_tags() -> None:
    # DeleteTopics v6: an array of topics with tags of their own
    topic = b"\x02t" + bytes(16)
    body = b"\x03" + topic + b"\x01" + UNKNOWN + topic + b"\x00" + bytes(4) + b"\x01" + UNKNOWN
    request, size = schema(ApiKey.DELETE_TOPICS, 6).decode_request(strict(ApiKey.DELETE_TOPICS, 6, body), 0)
    assert [item.name for item in request.topics] == ["t", "t"]
    assert size == len(body) - 2 * len(UNKNOWN)


def test_known_tags_are_kept_among_unknown_ones() -> None:
    message = {
        "cluster_id": "mine",
        "replica_state": {"replica_id": 3, "replica_epoch": 4},
        "max_wait": 0,
        "min_bytes": 0,
        "max_bytes": 1,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [],
        "forgotten_topics_data": [],
        "rack_id": "",
    }
    content = bytearray()
    request_encoder(ApiKey.FETCH, 17)(content, message)
    place = content.index(b"\x02\x00\x05\x05mine")
    tagged = content[:place] + b"\x03" + content[place + 1 : -1] + b"\x01" + UNKNOWN + UNKNOWN
    # the tags of the state grow, and with them its size
    at = tagged.rindex(b"\x01\x0d")
    tagged[at + 1] += len(UNKNOWN)

    request, _ = schema(ApiKey.FETCH, 17).decode_request(strict(ApiKey.FETCH, 17, bytes(tagged)), 0)

    assert request.cluster_id == "mine"
    assert (request.replica_state.replica_id, request.replica_state.replica_epoch) == (3, 4)


def test_a_string_has_at_most_32767_bytes() -> None:
    def body_with(size: int) -> bytes:
        body = bytearray(b"\x02")
        put_unsigned_varint(body, size + 1)
        return bytes(body) + bytes(size) + b"\x00"

    assert strict(ApiKey.DELETE_GROUPS, 2, body_with(32_767)) == body_with(32_767)
    with pytest.raises(ValueError, match="a string has 32768 bytes; at most 32767 are allowed"):
        strict(ApiKey.DELETE_GROUPS, 2, body_with(32_768))


def test_the_number_of_unknown_tags_is_limited() -> None:
    def body_with(tags: int) -> bytes:
        body = bytearray(b"\x00" + bytes(6) + b"\x01")
        put_unsigned_varint(body, tags)
        return bytes(body) + b"\x05\x00" * tags

    limit = max_entries(ApiKey.PRODUCE)
    assert strict(ApiKey.PRODUCE, 9, body_with(limit)) == body_with(0)
    with pytest.raises(TooManyEntriesError):
        strict(ApiKey.PRODUCE, 9, body_with(limit + 1))
