"""Expressions over the columns of events. Jobs import this module in their functions, because it loads pyspark."""

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as sf

_ASSETS: Final = (
    r"(?i)\.(?:css|js|mjs|map|json|png|jpe?g|gif|svg|ico|webp|avif|bmp|woff2?|ttf|otf|eot|mp[34]|webm|swf)$"
    r"|^/robots\.txt$"
)
# The user and the port are not part of the host; an IPv6 address is in brackets.
_HOST: Final = r"^[A-Za-z][A-Za-z0-9+.-]*://(?:[^/?#@]*@)?(\[[^\]/]*\]|[^/?#:]*)"


def is_page_view() -> Column:
    """True for a successful view of a page: GET, 2xx or 304, and not an asset (styles, scripts, images, fonts)."""
    shown = sf.col("status").between(200, 299) | (sf.col("status") == 304)
    return sf.coalesce((sf.col("method") == "GET") & shown & (sf.col("page") != "") & ~is_asset(), sf.lit(False))


def is_asset() -> Column:
    """True for files that browsers, but few crawlers, fetch with a page, such as styles and images."""
    return sf.coalesce(sf.col("page").rlike(_ASSETS), sf.lit(False))


def host_of(url: str) -> Column:
    """Return the host of the URL in column `url`, in lower case; empty if it has none or is null."""
    return sf.lower(sf.coalesce(sf.regexp_extract(url, _HOST, 1), sf.lit("")))


def day() -> Column:
    return sf.to_date("event_time")


def sketch(visitor: Column) -> Column:
    """Return an HLL sketch of distinct visitors, with lgK 12: the standard error of its estimate is 1.6%."""
    return sf.hll_sketch_agg(visitor, 12)


def total(name: str) -> Column:
    """Return the sum of an integer column as a bigint; if it does not fit, the nearest bigint.

    `sum` raises an error instead. A few damaged records would then stop a job for good.
    """
    about = sf.sum(sf.col(name).cast("double"))
    nearest = sf.when(about < 0, sf.lit(-(2**63))).when(about >= 0, sf.lit(2**63 - 1))
    return sf.coalesce(sf.try_sum(name), nearest)
