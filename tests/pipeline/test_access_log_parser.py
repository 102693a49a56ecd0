"""Parsing of access log lines, and the reasons to reject them."""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.pipeline.log_lines import combined
from tests.pipeline.records import raw_records

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

FULL: Final = (
    '83.149.9.216 - frank [17/May/2015:12:05:03 +0200] "GET /a/b.html?q=1#x HTTP/1.1" 200 203023 '
    '"http://example.org/?a=\\"b\\"" "Mozilla/5.0 (X11; Linux)"'
)
ACCEPTED: Final[dict[str, str | bytes]] = {
    "all fields": FULL,
    "common": '::1 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.0" 200 -',
    "time with a zone": combined(time="17/May/2015:23:30:00 -0230"),
    "cut before its last quote": combined()[:-1],
    "more fields at the end": combined() + ' "203.0.113.9" 0.004',
    "blanks at the end": combined() + "  ",
    "common with blanks at the end": '::1 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.0" 200 7  ',
    "binary request": combined(method="\\x16\\x03\\x01"),
    "no request": combined().replace('"GET / HTTP/1.1"', '"-"'),
    "empty request": combined().replace('"GET / HTTP/1.1"', '""'),
    "request with a blank": combined().replace('"GET / HTTP/1.1"', '"GET /a b HTTP/1.1"'),
    "request without protocol": combined().replace('"GET / HTTP/1.1"', '"GET /old"'),
    "quotes in the request": combined(path='/a?q=\\"b\\"'),
    "user with a blank": combined().replace(" - - ", " - Jane Doe "),
    "user in quotes": combined().replace(" - - ", ' - "jane" '),
    "empty user agent": combined(user_agent=""),
    "very long path": combined(path="/" + "a" * 100_000),
    "very many escapes": combined(user_agent='\\"' * 50_000),
    "largest size": combined(size="1125899906842623"),
    "not UTF-8": combined(path="/caf\u00e9").encode("latin-1"),
}
REJECTED: Final[dict[str, tuple[str | None, str]]] = {
    "no value": (None, "the line is empty"),
    "empty": ("", "the line is empty"),
    "blank": ("   ", "the line is empty"),
    "prose": ("hello, world", "no time as [dd/Mon/yyyy:hh:mm:ss +zzzz]"),
    "ISO time": (combined(time="2015-05-17T10:05:03Z"), "no time as [dd/Mon/yyyy:hh:mm:ss +zzzz]"),
    "31 February": (combined(time="31/Feb/2015:10:05:03 +0000"), "the time does not exist in the calendar"),
    "German month": (combined(time="17/Mai/2015:10:05:03 +0000"), "the time does not exist in the calendar"),
    "hour 24": (combined(time="17/May/2015:24:05:03 +0000"), "the time does not exist in the calendar"),
    "no quotes": (combined().replace('"', ""), "no quoted request after the time"),
    "torn request": (combined()[:55], "the quoted request does not end"),
    "status in words": (combined().replace(" 200 ", " OK "), "the status is not a number of three digits"),
    "rounded size": (combined(size="12k"), "the size is neither a number nor a hyphen"),
    "size of 2^50 bytes": (combined(size="1125899906842624"), "the size is negative, or 2^50 bytes or more"),
    "size of 9e18 bytes": (combined(size="9" + "0" * 18), "the size is negative, or 2^50 bytes or more"),
    "size beyond a bigint": (combined(size="9" * 40), "the size is negative, or 2^50 bytes or more"),
    "no client": (combined(client="-"), "no client address at the start"),
    "no end of the referrer": (combined().replace('"-"', '"-'), "neither Common nor Combined Log Format"),
    "two lines": (combined() + "\n" + combined(), "a line break inside the line"),
    "many lines": ("1\n2\n3\n4\n5\n6\n7", "a line break inside the line"),
}


def _parse(spark: "SparkSession", lines: Sequence[str | bytes | None]) -> list[Any]:
    from headrace.pipeline.parsers import access_log

    return access_log.parsed(raw_records(spark, lines)).orderBy("offset").collect()


@pytest.fixture(scope="module")
def rows(spark: "SparkSession") -> dict[str, Any]:
    """All lines by name, parsed in a single Spark job to save time."""
    texts: dict[str, str | bytes | None] = {**ACCEPTED, **{name: line for name, (line, _) in REJECTED.items()}}
    return dict(zip(texts, _parse(spark, list(texts.values())), strict=True))


def test_a_combined_line_has_all_its_fields(rows: dict[str, Any]) -> None:
    row = rows["all fields"]
    assert (row.client, row.method, row.path, row.page) == ("83.149.9.216", "GET", "/a/b.html?q=1#x", "/a/b.html")
    assert (row.protocol, row.status, row.bytes) == ("HTTP/1.1", 200, 203023)
    assert (row.referer, row.user_agent) == ('http://example.org/?a=\\"b\\"', "Mozilla/5.0 (X11; Linux)")


def test_times_are_read_with_their_zones(rows: dict[str, Any]) -> None:
    assert rows["all fields"].event_time == datetime.fromisoformat("2015-05-17 10:05:03")
    assert rows["time with a zone"].event_time == datetime.fromisoformat("2015-05-18 02:00:00")


def test_a_common_line_has_neither_referer_nor_user_agent(rows: dict[str, Any]) -> None:
    row = rows["common"]
    assert (row.client, row.protocol, row.bytes) == ("::1", "HTTP/1.0", None)
    assert (row.referer, row.user_agent) == (None, None)


def test_malformed_requests_have_no_method_and_no_page(rows: dict[str, Any]) -> None:
    for name in ("binary request", "no request", "empty request", "request with a blank"):
        row = rows[name]
        assert (row.method, row.path, row.page, row.protocol) == (None, None, None, None)


def test_escaped_quotes_belong_to_the_path(rows: dict[str, Any]) -> None:
    row = rows["quotes in the request"]
    assert (row.path, row.page, row.protocol) == ('/a?q=\\"b\\"', "/a", "HTTP/1.1")


def test_a_request_may_lack_the_protocol(rows: dict[str, Any]) -> None:
    row = rows["request without protocol"]
    assert (row.method, row.path, row.protocol) == ("GET", "/old", None)


def test_lines_of_real_servers_are_accepted(rows: dict[str, Any]) -> None:
    assert {name: (rows[name].reason, rows[name].status) for name in ACCEPTED} == dict.fromkeys(ACCEPTED, (None, 200))


def test_malformed_lines_are_rejected_with_the_reason(rows: dict[str, Any]) -> None:
    assert {name: rows[name].reason for name in REJECTED} == {name: reason for name, (_, reason) in REJECTED.items()}


def test_lines_with_small_errors_are_parsed_as_by_the_pattern_of_a_whole_line(spark: "SparkSession") -> None:
    from pyspark.sql import functions as sf

    from headrace.pipeline.parsers import access_log

    bases = (combined(), combined()[:-1], combined(size="-") + " more", str(ACCEPTED["common"]))
    lines = [
        base[:at] + inserted + base[at + removed :]
        for base in bases
        for at in range(len(base) + 1)
        for inserted in ("", '"', " ", "\t", "\r", "\\", "[", "-", "\u2028")
        for removed in (0, 1)
    ]
    line = sf.col("line")
    matches = line.rlike(access_log._LINE) & ~line.contains("\n")
    whole = sf.when(matches, sf.split(sf.regexp_replace(line, access_log._LINE, access_log._PARTS), "\n"))
    parts = raw_records(spark, lines).select(sf.col("value").cast("string").alias("line"))
    parts = parts.select("line", whole.alias("whole"), access_log._parts(sf.split(line, '"')).alias("parts"))

    def used(name: str) -> "Column":
        before, request, after, referer, agent = (sf.get(name, sf.lit(index)) for index in (0, 1, 2, 3, 5))
        # The pattern ignores white space at the end, and a line separator.
        ends = (
            sf.regexp_replace(sf.coalesce(part, sf.lit("")), r"[\s\u2028]+$", "") for part in (after, referer, agent)
        )
        return sf.struct(sf.substring_index(before, " ", 1), sf.substring(before, -28, 28), request, *ends)

    found = parts.select("line", used("parts") == used("whole")).collect()
    assert [line for line, same in found if not same] == []
    assert parts.where("parts is not null").count() > len(lines) // 10
