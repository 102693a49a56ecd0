"""The final report: exact totals from the archive, and the first rows of each result."""

from typing import Any, Final, TypeAlias

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from headrace.pipeline.jobs.access_log import CRAWLERS, EVENTS, REJECTED, REQUEST_RATE, TOP
from headrace.pipeline.jobs.job import Transform
from headrace.pipeline.jobs.place import Place
from headrace.pipeline.jobs.sink import TIMESTAMP_FORMAT

Rows: TypeAlias = list[dict[str, Any]]
_SHOWN: Final = 5


def report(spark: SparkSession, place: Place) -> dict[str, Any]:
    """Return everything as JSON values: times are ISO 8601 text in UTC, counts are integers."""
    answer: dict[str, Any] = {"requests": 0, "clients": 0, "status": {}, "days": {}, "top_pages": []}
    events = _table(spark, place, EVENTS.table)
    if events is not None:
        answer |= _totals(events)
    # This table's query has no watermark, so these are totals as well.
    answer["top_pages"] = _first(spark, place, TOP.table, lambda table: table.orderBy("rank").drop("rank"))
    by_reason = _first(
        spark, place, REJECTED.table, lambda table: table.groupBy("reason").count().orderBy(sf.desc("count"), "reason")
    )
    answer["rejected"] = sum(row["count"] for row in by_reason)
    answer["reasons"] = by_reason
    answer["busiest_minutes"] = _first(
        spark, place, REQUEST_RATE.table, lambda table: table.orderBy(sf.desc("requests"), "minute").limit(_SHOWN)
    )
    answer["crawlers"] = _first(spark, place, CRAWLERS.table, lambda table: _by_client(table).limit(_SHOWN))
    return answer


def _totals(events: DataFrame) -> dict[str, Any]:
    """Count requests and clients, and requests by status and by day, in one pass over the archive."""
    day = sf.to_date("event_time").cast("string").alias("day")
    rows = (
        events.select("client", sf.col("status").cast("string").alias("status"), day)
        .groupingSets([["status"], ["day"], []], "status", "day")
        .agg(sf.count("*").alias("requests"), sf.countDistinct("client").alias("clients"))
        .orderBy("status", "day")
        .collect()
    )
    everything = next(row for row in rows if row.status is None and row.day is None)
    return {
        "requests": everything.requests,
        "clients": everything.clients,
        "status": {row.status: row.requests for row in rows if row.status is not None},
        "days": {row.day: row.requests for row in rows if row.day is not None},
    }


def _by_client(hours: DataFrame) -> DataFrame:
    return (
        hours.groupBy("client")
        .agg(
            sf.sum("requests").alias("requests"),
            sf.count("*").alias("hours"),
            sf.array_sort(sf.array_distinct(sf.flatten(sf.collect_list("reasons")))).alias("reasons"),
            sf.max("user_agent").alias("user_agent"),
        )
        .orderBy(sf.desc("requests"), "client")
    )


def _table(spark: SparkSession, place: Place, name: str) -> DataFrame | None:
    path = place.table(name)
    return spark.read.format("delta").load(path) if DeltaTable.isDeltaTable(spark, path) else None


def _first(spark: SparkSession, place: Place, name: str, select: Transform) -> Rows:
    table = _table(spark, place, name)
    if table is None:
        return []
    frame = select(table)
    named = [
        sf.date_format(column, TIMESTAMP_FORMAT).alias(column) if kind == "timestamp" else sf.col(column)
        for column, kind in frame.dtypes
    ]
    return [row.asDict(recursive=True) for row in frame.select(*named).collect()]
