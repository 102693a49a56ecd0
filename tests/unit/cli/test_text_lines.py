import pytest
from confluent_kafka import Message

from headrace.cli.json_lines import MalformedRecordError
from headrace.cli.record import Record
from headrace.cli.text_lines import compile_columns, compile_template, for_terminal, from_text_line, unescape
from tests.support.refusals import wrong_reasons

RECORD = Message(
    topic="orders",
    partition=3,
    offset=17,
    key=b"alice",
    value=b"tea",
    headers=[("trace", b"1"), ("trace", None)],
    timestamp=(1, 1_763_719_200_123),
)
TOMBSTONE = Message(topic="orders", partition=0, offset=1, key=b"", value=None, timestamp=(0, -1))


def test_a_template_places_the_fields() -> None:
    lines = {
        "{value}": b"tea",
        "{topic}[{partition}]@{offset}: {key}\\t{value}": b"orders[3]@17: alice\ttea",
        "{timestamp} {time} {headers}": b"1763719200123 2025-11-21T10:00:00.123Z trace=1,trace=null",
        "{{{key}}}\\\\n": b"{alice}\\n",
        "": b"",
    }
    assert {template: compile_template(template, "null")(RECORD) for template in lines} == lines
    assert compile_template("{key}|{value}|{timestamp}|{time}", "NIL")(TOMBSTONE) == b"|NIL|NIL|NIL"


def test_a_timestamp_in_microseconds_is_printed_as_a_number() -> None:
    record = Message(topic="t", partition=0, offset=0, value=b"tea", timestamp=(1, 1_763_719_200_123_000))
    assert compile_template("{time} {value}", "null")(record) == b"1763719200123000 tea"


def test_an_invalid_template_is_refused() -> None:
    reasons = dict.fromkeys(("{vaule}", "{}", "{0}"), "topic, partition, offset")
    reasons |= dict.fromkeys(("{value:>10}", "{value!r}"), "write '{value}' without ! or : after the name")
    assert wrong_reasons(reasons, lambda template: compile_template(template, "null"), ValueError) == {}


def test_columns_are_joined_by_the_separator() -> None:
    assert compile_columns(["partition", "key", "value"], "; ", "null")(RECORD) == b"3; alice; tea"
    assert compile_columns(["value"], "; ", "null")(TOMBSTONE) == b"null"


def test_a_terminal_gets_no_control_characters() -> None:
    record = Message(topic="t", partition=0, offset=0, value=b"\x1b[31mred\xff\ttab", timestamp=(0, -1))
    assert for_terminal(compile_columns(["value"], "", ""))(record) == b"\\x1b[31mred\\xff\ttab"


def test_escapes_are_resolved() -> None:
    assert unescape(r"a\tb\n\0\\t\x") == "a\tb\n\0\\t\\x"


def test_the_first_separator_ends_the_key() -> None:
    assert from_text_line(b"a::b::c", b"::", None) == Record(b"a", b"b::c", [])
    assert from_text_line(b"a:b", None, None) == Record(None, b"a:b", [])
    with pytest.raises(MalformedRecordError, match="':' is missing"):
        from_text_line(b"alice", b":", None)


def test_only_the_text_for_null_becomes_null() -> None:
    assert from_text_line(b"alice:NIL", b":", b"NIL").value is None
    assert from_text_line(b"alice:", b":", b"NIL").value == b""
    assert from_text_line(b"NIL:tea", b":", b"NIL").key is None
