"""Statistics of pages, minutes and status codes."""

from typing import TYPE_CHECKING

from headrace.pipeline.transforms import lines, traffic
from tests.pipeline.log_lines import combined

if TYPE_CHECKING:
    from tests.pipeline.conftest import Parse

LATE_BY = "10 minutes"


def test_page_views_are_counted_by_minute_and_page(parse: "Parse") -> None:
    events = lines.events(
        parse(
            [
                combined("/a", time="17/May/2015:10:05:00 +0000"),
                combined("/a?x=1", time="17/May/2015:10:05:59 +0000"),
                combined("/a", time="17/May/2015:10:06:00 +0000"),
                combined("/b", time="17/May/2015:10:06:00 +0000", status=304),
            ]
        )
    )
    rows = traffic.page_views_per_minute(events, LATE_BY).selectExpr("cast(minute as string) m", "page", "views")
    assert {tuple(row) for row in rows.collect()} == {
        ("2015-05-17 10:05:00", "/a", 2),
        ("2015-05-17 10:06:00", "/a", 1),
        ("2015-05-17 10:06:00", "/b", 1),
    }


def test_only_pages_shown_count_as_viewed(parse: "Parse") -> None:
    not_viewed = [
        combined("/style.css"),
        combined("/logo.PNG?v=2"),
        combined("/favicon.ico"),
        combined("/robots.txt"),
        combined("/gone", status=404),
        combined("/moved", status=301),
        combined("/broken", status=500),
        combined("/form", method="POST"),
        combined("/head", method="HEAD"),
        combined().replace('"GET / HTTP/1.1"', '"-"'),
    ]
    events = lines.events(parse([*not_viewed, combined("/page.html")]))
    assert [row.page for row in traffic.page_views_per_minute(events, LATE_BY).collect()] == ["/page.html"]


def test_the_error_rate_is_the_share_of_4xx_and_5xx(parse: "Parse") -> None:
    events = lines.events(parse([combined(status=code) for code in (200, 304, 404, 403, 500, 200, 200, 200)]))
    (row,) = traffic.request_rate_per_minute(events, LATE_BY).collect()
    assert (row.requests, row.client_errors, row.server_errors, row.error_rate) == (8, 2, 1, 0.375)
    assert row.bytes == 8 * 512


def test_a_minute_of_unknown_sizes_has_no_bytes(parse: "Parse") -> None:
    (row,) = traffic.request_rate_per_minute(lines.events(parse([combined(size="-")])), LATE_BY).collect()
    assert row.bytes == 0


def test_status_codes_are_counted(parse: "Parse") -> None:
    events = lines.events(parse([combined(status=code) for code in (200, 404, 200)]))
    assert {tuple(row) for row in traffic.status_codes(events).collect()} == {(200, 2), (404, 1)}


def test_top_pages_are_ranked_by_views_then_name(parse: "Parse") -> None:
    paths = ["/b", "/b", "/a", "/a", "/c", "/style.css", "/style.css", "/style.css"]
    events = lines.events(parse([*map(combined, paths), combined("/c", status=404)]))
    ranked = traffic.top(traffic.page_totals(events), 3).collect()
    assert [tuple(row) for row in ranked] == [(1, "/a", 2, 2), (2, "/b", 2, 2), (3, "/c", 1, 2)]
    assert traffic.top(traffic.page_totals(events), 1).count() == 1
