"""Activity on a web site: pages, visitors, referrers, sessions, traffic.

Each job writes the table of the same name. Additive jobs aggregate only the rows that they get, and the view of the
table combines the results; on all events they return the totals. Days and hours are those of the session's time zone,
UTC.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from headrace.pipeline.spec.jobs import Additive, Changelog, NoParams, Snapshot, Stateful, Table, job
from headrace.pipeline.spec.params import Interval

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    Count: TypeAlias = Callable[[Column], Column]


@dataclass(frozen=True, slots=True, kw_only=True)
class Visitors:
    visitor: str = "client"
    """The identity of a visitor: an SQL expression over the columns of events, for example
    `concat(client, ' ', user_agent)`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Referrers:
    site: str = ""
    """Your own hosts, separated by commas, with or without `www.`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions:
    gap: Interval = Interval("30 minutes")
    """Requests of a client that are more than this apart are in different sessions."""
    late_by: Interval = Interval("10 minutes")
    """A stream keeps a session for this long, in event time, after the gap has passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopPages:
    count: int = 10


@job(
    name="page_views",
    source=Table("events"),
    outputs=(
        Additive(table="page_views", keys=("hour", "page"), sums=("views",), sketches=("visitors",), time="hour"),
        Changelog(topic="page-views", of="page_views"),
    ),
    params=Visitors,
    trigger="10 seconds",
)
def page_views(events: "DataFrame", params: Visitors, distinct: "Count | None" = None) -> "DataFrame":
    """Count the views of each page by hour, and its visitors with a sketch or with the aggregate `distinct`."""
    from pyspark.sql import functions as sf

    from headrace.pipeline.jobs.expressions import is_page_view, sketch

    return (
        events.where(is_page_view())
        .groupBy(sf.date_trunc("hour", "event_time").alias("hour"), "page")
        .agg(sf.count("*").alias("views"), (distinct or sketch)(sf.expr(params.visitor)).alias("visitors"))
    )


@job(
    name="visitors",
    source=Table("events"),
    outputs=(
        Additive(table="visitors", keys=("day",), sketches=("visitors",), time="day"),
        Changelog(topic="visitors", of="visitors"),
    ),
    params=Visitors,
    trigger="20 seconds",
)
def visitors(events: "DataFrame", params: Visitors, distinct: "Count | None" = None) -> "DataFrame":
    """Count the visitors of each day, with a sketch or with the aggregate `distinct`."""
    from pyspark.sql import functions as sf

    from headrace.pipeline.jobs.expressions import day, sketch

    return events.groupBy(day().alias("day")).agg((distinct or sketch)(sf.expr(params.visitor)).alias("visitors"))


@job(
    name="referrers",
    source=Table("events"),
    outputs=(
        Additive(table="referrers", keys=("day", "kind", "host"), sums=("requests",), time="day"),
        Changelog(topic="referrers", of="referrers"),
    ),
    params=Referrers,
    trigger="20 seconds",
)
def referrers(events: "DataFrame", params: Referrers) -> "DataFrame":
    """Count requests by the host that referred to the site.

    `kind` is `internal` for the hosts of the site, `external` for others, `missing` without a referrer, and `unknown`
    for a referrer that is not a URL. `host` is empty for the last two.
    """
    from pyspark.sql import functions as sf

    from headrace.pipeline.jobs.expressions import day, host_of

    names = {name.strip().lower().removeprefix("www.") for name in params.site.split(",")} - {""}
    own = sorted(names | {f"www.{name}" for name in names})
    kind = (
        sf.when(sf.col("referer").isNull(), "missing")
        .when(sf.col("host") == "", "unknown")
        .when(sf.col("host").isin(own), "internal")
        .otherwise("external")
    )
    # Group by referrer first, so that its host and kind are computed once and not for each request.
    by_referrer = events.groupBy(day().alias("day"), "referer").agg(sf.count("*").alias("requests"))
    return (
        by_referrer.withColumn("host", host_of("referer"))
        .groupBy("day", kind.alias("kind"), "host")
        .agg(sf.sum("requests").alias("requests"))
    )


@job(
    name="sessions",
    source=Table("events"),
    outputs=(Stateful(table="sessions", late_by="late_by"), Changelog(topic="sessions", of="sessions")),
    params=Sessions,
    late="quarantined",
    trigger="30 seconds",
)
def sessions(events: "DataFrame", params: Sessions) -> "DataFrame":
    """Group the requests of each client into sessions: first and last request, requests, and distinct pages viewed.

    Spark merges two session windows if one ends when the other starts, so a request exactly one gap later belongs to
    the session. A stream emits a session once the watermark is one gap past its last request.
    """
    from pyspark.sql import functions as sf

    from headrace.pipeline.jobs.expressions import is_page_view

    # Hashes keep the state small: crawlers view thousands of pages in a session.
    viewed = sf.when(is_page_view(), sf.xxhash64("page"))
    return (
        events.groupBy("client", sf.session_window("event_time", params.gap))
        .agg(
            sf.min("event_time").alias("start"),
            sf.max("event_time").alias("end"),
            sf.count("*").alias("requests"),
            sf.size(sf.collect_set(viewed)).alias("pages"),
        )
        .select("client", "start", "end", "requests", "pages")
    )


@job(
    name="traffic",
    source=Table("events"),
    outputs=(
        Additive(table="traffic", keys=("minute",), sums=("requests", "errors", "bytes"), time="minute"),
        Changelog(topic="traffic", of="traffic"),
    ),
)
def traffic(events: "DataFrame", params: NoParams) -> "DataFrame":  # noqa: ARG001 (all jobs have parameters)
    """Count requests, errors (4xx and 5xx) and bytes sent by minute, for minutes with any requests."""
    from pyspark.sql import functions as sf

    from headrace.pipeline.jobs.expressions import total

    return events.groupBy(sf.date_trunc("minute", "event_time").alias("minute")).agg(
        sf.count("*").alias("requests"),
        sf.count_if(sf.col("status") >= 400).alias("errors"),
        sf.coalesce(total("bytes"), sf.lit(0)).alias("bytes"),
    )


@job(
    name="status_codes",
    source=Table("events"),
    outputs=(
        Additive(table="status_codes", keys=("status",), sums=("requests",)),
        Changelog(topic="status-codes", of="status_codes"),
    ),
)
def status_codes(events: "DataFrame", params: NoParams) -> "DataFrame":  # noqa: ARG001
    from pyspark.sql import functions as sf

    return events.groupBy("status").agg(sf.count("*").alias("requests"))


@job(
    name="top_pages",
    source=Table("page_views"),
    outputs=(Snapshot(table="top_pages", keys=("rank",)), Changelog(topic="top-pages", of="top_pages")),
    params=TopPages,
    trigger="30 seconds",
)
def top_pages(page_views: "DataFrame", params: TopPages) -> "DataFrame":
    """Rank the most viewed pages from 1; ties are ordered by name."""
    from pyspark.sql import functions as sf

    pages = page_views.groupBy("page").agg(sf.sum("views").alias("views"))
    best = pages.orderBy(sf.desc("views"), sf.asc("page")).limit(params.count)
    # Rank the few remaining rows in one array, because Spark logs a warning for a window over all rows.
    order = sf.struct((-sf.col("views")).alias("order"), "page", "views")
    ranked = best.agg(sf.sort_array(sf.collect_list(order)).alias("pages"))
    return ranked.select(sf.posexplode("pages").alias("position", "page")).select(
        (sf.col("position") + 1).alias("rank"), "page.page", "page.views"
    )
