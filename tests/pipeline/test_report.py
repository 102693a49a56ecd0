"""The daily report from events."""

from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from headrace.pipeline.errors import PipelineError
from headrace.pipeline.jobs import activity
from headrace.pipeline.spec.jobs import job_of
from headrace.pipeline.spec.params import overrides
from tests.pipeline.log_lines import combined
from tests.pipeline.records import events_of, records_of_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SETTLED: Final = "cast(null AS timestamp) AS settled_before"
DAY: Final = date(2015, 5, 17)


def _table(rows: "DataFrame") -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in rows.collect()), key=str)


def _at(*times: str) -> list[str]:
    return [combined(time=f"{time} +0000") for time in times]


def test_visitors_are_exact(spark: "SparkSession", access_log: Path) -> None:
    from headrace.pipeline.jobs.events import Events, events
    from headrace.pipeline.report import report

    tables = report(events(records_of_file(spark, access_log), Events())["events"])
    assert {row.day.day: row.visitors for row in tables["visitors"].collect()} == {17: 341, 18: 627, 19: 561, 20: 505}


def test_a_day_has_its_own_requests(spark: "SparkSession") -> None:
    from headrace.pipeline.report import report

    lines = _at("16/May/2015:23:59:59", "17/May/2015:00:00:00", "17/May/2015:23:59:59", "18/May/2015:00:00:00")
    tables = report(events_of(spark, lines), on=DAY)
    assert _table(tables["status_codes"]) == [(200, 2)]


@pytest.mark.slow
def test_a_session_belongs_to_the_day_on_which_it_starts(spark: "SparkSession") -> None:
    from headrace.pipeline.report import report

    earlier = _at("16/May/2015:23:00:00", "16/May/2015:23:30:00", "17/May/2015:00:00:00")
    later = _at("17/May/2015:23:50:00", "18/May/2015:00:10:00")
    tables = report(events_of(spark, earlier + later), on=DAY)
    assert _table(tables["sessions"].selectExpr("date_format(start, 'HH:mm')", "requests")) == [("23:50", 2)]


def test_stateful_tables_leave_out_what_came_too_late(spark: "SparkSession") -> None:
    from headrace.pipeline.report import report

    events = events_of(spark, [combined("/robots.txt"), combined("/late")])
    tables = report(events.selectExpr("*", "cast(source_offset * 601 AS double) AS late_by_s", _SETTLED))
    assert [row.requests for row in tables["sessions"].collect()] == [1]
    assert [row.requests for row in tables["crawlers"].collect()] == [1]
    assert _table(tables["status_codes"]) == [(200, 2)]


def test_parameters_are_those_of_the_jobs(spark: "SparkSession") -> None:
    from headrace.pipeline.report import report

    lines = [combined("/a"), combined("/b")]
    tables = report(events_of(spark, lines), params={"top_pages": {"count": 1}})
    assert _table(tables["top_pages"]) == [(1, "/a", 1)]


def test_a_wrong_parameter_is_refused(spark: "SparkSession") -> None:
    from headrace.pipeline.report import report

    with pytest.raises(PipelineError, match="gap must be an interval"):
        report(events_of(spark, []), params={"sessions": {"gap": 30}})


@pytest.mark.slow
def test_another_gap_changes_the_sessions_and_nothing_else(spark: "SparkSession") -> None:
    from headrace.pipeline.report import report

    events = events_of(spark, _at("17/May/2015:10:00:00", "17/May/2015:10:20:00", "17/May/2015:10:55:00")).cache()
    job = job_of(activity.sessions)
    assert job is not None
    given = overrides({"sessions": job}, ["sessions.gap=10 minutes"])
    usual, shorter = report(events), report(events, params=given)
    assert {name for name in usual if _table(usual[name]) != _table(shorter[name])} == {"sessions"}
    assert (usual["sessions"].count(), shorter["sessions"].count()) == (2, 3)
