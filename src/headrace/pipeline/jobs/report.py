"""What the tables say at the end: exact totals from the archive, and the first rows of each result."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from headrace.pipeline.jobs.access_log import CRAWLERS, EVENTS, HOW_MANY_TOP_PAGES, REJECTED, REQUEST_RATE
from headrace.pipeline.jobs.place import Place
from headrace.pipeline.transforms import lines, traffic

Rows: TypeAlias = list[dict[str, Any]]
_SHOWN: Final = 5


def report(spark: SparkSession, place: Place) -> dict[str, Any]:
    """Everything as values that JSON has: times are ISO 8601 text in UTC, counts are integers."""
    events = _table(spark, place, EVENTS.table)
    rejected = _table(spark, place, REJECTED.table)
    answer: dict[str, Any] = {
        "requests": 0,
        "clients": 0,
        "status": {},
        "days": {},
        "rejected": rejected.count() if rejected else 0,
        "top_pages": [],
        "reasons": _rows(rejected.groupBy("reason").count().orderBy(sf.desc("count"), "reason")) if rejected else [],
        "busiest_minutes": [],
        "crawlers": [],
    }
    if events is None:
        return answer
    events = events.select(*lines.EVENT_COLUMNS).persist()
    try:
        answer |= _rows(events.select(sf.count("*").alias("requests"), sf.countDistinct("client").alias("clients")))[0]
        answer["status"] = _counts(events.groupBy(sf.col("status").alias("of")))
        answer["days"] = _counts(events.groupBy(sf.to_date("event_time").alias("of")))
        answer["top_pages"] = _rows(traffic.top(traffic.page_totals(events), HOW_MANY_TOP_PAGES).drop("rank"))
    finally:
        events.unpersist()
    rate = _table(spark, place, REQUEST_RATE.table)
    if rate is not None:
        answer["busiest_minutes"] = _rows(rate.orderBy(sf.desc("requests"), "minute").limit(_SHOWN))
    crawlers = _table(spark, place, CRAWLERS.table)
    if crawlers is not None:
        answer["crawlers"] = _rows(_by_client(crawlers).limit(_SHOWN))
    return answer


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
    """None for a table that nothing was ever written to."""
    path = place.table(name)
    return spark.read.format("delta").load(path) if DeltaTable.isDeltaTable(spark, path) else None


def _counts(groups: Any) -> dict[str, int]:
    return {str(row["of"]): row["count"] for row in groups.count().orderBy("of").collect()}


def _rows(frame: DataFrame) -> Rows:
    named = [
        sf.date_format(name, "yyyy-MM-dd'T'HH:mm:ssX").alias(name) if kind == "timestamp" else sf.col(name)
        for name, kind in frame.dtypes
    ]
    return [row.asDict(recursive=True) for row in frame.select(*named).collect()]
