"""Find clients that behave like crawlers, by their requests and not only by their names."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.pipeline.spec.jobs import Changelog, Stateful, Table, job
from headrace.pipeline.spec.params import Interval

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Java tries the names one by one. The lookahead avoids that at most positions.
_NAMED: Final = (
    r"(?i)(?=[abchjlpsw])"
    r"(?:bot\b|bot[/_-]|crawl|spider|slurp|scrap|archiver|^curl/|^wget/|python-|^java/|libwww|httpclient)"
)
_PAGES_WALKED: Final = 20
_REQUESTS_HAMMERED: Final = 100
_PATHS_PROBED: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Crawlers:
    late_by: Interval = Interval("10 minutes")
    """A stream keeps the state of an hour for this long, in event time, after the hour ends."""


@job(
    name="crawlers",
    source=Table("events"),
    outputs=(
        Stateful(table="crawlers", keys=("hour", "client"), mode="update", late_by="late_by"),
        Changelog(topic="crawlers", of="crawlers"),
    ),
    params=Crawlers,
    late="quarantined",
    trigger="20 seconds",
)
def crawlers(events: "DataFrame", params: Crawlers) -> "DataFrame":  # noqa: ARG001 (all jobs have parameters)
    """Return crawlers by hour of event time, with the `reasons`.

    A reason that applies to an hour never ceases to apply, so rows are replaced but never withdrawn.
    """
    from pyspark.sql import functions as sf

    from headrace.pipeline.jobs.expressions import is_page_view

    hours = events.groupBy(sf.window("event_time", "1 hour"), "client").agg(
        sf.count("*").alias("requests"),
        sf.approx_count_distinct(sf.when(is_page_view(), sf.col("page"))).alias("pages"),
        sf.count_if(sf.col("status") == 404).alias("not_found"),
        sf.count_if(sf.col("page") == "/robots.txt").alias("robots"),
        sf.max(sf.coalesce(sf.col("user_agent").rlike(_NAMED), sf.lit(False))).alias("named"),
        sf.max("user_agent").alias("user_agent"),
    )
    reasons = sf.array_compact(
        sf.array(
            sf.when(sf.col("robots") > 0, "read robots.txt"),
            sf.when(sf.col("named"), "calls itself a crawler"),
            sf.when(sf.col("pages") >= _PAGES_WALKED, f"viewed {_PAGES_WALKED} or more pages"),
            sf.when(sf.col("requests") >= _REQUESTS_HAMMERED, f"asked {_REQUESTS_HAMMERED} times or more"),
            sf.when(sf.col("not_found") >= _PATHS_PROBED, f"asked for {_PATHS_PROBED} or more pages that do not exist"),
        )
    )
    return (
        hours.withColumn("reasons", reasons)
        .where(sf.size("reasons") > 0)
        .select(
            sf.col("window.start").alias("hour"), "client", "requests", "pages", "not_found", "reasons", "user_agent"
        )
    )
