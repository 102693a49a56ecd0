"""The report: the tables of a day, or of all days, from `events` in one batch, by the functions of the jobs.

Its tables equal the views of the streaming tables, except that visitors are exact counts and no sketches.
"""

from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from headrace.pipeline.errors import PipelineError
from headrace.pipeline.jobs import activity
from headrace.pipeline.jobs.crawlers import crawlers
from headrace.pipeline.spec.jobs import job_of
from headrace.pipeline.spec.params import build, seconds_of


def report(
    events: DataFrame, *, on: date | None = None, params: Mapping[str, Mapping[str, object]] | None = None
) -> dict[str, DataFrame]:
    """Return the tables by name; none is computed before it is read.

    `on` is a day of event time (UTC). Its sessions are those that start on it, with all their requests. `params` has
    the parameters, by job, that differ from the defaults. Raises PipelineError for a wrong one.
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


def _params(function: Callable[..., Any], given: Mapping[str, Mapping[str, object]]) -> Any:
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
    """Leave out the requests that streams with state put into the quarantine."""
    if "late_by_s" not in events.columns:
        return events
    return events.where(sf.coalesce("late_by_s", sf.lit(0)) <= seconds_of(late_by))


def _midnight(on: date, after: timedelta) -> Column:
    """Return a time as a constant with which Delta can skip files."""
    return sf.lit(str(datetime.combine(on, time()) + after)).cast("timestamp")
