"""The totals of the demo, read from the tables of the lake."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeAlias

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from headrace.pipeline.demo.deployment import DemoJobs
from headrace.pipeline.engine.compiling import interpret
from headrace.pipeline.engine.quality.quarantine import TABLE as QUARANTINE
from headrace.pipeline.engine.tables import partials
from headrace.pipeline.engine.tables.lake import Lake
from headrace.pipeline.spec.jobs import Changelog, Publish

Rows: TypeAlias = list[dict[str, Any]]
_TIME: Final = "yyyy-MM-dd'T'HH:mm:ssX"
_SHOWN: Final = 5
_WIDTHS_S: Final = (60, 300, 900, 3600, 10_800, 21_600, 86_400, 7 * 86_400, 28 * 86_400)
_MOST_BUCKETS: Final = 100
_AT_ONCE: Final = 2


def report(lake: Lake, demo: DemoJobs, *, few_rows: bool) -> dict[str, Any]:
    """Return the totals as JSON values; times are ISO 8601 in UTC.

    With `few_rows`, plans are interpreted, and each table is read in one task. Otherwise, compilation and empty tasks
    would take most of the time.
    """
    if few_rows:
        interpret(lake.spark)
    outputs = {
        output.table: output
        for job in demo.jobs.values()
        for output in job.outputs
        if not isinstance(output, Changelog | Publish)
    }

    def rows(name: str) -> DataFrame:
        stored = lake.read_cold(name)
        stored = stored.coalesce(1) if few_rows else stored
        return partials.current(stored, outputs[name]) if name in outputs else stored

    tables = {name: rows(name) for name in lake.names()}
    parts: Mapping[str, tuple[str, Any, Callable[[DataFrame], Any]]] = {
        # The slowest parts come first.
        "events": ("events", _NO_EVENTS, _totals),
        "traffic": ("traffic", {"seconds": 60, "buckets": []}, _traffic),
        "page_views": ("page_views", {"views": 0, "pages": 0}, _page_views),
        "crawlers": ("crawlers", [], _crawlers),
        "referrers": ("referrers", {"requests": {}, "hosts": []}, _referrers),
        "sessions": ("sessions", {"ended": 0}, _sessions),
        "visitors": ("visitors", {}, _visitors),
        "top_pages": ("top_pages", [], _top_pages),
        "quarantined": (QUARANTINE, [], _quarantined),
    }

    def part(name: str) -> tuple[str, Any]:
        table, none, read = parts[name]
        return name, read(tables[table]) if table in tables else none

    # Most of the time is spent on planning, so two parts at a time are faster even on small tables.
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = dict(pool.map(part, parts))
    return {**found.pop("events"), **found}


_NO_EVENTS: Final[Mapping[str, Any]] = {"requests": 0, "clients": 0, "status": {}, "days": {}}


def _totals(events: DataFrame) -> dict[str, Any]:
    """Count requests and clients, and requests by status and by day, in one pass."""
    day = sf.to_date("event_time").cast("string").alias("day")
    rows = (
        events.select("client", sf.col("status").cast("string").alias("status"), day)
        .groupingSets([["status"], ["day"], []], "status", "day")
        .agg(sf.count("*").alias("requests"), sf.count_distinct("client").alias("clients"))
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


def _traffic(minutes: DataFrame) -> dict[str, Any]:
    """Aggregate minutes into about 100 intervals of equal length, or fewer."""
    moment = sf.unix_seconds("minute")
    [row] = minutes.agg(sf.max(moment) - sf.min(moment)).collect()
    span_s = row[0] or 0
    seconds = next((width for width in _WIDTHS_S if span_s < width * _MOST_BUCKETS), _WIDTHS_S[-1])
    start = sf.timestamp_seconds(sf.floor(moment / seconds) * seconds)
    buckets = (
        minutes.groupBy(sf.date_format(start, _TIME).alias("start"))
        .agg(sf.sum("requests").alias("requests"), sf.sum("errors").alias("errors"))
        .orderBy("start")
    )
    return {"seconds": seconds, "buckets": _rows(buckets)}


def _page_views(hours: DataFrame) -> dict[str, int]:
    [row] = _rows(hours.agg(sf.sum("views").alias("views"), sf.count_distinct("page").alias("pages")))
    return {"views": row["views"] or 0, "pages": row["pages"]}


def _crawlers(hours: DataFrame) -> Rows:
    return _rows(
        hours.groupBy("client")
        .agg(
            sf.sum("requests").alias("requests"),
            sf.count("*").alias("hours"),
            sf.array_sort(sf.array_distinct(sf.flatten(sf.collect_list("reasons")))).alias("reasons"),
            sf.max("user_agent").alias("user_agent"),
        )
        .orderBy(sf.desc("requests"), "client")
        .limit(_SHOWN)
    )


def _referrers(days: DataFrame) -> dict[str, Any]:
    rows = _rows(days.groupBy("kind", "host").agg(sf.sum("requests").alias("requests")))
    rows.sort(key=lambda row: (-row["requests"], row["host"]))
    kinds: dict[str, int] = {}
    for row in rows:
        kinds[row["kind"]] = kinds.get(row["kind"], 0) + row["requests"]
    hosts = [{"host": row["host"], "requests": row["requests"]} for row in rows if row["host"]]
    return {"requests": kinds, "hosts": hosts[:_SHOWN]}


def _sessions(sessions: DataFrame) -> dict[str, Any]:
    seconds = sf.unix_seconds("end") - sf.unix_seconds("start")
    [row] = _rows(
        sessions.agg(
            sf.count("*").alias("ended"),
            sf.count_if(sf.col("requests") == 1).alias("of_one_request"),
            sf.round(sf.avg("requests"), 2).alias("requests_on_average"),
            sf.round(sf.avg(seconds), 1).alias("seconds_on_average"),
        )
    )
    return row


def _visitors(days: DataFrame) -> dict[str, int]:
    rows = days.select(sf.col("day").cast("string"), sf.hll_sketch_estimate("visitors").alias("visitors"))
    return {row.day: row.visitors for row in rows.orderBy("day").collect()}


def _top_pages(ranks: DataFrame) -> Rows:
    return _rows(ranks.orderBy("rank").drop("rank"))


def _quarantined(records: DataFrame) -> Rows:
    return _rows(records.groupBy("job", "reason").count().orderBy(sf.desc("count"), "job", "reason"))


def _rows(frame: DataFrame) -> Rows:
    return [row.asDict(recursive=True) for row in frame.collect()]
