import contextlib
import json
from collections.abc import Sequence

from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.json_lines import MalformedRecordError, from_json_line, to_json_line
from headrace.cli.record import Record
from tests.support.refusals import wrong_reasons

NOW_MS = 1_795_000_000_000

data = st.none() | st.binary() | st.text().map(str.encode)
headers = st.lists(st.tuples(st.text(min_size=1), data), max_size=4)


def message(
    key: bytes | None = None, value: bytes | None = None, headers: Sequence[tuple[str, bytes | None]] = ()
) -> Message:
    return Message(
        topic="t", partition=2, offset=5, key=key, value=value, headers=[*headers], timestamp=(1, 1_763_719_200_000)
    )


def test_a_record_becomes_one_object_with_every_field() -> None:
    line = to_json_line(message(b"k", "vé".encode(), [("trace", b"1"), ("trace", None)]))
    assert json.loads(line) == {
        "topic": "t",
        "partition": 2,
        "offset": 5,
        "timestamp": 1_763_719_200_000,
        "key": "k",
        "value": "vé",
        "headers": [["trace", "1"], ["trace", None]],
    }


def test_null_empty_and_bytes_that_are_not_utf8_differ() -> None:
    fields = json.loads(to_json_line(message(b"", None)))
    assert (fields["key"], fields["value"]) == ("", None)
    assert b'"value": {"base64": "/wA="}' in to_json_line(message(value=b"\xff\x00"))


def test_control_characters_of_terminals_are_escaped() -> None:
    assert b'"value": "\\u001b\\u007f\\u0080\\u009b\xc3\xa9"' in to_json_line(
        message(value="\x1b\x7f\x80\x9bé".encode())
    )


@given(data, data, headers)
def test_a_printed_record_can_be_read_back(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]
) -> None:
    line = to_json_line(message(key, value, headers))
    assert b"\n" not in line
    assert from_json_line(line, NOW_MS) == Record(key, value, headers, 2, 1_763_719_200_000)


def test_all_fields_are_optional_and_may_be_shorter() -> None:
    assert from_json_line(b'{"value": "v"}', NOW_MS) == Record(None, b"v", [])
    assert from_json_line(b'{"headers": {"a": "1", "b": null}, "timestamp": "1m ago"}', NOW_MS) == Record(
        None, None, [("a", b"1"), ("b", None)], timestamp_ms=NOW_MS - 60_000
    )


def test_a_malformed_line_is_refused_with_the_reason() -> None:
    reasons = {
        "{": "not JSON",
        "[" * 100_000: "not JSON",
        "[1]": "not a JSON object",
        '{"vaule": "v"}': "unknown field 'vaule'",
        '{"value": 1}': "'value' must be a string",
        '{"value": {"a": 1}}': "write JSON inside a record as a string",
        '{"value": {"base64": "?"}}': "malformed base64",
        '{"value": "\\ud800"}': "an unpaired surrogate",
        '{"headers": {"\\ud800": "x"}}': r"the header name '\ud800' contains an unpaired surrogate",
        '{"partition": -1}': "'partition' is -1",
        '{"partition": true}': "'partition' is true",
        '{"timestamp": 1.5}': "'timestamp' is 1.5",
        '{"timestamp": "1970-01-01T00:00:00Z"}': "'timestamp' is 0",
        '{"timestamp": 0}': "'timestamp' is 0, which librdkafka would replace with the current time",
        '{"timestamp": "soon"}': "'timestamp': 'soon' is not a valid time",
        '{"headers": [["a"]]}': "pairs",
        '{"headers": {"a": 1}}': "'header a' must be a string",
    }
    assert wrong_reasons(reasons, lambda line: from_json_line(line.encode(), NOW_MS), MalformedRecordError) == {}


@given(st.binary() | st.text().map(str.encode))
def test_any_line_is_a_record_or_malformed(line: bytes) -> None:
    with contextlib.suppress(MalformedRecordError):
        from_json_line(line, NOW_MS)
