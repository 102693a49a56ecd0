"""What the requests were: pages, minutes, status codes."""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

_FURNITURE: Final = (
    r"(?i)\.(?:css|js|mjs|map|json|png|jpe?g|gif|svg|ico|webp|avif|bmp|woff2?|ttf|otf|eot|mp[34]|webm|swf)$"
    r"|^/robots\.txt$"
)


def is_page_view() -> Column:
    """A page was asked for and shown: GET, 2xx or 304, and not a page's furniture (styles, scripts, images, fonts)."""
    shown = sf.col("status").between(200, 299) | (sf.col("status") == 304)
    return sf.coalesce((sf.col("method") == "GET") & shown & (sf.col("page") != "") & ~is_furniture(), sf.lit(False))


def is_furniture() -> Column:
    """What a browser fetches by itself to show a page, and a crawler mostly does not."""
    return sf.coalesce(sf.col("page").rlike(_FURNITURE), sf.lit(False))


def page_views_per_minute(events: DataFrame, late_by: str) -> DataFrame:
    """Views of each page in each minute of event time; on a stream, state is kept for `late_by` (an interval)."""
    return (
        events.withWatermark("event_time", late_by)
        .where(is_page_view())
        .groupBy(sf.window("event_time", "1 minute"), "page")
        .agg(sf.count("*").alias("views"))
        .select(sf.col("window.start").alias("minute"), "page", "views")
    )


def request_rate_per_minute(events: DataFrame, late_by: str) -> DataFrame:
    """Requests, errors and their share in each minute of event time that had any; an error is a 4xx or 5xx answer."""
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
    """Requests by status code."""
    return events.groupBy("status").agg(sf.count("*").alias("requests"))


def page_totals(events: DataFrame) -> DataFrame:
    """Views and requests of each page; pages that were only asked for in vain, and furniture, have no views."""
    return (
        events.where(sf.col("page") != "")
        .groupBy("page")
        .agg(sf.count_if(is_page_view()).alias("views"), sf.count("*").alias("requests"))
    )


def top(totals: DataFrame, count: int) -> DataFrame:
    """The `count` most viewed of `page_totals` with their rank from 1; equal ones in the order of their names."""
    order = Window.orderBy(sf.desc("views"), sf.asc("page"))
    best = totals.where(sf.col("views") > 0).orderBy(sf.desc("views"), sf.asc("page")).limit(count)
    return best.select(sf.row_number().over(order).alias("rank"), "page", "views", "requests")
