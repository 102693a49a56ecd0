"""The jobs of the activity, against the known figures of two real logs."""

from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from headrace.pipeline.jobs import activity
from headrace.pipeline.jobs.activity import Referrers, Sessions, TopPages, Visitors
from headrace.pipeline.spec.jobs import Additive, NoParams, job_of
from headrace.pipeline.spec.params import Interval
from tests.pipeline.log_lines import combined
from tests.pipeline.records import events_of, records_of_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ADDITIVE: Final[tuple[tuple[Callable[..., Any], Any], ...]] = (
    (activity.page_views, Visitors()),
    (activity.visitors, Visitors()),
    (activity.referrers, Referrers(site="semicomplete.com")),
    (activity.traffic, NoParams()),
    (activity.status_codes, NoParams()),
)
# Three times the standard error of HLL with lgK 12: 1.6%
HLL_ERROR: Final = 0.048


def _tables(spark: "SparkSession", path: Path) -> "dict[str, DataFrame]":
    from headrace.pipeline.jobs.events import Events, events

    return {name: rows.cache() for name, rows in events(records_of_file(spark, path), Events()).items()}


@pytest.fixture(scope="module")
def access(spark: "SparkSession", access_log: Path) -> "dict[str, DataFrame]":
    """A web site's events and quarantine over four days."""
    return _tables(spark, access_log)


@pytest.fixture(scope="module")
def nasa(spark: "SparkSession", access_log: Path) -> "dict[str, DataFrame]":
    """A web site's events and quarantine over 72 minutes, with torn lines."""
    return _tables(spark, access_log.with_name("nasa.log"))


def _table(rows: "DataFrame") -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in rows.collect()), key=str)


def _view(partials: "DataFrame", output: Additive) -> "DataFrame":
    """Sum partial aggregates up, as the view of the table does; sketches become estimates."""
    from pyspark.sql import functions as sf

    sums = [sf.sum(name).alias(name) for name in output.sums]
    sketches = [sf.hll_sketch_estimate(sf.hll_union_agg(name)).alias(name) for name in output.sketches]
    return partials.groupBy(*output.keys).agg(*sums, *sketches)


def _output(function: Callable[..., Any]) -> Additive:
    definition = job_of(function)
    assert definition is not None
    output = definition.outputs[0]
    assert isinstance(output, Additive)
    return output


def test_torn_lines_are_in_the_quarantine(nasa: "dict[str, DataFrame]") -> None:
    assert (nasa["events"].count(), nasa["quarantine"].count()) == (1841, 89)


def test_views_are_counted_by_page(access: "dict[str, DataFrame]") -> None:
    views = activity.page_views(access["events"], Visitors()).selectExpr("sum(views)", "count(DISTINCT page)")
    assert _table(views) == [(4050, 805)]


def test_referrers_are_missing_internal_or_external(access: "dict[str, DataFrame]") -> None:
    referrers = activity.referrers(access["events"], Referrers(site="www.semicomplete.com"))
    assert dict(_table(referrers.groupBy("kind").sum("requests"))) == {
        "missing": 4073,
        "internal": 5039,
        "external": 888,
    }
    assert referrers.where("kind = 'external'").select("host").distinct().count() == 152


@pytest.fixture(scope="module")
def totals(access: "dict[str, DataFrame]") -> dict[str, dict[tuple[Any, ...], Any]]:
    """Rows by table and keys, of all events in one batch and with exact numbers of visitors."""
    from pyspark.sql import functions as sf

    found = {}
    for function, params in ADDITIVE:
        output = _output(function)
        exact = (sf.count_distinct,) if output.sketches else ()
        rows = function(access["events"], params, *exact).collect()
        found[output.table] = {tuple(row[key] for key in output.keys): row for row in rows}
    return found


@pytest.mark.parametrize(
    ("function", "params"),
    [
        # the fewest and the most columns, and sketches; the others in `make slow`
        pytest.param(
            function,
            params,
            id=function.__name__,
            marks=[] if function in (activity.page_views, activity.visitors) else pytest.mark.slow,
        )
        for function, params in ADDITIVE
    ],
)
def test_partial_aggregates_of_random_cuts_sum_up_to_the_totals(
    access: "dict[str, DataFrame]",
    totals: dict[str, dict[tuple[Any, ...], Any]],
    function: Callable[..., Any],
    params: Any,
) -> None:
    from pyspark.sql import functions as sf

    output, events = _output(function), access["events"]
    cut = sf.pmod(sf.xxhash64("source_offset"), sf.lit(3))
    partials = [function(events.where(cut == number), params) for number in range(3)]
    rows = _view(reduce(lambda a, b: a.union(b), partials), output).collect()
    assert len(rows) == len(totals[output.table])
    for row in rows:
        total = totals[output.table][tuple(row[key] for key in output.keys)]
        assert [row[name] for name in output.sums] == [total[name] for name in output.sums]
        for name in output.sketches:
            assert row[name] == pytest.approx(total[name], rel=HLL_ERROR)


@pytest.mark.slow
def test_a_sketch_of_many_visitors_is_within_its_error(spark: "SparkSession") -> None:
    events = spark.sql("SELECT timestamp'2026-01-01' AS event_time, cast(id AS string) AS client FROM range(200000)")
    (row,) = _view(activity.visitors(events, Visitors()), _output(activity.visitors)).collect()
    assert row.visitors == pytest.approx(200_000, rel=HLL_ERROR)


def test_visitors_may_be_told_apart_by_more_than_the_client(spark: "SparkSession") -> None:
    from pyspark.sql import functions as sf

    events = events_of(spark, [combined(user_agent="a"), combined(user_agent="b"), combined(user_agent="a")])
    both = Visitors(visitor="concat(client, ' ', user_agent)")
    assert [row.visitors for row in activity.visitors(events, both, sf.count_distinct).collect()] == [2]


def test_hosts_have_neither_user_nor_port(spark: "SparkSession") -> None:
    urls = ["https://me:secret@Example.org:8080/a@b", "http://[2001:db8::1]:80/", "about:blank", "http://www.site.org"]
    lines = [combined().replace('"-"', f'"{url}"') for url in urls]
    rows = activity.referrers(events_of(spark, lines), Referrers(site="a.org, site.org")).select("kind", "host")
    assert _table(rows) == [
        ("external", "[2001:db8::1]"),
        ("external", "example.org"),
        ("internal", "www.site.org"),
        ("unknown", ""),
    ]


def test_traffic_counts_errors_of_both_kinds(spark: "SparkSession") -> None:
    lines = [combined(status=status, size=size) for status, size in ((200, "7"), (404, "5"), (500, "-"))]
    (row,) = activity.traffic(events_of(spark, lines), NoParams()).select("requests", "errors", "bytes").collect()
    assert tuple(row) == (3, 2, 12)


def test_a_minute_of_unknown_sizes_has_no_bytes(spark: "SparkSession") -> None:
    (row,) = activity.traffic(events_of(spark, [combined(size="-")]), NoParams()).collect()
    assert row.bytes == 0


def test_sizes_that_exceed_a_bigint_in_sum_do_not_stop_the_job(spark: "SparkSession") -> None:
    from pyspark.sql import functions as sf

    # The parsers reject such sizes, but other parsers may not, and tables may contain them.
    damaged = events_of(spark, [combined()] * 3).withColumn("bytes", sf.lit(9 * 10**18))
    (row,) = activity.traffic(damaged, NoParams()).collect()
    assert (row.requests, row.bytes) == (3, 2**63 - 1)


def test_only_pages_shown_count_as_viewed(spark: "SparkSession") -> None:
    not_viewed = [
        *map(combined, ("/style.css", "/logo.PNG?v=2", "/favicon.ico", "/robots.txt")),
        combined("/gone", status=404),
        combined("/moved", status=301),
        combined("/broken", status=500),
        combined("/form", method="POST"),
        combined().replace('"GET / HTTP/1.1"', '"-"'),
    ]
    events = events_of(spark, [*not_viewed, combined("/page.html"), combined("/cached", status=304)])
    assert _table(activity.page_views(events, Visitors()).select("page")) == [("/cached",), ("/page.html",)]


def test_top_pages_are_ranked_by_views_then_name(spark: "SparkSession") -> None:
    times = ("17/May/2015:10:05:03 +0000", "17/May/2015:11:05:03 +0000")
    lines = [combined(path, time=time) for path in ("/b", "/a", "/c", "/style.css") for time in times]
    views = activity.page_views(events_of(spark, [*lines, combined("/c")]), Visitors())
    assert _table(activity.top_pages(views, TopPages(count=2))) == [(1, "/c", 3), (2, "/a", 2)]


def test_a_request_exactly_at_the_gap_belongs_to_the_session(spark: "SparkSession") -> None:
    times = ("10:00:00", "10:10:00", "10:20:01")
    lines = [combined(path, time=f"17/May/2015:{time} +0000") for time in times for path in ("/a", "/b", "/style.css")]
    rows = activity.sessions(events_of(spark, lines), Sessions(gap=Interval("10 minutes")))
    assert _table(rows.selectExpr("date_format(start, 'HH:mm:ss')", "date_format(end, 'HH:mm:ss')", "requests")) == [
        ("10:00:00", "10:10:00", 6),
        ("10:20:01", "10:20:01", 3),
    ]


def test_pages_of_a_session_are_distinct_and_viewed(spark: "SparkSession") -> None:
    lines = [*map(combined, ("/a", "/a?x=1", "/b", "/style.css")), combined("/gone", status=404)]
    (row,) = activity.sessions(events_of(spark, lines), Sessions()).collect()
    assert (row.requests, row.pages) == (5, 2)
