"""Records of topics, in the columns of `raw`, for tests."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.spark import log_records

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_REST = (
    "timestamp'2026-01-02 03:04:05' AS timestamp",
    "0 AS timestamp_type",
    "cast('key' AS binary) AS key",
    "cast(array() AS array<struct<key:string,value:binary>>) AS headers",
)


def raw_records(spark: "SparkSession", lines: Sequence[str | bytes | None]) -> "DataFrame":
    """Return lines as records of one partition, with offsets from 0."""
    return log_records(spark, lines).selectExpr("topic", "'id' AS topic_id", "partition", "offset", "value", *_REST)


def records_of_file(spark: "SparkSession", path: Path) -> "DataFrame":
    """Return the lines of a file as records of one partition, in its order."""
    return spark.read.text(str(path)).selectExpr(
        "'access-log' AS topic",
        "'id' AS topic_id",
        "0 AS partition",
        "monotonically_increasing_id() AS offset",
        "cast(value AS binary) AS value",
        *_REST,
    )


def events_of(spark: "SparkSession", lines: Sequence[str]) -> "DataFrame":
    from headrace.pipeline.jobs.events import Events, events

    return events(raw_records(spark, lines), Events())["events"]
