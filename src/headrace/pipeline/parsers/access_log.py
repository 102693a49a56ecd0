"""Parse lines of a web server's access log, in Common or Combined Log Format.

A line with a malformed request is kept: servers log the garbage they receive, which is traffic too. Lines without a
valid time or status are rejected, with the reason.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

# Possessive quantifiers: long or broken lines must not make the engine backtrack or recurse.
_QUOTED: Final = r'"([^"\\]*+(?:\\.[^"\\]*+)*+)'
_ADDRESS: Final = r"^(\S++) "
_TIME: Final = r"\[(\d{2}/[A-Z][a-z]{2}/\d{4}:\d{2}:\d{2}:\d{2} [+-]\d{4})\]"
# The last field may lack its end quote: servers truncate long lines. Anything after it is ignored.
_LINE: Final = (
    rf'{_ADDRESS}\S++ [^\[]*+{_TIME} {_QUOTED}" (\d{{3}}) (\d++|-)(?: {_QUOTED}" {_QUOTED}(?:"(?: .*)?)?)?\s*+$'
)
_FIELDS: Final = ("client", "time", "request", "status", "bytes", "referer", "user_agent")
_REQUEST: Final = r"^([A-Z]+) (\S+)(?: (HTTP/\d(?:\.\d)?))?$"
_REQUEST_FIELDS: Final = ("method", "path", "protocol")
_TIME_FORMAT: Final = "dd/MMM/yyyy:HH:mm:ss Z"


def parsed(raw: DataFrame) -> DataFrame:
    """Add the fields of a request, and `reason`, to records whose values are lines.

    Bytes that are not UTF-8 become replacement characters. Times are read with their time zones.
    """
    rows = raw.withColumn("line", sf.coalesce(sf.col("value").cast("string"), sf.lit("")))
    rows = rows.select("*", _groups("line", _LINE, len(_FIELDS)).alias("fields"))
    rows = rows.withColumns({name: _text(sf.col("fields")[i]) for i, name in enumerate(_FIELDS)})
    rows = rows.select("*", _groups("request", _REQUEST, len(_REQUEST_FIELDS)).alias("request_fields"))
    rows = rows.withColumns({name: _text(sf.col("request_fields")[i]) for i, name in enumerate(_REQUEST_FIELDS)})
    return (
        rows.select(
            *raw.columns,
            "line",
            sf.try_to_timestamp("time", sf.lit(_TIME_FORMAT)).alias("event_time"),
            "client",
            "method",
            "path",
            page_of("path").alias("page"),
            "protocol",
            sf.col("status").cast("int").alias("status"),
            sf.col("bytes").try_cast("bigint").alias("bytes"),
            "referer",
            "user_agent",
        )
        .withColumn("reason", _reason())
        .drop("line")
    )


def page_of(path: str) -> Column:
    """Return the path in column `path` without scheme, host, query and fragment."""
    return sf.regexp_extract(path, r"^(?:[a-z]+://[^/]*)?([^?#]*)", 1)


def _groups(column: str, pattern: str, count: int) -> Column:
    """Return the pattern's groups as an array, in one pass of the regular expression; null if it does not match.

    Groups are separated by line breaks, which a line does not contain. The array comes from `explode`, because the
    optimizer would copy any other expression into all filters that use it, and match the pattern dozens of times.
    """
    separated = sf.regexp_replace(column, pattern, "\n".join(f"${number}" for number in range(1, count + 1)))
    groups = sf.split(separated, "\n")
    one_line = ~sf.contains(sf.col(column), sf.lit("\n"))
    return sf.explode(sf.array(sf.when(one_line & (sf.size(groups) == count), groups)))


def _text(extracted: Column) -> Column:
    """Return null for absent values, including the hyphen that stands for them in these formats."""
    return sf.when(~extracted.isin("", "-"), extracted)


def _reason() -> Column:
    """Return the first reason to reject a line; null for a good line."""
    line = sf.col("line")
    return (
        sf.when(sf.col("event_time").isNotNull() & sf.col("client").isNotNull(), sf.lit(None))
        .when(sf.trim(line) == "", "the line is empty")
        .when(line.contains("\n"), "a line break inside the line")
        .when(~line.rlike(_TIME), "no time as [dd/Mon/yyyy:hh:mm:ss +zzzz]")
        .when(~line.rlike(rf'{_TIME} "'), "no quoted request after the time")
        .when(~line.rlike(rf'{_TIME} {_QUOTED}" '), "the quoted request does not end")
        .when(~line.rlike(rf'{_TIME} {_QUOTED}" \d{{3}} '), "the status is not a number of three digits")
        .when(~line.rlike(rf'{_TIME} {_QUOTED}" \d{{3}} (?:\d+|-)(?: |$)'), "the size is neither a number nor a hyphen")
        .when(~line.rlike(_ADDRESS) | line.startswith("- "), "no client address at the start")
        .when(line.rlike(_LINE), "the time does not exist in the calendar")
        .otherwise("neither Common nor Combined Log Format")
    )
