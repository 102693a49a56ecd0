"""The first jobs: the archive of records, and events with their quarantine."""

import subprocess
import sys
from typing import TYPE_CHECKING, Final

import pytest

from headrace.pipeline.errors import PipelineError
from headrace.pipeline.spec.jobs import NoParams
from tests.pipeline.log_lines import combined
from tests.pipeline.records import raw_records

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TORN: Final = b'192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET /caf\xe9'


def words(raw: "DataFrame") -> "DataFrame":
    """A parser that lacks most columns."""
    return raw.selectExpr("*", "cast(value AS string) AS client", "cast(null AS string) AS reason")


def with_server(raw: "DataFrame") -> "DataFrame":
    """A parser that adds a column of its own."""
    from headrace.pipeline.parsers import access_log

    return access_log.parsed(raw).selectExpr("*", "'www1' AS server")


def test_bad_records_keep_their_bytes_and_get_a_reason(spark: "SparkSession") -> None:
    from headrace.pipeline.jobs.events import Events, events

    tables = events(raw_records(spark, [combined(), TORN]), Events())
    (row,) = tables["quarantine"].collect()
    assert (bytes(row.value), bytes(row.key), row.offset) == (TORN, b"key", 1)
    assert row.reason == "the quoted request does not end"
    assert [event.source_offset for event in tables["events"].collect()] == [0]


def test_equal_lines_are_different_events(spark: "SparkSession") -> None:
    from headrace.pipeline.jobs.events import Events, events

    rows = events(raw_records(spark, [combined(), combined()]), Events())["events"].collect()
    assert sorted((row.topic_id, row.source_partition, row.source_offset) for row in rows) == [
        ("id", 0, 0),
        ("id", 0, 1),
    ]


def test_a_parser_may_add_columns_to_events(spark: "SparkSession") -> None:
    from headrace.pipeline.jobs.events import Events, events

    tables = events(raw_records(spark, [combined()]), Events(parser=f"{__name__}:with_server"))
    assert tables["events"].columns[-1] == "server"


def test_a_parser_without_some_columns_is_refused(spark: "SparkSession") -> None:
    from headrace.pipeline.jobs.events import Events, events

    with pytest.raises(PipelineError, match="does not return event_time, method"):
        events(raw_records(spark, []), Events(parser=f"{__name__}:words"))


def test_events_are_the_same_from_the_archive(spark: "SparkSession") -> None:
    from headrace.pipeline.jobs.archive import raw
    from headrace.pipeline.jobs.events import Events, events

    records = raw_records(spark, [combined("/a"), combined("/b")])
    again = events(raw(records, NoParams()), Events())["events"].collect()
    assert again == events(records, Events())["events"].collect()
    assert len(again) == 2


def test_a_batch_parses_its_records_once_for_both_tables(spark: "SparkSession") -> None:
    from headrace.pipeline.jobs.events import Events, events
    from headrace.pipeline.spec import sharing

    with sharing.batch():
        tables = events(raw_records(spark, [combined(), TORN]), Events())
        plans = [table._jdf.queryExecution().executedPlan().toString() for table in tables.values()]
        assert [("InMemoryTableScan" in plan) for plan in plans] == [True, True]


def test_definitions_of_jobs_do_not_load_spark() -> None:
    modules = ", ".join(f"headrace.pipeline.jobs.{name}" for name in ("archive", "events", "activity", "crawlers"))
    program = f"import {modules}, sys; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
