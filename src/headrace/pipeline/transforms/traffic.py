"""Statistics of requests: pages, minutes, status codes."""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

_ASSETS: Final = (
    r"(?i)\.(?:css|js|mjs|map|json|png|jpe?g|gif|svg|ico|webp|avif|bmp|woff2?|ttf|otf|eot|mp[34]|webm|swf)$"
    r"|^/robots\.txt$"
)


def is_page_view() -> Column:
    """True for a page that was shown: GET, 2xx or 304, and not an asset (styles, scripts, images, fonts)."""
    shown = sf.col("status").between(200, 299) | (sf.col("status") == 304)
    return sf.coalesce((sf.col("method") == "GET") & shown & (sf.col("page") != "") & ~is_asset(), sf.lit(False))


def is_asset() -> Column:
    """True for files that browsers fetch to show a page, and crawlers mostly do not."""
    return sf.coalesce(sf.col("page").rlike(_ASSETS), sf.lit(False))


def page_views_per_minute(events: DataFrame, late_by: str) -> DataFrame:
    """Count views by page and minute of event time; a stream keeps state for `late_by` (an interval)."""
    return (
        events.withWatermark("event_time", late_by)
        .where(is_page_view())
        .groupBy(sf.window("event_time", "1 minute"), "page")
        .agg(sf.count("*").alias("views"))
        .select(sf.col("window.start").alias("minute"), "page", "views")
    )


def request_rate_per_minute(events: DataFrame, late_by: str) -> DataFrame:
    """Count requests and errors (4xx, 5xx) by minute of event time, for minutes with any requests."""
    return (
        events.withWatermark("event_time", late_by)
        .groupBy(sf.window("event_time", "1 minute"))
        .agg(
            sf.count("*").alias("requests"),
            sf.count_if(sf.col("status").between(400, 499)).alias("client_errors"),
            sf.count_if(sf.col("status") >= 500).alias("server_errors"),
            sf.coalesce(sf.sum("bytes"), sf.lit(0)).alias("bytes"),
        )
        .select(
            sf.col("window.start").alias("minute"),
            "requests",
            "client_errors",
            "server_errors",
            sf.round((sf.col("client_errors") + sf.col("server_errors")) / sf.col("requests"), 4).alias("error_rate"),
            "bytes",
        )
    )


def status_codes(events: DataFrame) -> DataFrame:
    return events.groupBy("status").agg(sf.count("*").alias("requests"))


def page_totals(events: DataFrame) -> DataFrame:
    """Count views and requests by page; assets, and pages that were never shown, have no views."""
    return (
        events.where(sf.col("page") != "")
        .groupBy("page")
        .agg(sf.count_if(is_page_view()).alias("views"), sf.count("*").alias("requests"))
    )


def top(totals: DataFrame, count: int) -> DataFrame:
    """Return the `count` most viewed of `page_totals` with ranks from 1; ties are in order of names."""
    order = Window.orderBy(sf.desc("views"), sf.asc("page"))
    best = totals.where(sf.col("views") > 0).orderBy(sf.desc("views"), sf.asc("page")).limit(count)
    return best.select(sf.row_number().over(order).alias("rank"), "page", "views", "requests")
