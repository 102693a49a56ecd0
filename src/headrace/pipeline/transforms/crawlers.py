"""Find clients that behave like crawlers, by their requests and not only by their names."""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from headrace.pipeline.transforms.traffic import is_page_view

_NAMED: Final = r"(?i)bot\b|bot[/_-]|crawl|spider|slurp|scrap|archiver|^curl/|^wget/|python-|^java/|libwww|httpclient"
_PAGES_WALKED: Final = 20
_REQUESTS_HAMMERED: Final = 100
_PATHS_PROBED: Final = 10


def crawlers_per_hour(events: DataFrame, late_by: str) -> DataFrame:
    """Return crawlers by hour of event time, with the `reasons`; a stream keeps state for `late_by`.

    A reason that is true of an hour stays true, so that rows are replaced but never withdrawn.
    """
    hours = (
        events.withWatermark("event_time", late_by)
        .groupBy(sf.window("event_time", "1 hour"), "client")
        .agg(
            sf.count("*").alias("requests"),
            sf.approx_count_distinct(sf.when(is_page_view(), sf.col("page"))).alias("pages"),
            sf.count_if(sf.col("status") == 404).alias("not_found"),
            sf.count_if(sf.col("page") == "/robots.txt").alias("robots"),
            sf.max(sf.coalesce(sf.col("user_agent").rlike(_NAMED), sf.lit(False))).alias("named"),
            sf.max("user_agent").alias("user_agent"),
        )
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
