"""The report: tables of one day or of all days, computed from `events` in one batch by the jobs' functions.

Its tables equal the views of the streaming tables, except that visitors are counted exactly instead of with sketches.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import Any, Final, TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from headrace.pipeline.engine.quality import lateness
from headrace.pipeline.engine.tables.lake import Lake
from headrace.pipeline.errors import PipelineError
from headrace.pipeline.jobs import activity
from headrace.pipeline.jobs.crawlers import crawlers
from headrace.pipeline.spec.jobs import Additive, Changelog, Publish, job_of
from headrace.pipeline.spec.params import build, seconds_of, unknown

Given: TypeAlias = Mapping[str, Mapping[str, object]]

_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "page_views": activity.page_views,
    "visitors": activity.visitors,
    "referrers": activity.referrers,
    "sessions": activity.sessions,
    "traffic": activity.traffic,
    "status_codes": activity.status_codes,
    "top_pages": activity.top_pages,
    "crawlers": crawlers,
}
_ORDER: Final = {
    "page_views": ("-views", "hour", "page"),
    "visitors": ("day",),
    "referrers": ("-requests", "day", "kind", "host"),
    "sessions": ("-requests", "start", "client"),
    "traffic": ("-requests", "minute"),
    "status_codes": ("status",),
    "top_pages": ("rank",),
    "crawlers": ("-requests", "hour", "client"),
}
"""The columns by which a table is sorted for display; '-' for descending order."""
_TIMES: Final = {
    "page_views": "hour",
    "visitors": "day",
    "referrers": "day",
    "sessions": "start",
    "traffic": "minute",
    "crawlers": "hour",
}
_SKETCH_ERROR: Final = 0.08
"""Five standard errors of a sketch, relative to the exact number: a larger difference is not due to chance."""


def report(events: DataFrame, *, on: date | None = None, params: Given | None = None) -> dict[str, DataFrame]:
    """Return the tables by name; each is computed only when it is read.

    `on` is a day of event time (UTC). Its sessions are those that start on it, with all their requests. `params` has
    the parameters that differ from the defaults, by job. Raises PipelineError for an invalid parameter.
    """
    given = params or {}
    of_day = events if on is None else _requests_of(events, on)
    session_params = _params(activity.sessions, given)
    crawler_params = _params(crawlers, given)
    page_views = activity.page_views(of_day, _params(activity.page_views, given), sf.count_distinct)
    return {
        "page_views": page_views,
        "visitors": activity.visitors(of_day, _params(activity.visitors, given), sf.count_distinct),
        "referrers": activity.referrers(of_day, _params(activity.referrers, given)),
        "sessions": _sessions(_in_time(events, session_params.late_by), session_params, on),
        "traffic": activity.traffic(of_day, _params(activity.traffic, given)),
        "status_codes": activity.status_codes(of_day, _params(activity.status_codes, given)),
        "top_pages": activity.top_pages(page_views, _params(activity.top_pages, given)),
        "crawlers": crawlers(_in_time(of_day, crawler_params.late_by), crawler_params),
    }


def selected(tables: Mapping[str, DataFrame], names: Iterable[str]) -> dict[str, DataFrame]:
    """Return the named tables, or all if `names` is empty. Raises PipelineError for an unknown name."""
    names = list(dict.fromkeys(names))
    for name in names:
        if name not in tables:
            raise PipelineError(unknown("table", name, tables))
    return {name: tables[name] for name in names or tables}


def ordered(table: str, rows: DataFrame) -> DataFrame:
    """Return the rows of one of the report's tables, sorted for display."""
    order = [sf.desc(name[1:]) if name.startswith("-") else sf.asc(name) for name in _ORDER[table]]
    return rows.orderBy(*order)


@dataclass(frozen=True, slots=True)
class Differences:
    """The numbers of rows only in the report, and only in the stream's table."""

    in_report: int
    in_table: int


def differences(
    lake: Lake, tables: Mapping[str, DataFrame], *, on: date | None = None, params: Given | None = None
) -> dict[str, Differences]:
    """Compare the report's tables with the streams' tables, row for row.

    A sketch's estimate differs if it is more than five standard errors from the exact number. Sessions that may
    continue are left out. If `on` is given, so are tables without a time.
    """
    found = {}
    ended = _ended(lake.read("events"), _params(activity.sessions, params or {}))
    for name, rows in tables.items():
        if on is not None and name not in _TIMES:
            continue
        stored, sketches = _stored(lake, name)
        if on is not None:
            stored = stored.where(sf.to_date(_TIMES[name]) == sf.lit(on))
        if name == "sessions":
            rows, stored = rows.where(ended), stored.where(ended)
        rows = rows.select(*stored.columns)
        if sketches:
            rows = _with_estimates(rows, stored, sketches)
        rows, stored = rows.cache(), stored.cache()
        found[name] = Differences(rows.exceptAll(stored).count(), stored.exceptAll(rows).count())
        rows.unpersist()
        stored.unpersist()
    return found


def _stored(lake: Lake, table: str) -> tuple[DataFrame, tuple[str, ...]]:
    """Return the rows of a table with estimates for its sketches, and the names of the sketches."""
    job = job_of(_FUNCTIONS[table])
    outputs = () if job is None else job.outputs
    output = next(item for item in outputs if not isinstance(item, Changelog | Publish))
    if not isinstance(output, Additive):
        return lake.view(output), ()
    return lake.view(output).withColumns(
        {name: sf.hll_sketch_estimate(name) for name in output.sketches}
    ), output.sketches


def _with_estimates(rows: DataFrame, stored: DataFrame, sketches: tuple[str, ...]) -> DataFrame:
    """Replace exact numbers with the stored estimates that are close enough."""
    keys = [name for name in rows.columns if name not in sketches]
    both = rows.alias("exact").join(stored.alias("estimated"), keys, "left")

    def close(name: str) -> Column:
        exact, estimate = sf.col(f"exact.{name}"), sf.col(f"estimated.{name}")
        return sf.when(sf.abs(exact - estimate) <= exact * _SKETCH_ERROR, estimate).otherwise(exact).alias(name)

    return both.select(*(close(name) if name in sketches else sf.col(name) for name in rows.columns))


def _ended(events: DataFrame, params: activity.Sessions) -> Column:
    """Return the condition for sessions that a stream of these events has written.

    The stream's watermark is at least the earliest of the partitions' latest times, minus the lateness.
    """
    latest = events.groupBy("topic_id", "source_partition").agg(sf.max("event_time").alias("latest"))
    [row] = latest.agg(sf.min("latest").cast("string").alias("latest")).collect()
    return sf.col("end") + _interval(params.gap) + _interval(params.late_by) < sf.lit(row.latest).cast("timestamp")


def _interval(text: str) -> Column:
    return sf.expr(f"INTERVAL '{seconds_of(text)}' SECOND")


def _params(function: Callable[..., Any], given: Given) -> Any:
    job = job_of(function)
    if job is None:
        raise PipelineError(f"{function.__name__} is not a job: decorate it with @job")
    return build(job, given.get(job.name, {}))


def _sessions(events: DataFrame, params: activity.Sessions, on: date | None) -> DataFrame:
    if on is None:
        return activity.sessions(events, params)
    # Requests up to one gap before the day show which sessions started earlier; a session may end days later.
    before = timedelta(seconds=seconds_of(params.gap))
    near = events.where(sf.col("event_time") >= _midnight(on, -before))
    return activity.sessions(near, params).where(sf.to_date("start") == sf.lit(on))


def _requests_of(events: DataFrame, on: date) -> DataFrame:
    moment = sf.col("event_time")
    return events.where((moment >= _midnight(on, timedelta())) & (moment < _midnight(on, timedelta(days=1))))


def _in_time(events: DataFrame, late_by: str) -> DataFrame:
    """Leave out the requests that stateful streams put into the quarantine."""
    if not {"late_by_s", "settled_before"} <= set(events.columns):
        return events
    in_time, _ = lateness.parted(events, late_by)
    return in_time


def _midnight(on: date, after: timedelta) -> Column:
    """Return midnight of a day, shifted by `after`, as a literal, so that Delta can skip files."""
    return sf.lit(str(datetime.combine(on, time()) + after)).cast("timestamp")
