"""Rows that do not meet a job's expectations, and what the quarantine keeps of them."""

from typing import TYPE_CHECKING, Any

import pytest

from headrace.pipeline.errors import PipelineError
from headrace.pipeline.spec.jobs import Expect
from tests.support.spark import frame, log_records

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STATUS = Expect(condition="status BETWEEN 100 AND 599", reason="no such status")
SIZE = Expect(condition="bytes >= 0", reason="negative size")
ROBOT = Expect(condition="NOT robot", reason="a robot", otherwise="drop")
PAGE = Expect(condition="page IS NOT NULL", reason="no page", otherwise="fail")


@pytest.fixture(scope="module")
def rows(spark: "SparkSession") -> "DataFrame":
    named = [
        {"page": "/good", "status": 200, "bytes": 5, "robot": False},
        {"page": "/both", "status": 999, "bytes": -1, "robot": False},
        {"page": "/null", "status": 200, "bytes": None, "robot": False},
        {"page": "/robot", "status": 200, "bytes": 5, "robot": True},
    ]
    return frame(spark, named, "page: string, status: int, bytes: bigint, robot: boolean").cache()


def pages(rows: "DataFrame", *columns: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in rows.select("page", *columns).collect())


def test_a_row_is_good_quarantined_or_dropped(rows: "DataFrame") -> None:
    from headrace.pipeline.engine.quality import expectations

    good, bad = expectations.split(rows, [STATUS, SIZE, ROBOT])
    assert pages(good) == [("/good",)]
    assert pages(bad, "reason") == [("/both", "no such status"), ("/null", "negative size")]


def test_without_expectations_every_row_is_good(rows: "DataFrame") -> None:
    from headrace.pipeline.engine.quality import expectations

    good, bad = expectations.split(rows, [PAGE])
    assert (good.count(), bad.count(), bad.columns) == (4, 0, [*rows.columns, "reason"])


def test_an_unmet_expectation_that_must_hold_is_an_error(rows: "DataFrame") -> None:
    from headrace.pipeline.engine.quality import expectations

    must = Expect(condition="status < 600", reason="no such status", otherwise="fail")
    with pytest.raises(expectations.ExpectationError, match=r"no such status: \{'page': '/both'.* not written"):
        expectations.split(rows, [SIZE, must])


@pytest.mark.parametrize("condition", ["page >", "colour = 'red'", "bytes + 1"])
def test_a_condition_that_is_not_sql_is_an_error(rows: "DataFrame", condition: str) -> None:
    from headrace.pipeline.engine.quality import expectations

    with pytest.raises(PipelineError, match="not a valid condition on the columns page, status, bytes, robot"):
        expectations.split(rows, [Expect(condition=condition, reason="unknown")])


def test_the_quarantine_keeps_the_bytes(spark: "SparkSession") -> None:
    from pyspark.sql import functions as sf

    from headrace.pipeline.engine.quality import quarantine

    torn = b"\xff\xfe \x00 torn"
    records = log_records(spark, [torn]).withColumns({"topic_id": sf.lit("id"), "reason": sf.lit("torn")})
    kept = quarantine.rows(records, job="events", version=2)
    [row] = kept.collect()
    assert kept.columns == list(quarantine.COLUMNS)
    assert (row.job, row.version, row.reason, bytes(row.value)) == ("events", 2, "torn", torn)
    assert (row.topic, row.topic_id, row.partition, row.offset) == ("access-log", "id", 0, 0)


def test_the_quarantine_has_the_origin_of_an_event(spark: "SparkSession") -> None:
    from headrace.pipeline.engine.quality import quarantine

    event = {"topic_id": "id", "source_partition": 3, "source_offset": 7, "status": 999, "reason": "no such status"}
    columns = "topic_id: string, source_partition: int, source_offset: bigint, status: int, reason: string"
    [row] = quarantine.rows(frame(spark, [event], columns), job="status_codes", version=1).collect()
    assert (row.topic_id, row.partition, row.offset, row.value) == ("id", 3, 7, None)
