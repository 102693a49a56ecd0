"""The jobs that run while everything around them is killed, one of each kind. A record is `NUMBER WORD`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.pipeline import Additive, Append, Changelog, Interval, Stateful, Table, Topic, job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SLOW = "reflect('java.lang.Thread', 'sleep', cast(2 AS bigint)) IS NOT NULL"
"""Every record takes 2 ms, so that kills come in the middle of batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Minutes:
    late_by: Interval = Interval("1 hour")


@job(name="lines", source=Topic(), outputs=(Append(table="lines"), Changelog(topic="lines", of="lines")))
def lines(records: "DataFrame", params: object) -> "DataFrame":
    """Parse the records; the number of a record is its event time in seconds."""
    return records.where(_SLOW).selectExpr(
        "topic_id",
        "partition AS source_partition",
        "offset AS source_offset",
        "timestamp AS ingested_at",
        "timestamp_seconds(cast(split(cast(value AS string), ' ')[0] AS bigint)) AS event_time",
        "split(cast(value AS string), ' ')[1] AS word",
    )


@job(
    name="words",
    source=Table("lines"),
    outputs=(Additive(table="words", keys=("word",), sums=("times",)), Changelog(topic="words", of="words")),
)
def words(lines: "DataFrame", params: object) -> "DataFrame":
    """Count the words."""
    from pyspark.sql import functions as sf

    return lines.groupBy("word").agg(sf.count("*").alias("times"))


@job(
    name="minutes",
    source=Table("lines"),
    outputs=(
        Stateful(table="minutes", keys=("minute",), mode="update", late_by="late_by"),
        Changelog(topic="minutes", of="minutes"),
    ),
    params=Minutes,
    late="quarantined",
)
def minutes(lines: "DataFrame", params: Minutes) -> "DataFrame":
    """Count the lines of each minute, with state."""
    from pyspark.sql import functions as sf

    counted = lines.groupBy(sf.window("event_time", "1 minute")).agg(sf.count("*").alias("lines"))
    return counted.selectExpr("window.start AS minute", "lines")
