"""Parsing of access log lines, and the reasons to reject them."""

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import pytest

from headrace.pipeline.transforms import lines
from tests.pipeline.log_lines import combined

if TYPE_CHECKING:
    from tests.pipeline.conftest import Parse


def _row(parse: "Parse", line: str | bytes) -> Any:
    (row,) = parse([line]).collect()
    return row


def test_a_combined_line_has_all_its_fields(parse: "Parse") -> None:
    row = _row(
        parse,
        '83.149.9.216 - frank [17/May/2015:12:05:03 +0200] "GET /a/b.html?q=1#x HTTP/1.1" 200 203023 '
        '"http://example.org/?a=\\"b\\"" "Mozilla/5.0 (X11; Linux)"',
    )
    assert row.reason is None
    assert (row.client, row.method, row.path, row.page) == ("83.149.9.216", "GET", "/a/b.html?q=1#x", "/a/b.html")
    assert (row.protocol, row.status, row.bytes) == ("HTTP/1.1", 200, 203023)
    assert (row.referer, row.user_agent) == ('http://example.org/?a=\\"b\\"', "Mozilla/5.0 (X11; Linux)")


def test_times_are_utc_whatever_their_zone(parse: "Parse") -> None:
    times = [combined(time="17/May/2015:23:30:00 -0200"), combined(time="18/May/2015:01:30:00 +0000")]
    assert [row.t for row in parse(times).selectExpr("cast(event_time as string) as t").collect()] == [
        "2015-05-18 01:30:00"
    ] * 2


def test_a_common_line_has_neither_referer_nor_user_agent(parse: "Parse") -> None:
    row = _row(parse, '::1 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.0" 304 -')
    assert (row.reason, row.client, row.status, row.bytes) == (None, "::1", 304, None)
    assert (row.referer, row.user_agent) == (None, None)


ACCEPTED: Final[dict[str, str | bytes]] = {
    "cut before its last quote": combined()[:-1],
    "more fields at the end": combined() + ' "203.0.113.9" 0.004',
    "blanks at the end": combined() + "  ",
    "binary request": combined(method="\\x16\\x03\\x01"),
    "no request": combined().replace('"GET / HTTP/1.1"', '"-"'),
    "empty request": combined().replace('"GET / HTTP/1.1"', '""'),
    "request with a blank": combined().replace('"GET / HTTP/1.1"', '"GET /a b HTTP/1.1"'),
    "user with a blank": combined().replace(" - - ", " - Jane Doe "),
    "empty user agent": combined(user_agent=""),
    "very long path": combined(path="/" + "a" * 100_000),
    "very many escapes": combined(user_agent='\\"' * 50_000),
    "not UTF-8": combined(path="/caf\u00e9").encode("latin-1"),
}
REJECTED: Final[dict[str, tuple[str, str]]] = {
    "empty": ("", "the line is empty"),
    "blank": ("   ", "the line is empty"),
    "prose": ("hello, world", "no time as [dd/Mon/yyyy:hh:mm:ss +zzzz]"),
    "ISO time": (combined(time="2015-05-17T10:05:03Z"), "no time as [dd/Mon/yyyy:hh:mm:ss +zzzz]"),
    "31 February": (combined(time="31/Feb/2015:10:05:03 +0000"), "the time does not exist in the calendar"),
    "German month": (combined(time="17/Mai/2015:10:05:03 +0000"), "the time does not exist in the calendar"),
    "no quotes": (combined().replace('"', ""), "no quoted request after the time"),
    "torn request": (combined()[:55], "the quoted request does not end"),
    "status in words": (combined().replace(" 200 ", " OK "), "the status is not a number of three digits"),
    "rounded size": (combined(size="12k"), "the size is neither a number nor a hyphen"),
    "no client": (combined(client="-"), "no client address at the start"),
    "two lines": (combined() + "\n" + combined(), "a line break inside the line"),
    "many lines": ("1\n2\n3\n4\n5\n6\n7", "a line break inside the line"),
}


@pytest.fixture(scope="module")
def parsed_lines(parse: "Parse") -> dict[str, Any]:
    """Accepted and rejected lines by name, parsed in a single Spark job to save time."""
    texts = {**ACCEPTED, **{name: line for name, (line, _) in REJECTED.items()}}
    rows = parse(list(texts.values())).orderBy("source_offset").collect()
    return dict(zip(texts, rows, strict=True))


@pytest.mark.parametrize("name", ACCEPTED)
def test_lines_of_real_servers_are_accepted(parsed_lines: dict[str, Any], name: str) -> None:
    assert parsed_lines[name].reason is None
    assert parsed_lines[name].status == 200


@pytest.mark.parametrize("name", REJECTED)
def test_a_malformed_line_is_rejected_with_the_reason(parsed_lines: dict[str, Any], name: str) -> None:
    assert parsed_lines[name].reason == REJECTED[name][1]


def test_rejected_lines_have_their_position(parse: "Parse") -> None:
    parsed = parse([combined(), "torn"])
    (row,) = lines.rejected(parsed).collect()
    assert (row.position, row.line) == ("access-log-0@1", "torn")
    assert lines.events(parsed).count() == 1


def test_a_record_without_value_is_an_empty_line(parse: "Parse") -> None:
    assert [row.reason for row in parse([None]).collect()] == ["the line is empty"]


def test_equal_lines_are_different_events(parse: "Parse") -> None:
    events = lines.events(parse([combined(), combined()]))
    assert sorted(row.source_offset for row in events.collect()) == [0, 1]
    assert {type(row.event_time) for row in events.collect()} == {datetime}
