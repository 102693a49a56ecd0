"""Lines of a web server's access log, Common or Combined Log Format, to columns.

A line is kept whatever the request inside its quotes looks like: servers log garbage that they were sent, and that is
traffic too. Only a line that cannot be dated, or tells no status, is rejected, with the reason.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

# Possessive quantifiers: no line, however long or broken, makes the engine backtrack or recurse.
_QUOTED: Final = r'"((?:[^"\\]|\\.)*+)'
_ADDRESS: Final = r"^(\S++) "
_TIME: Final = r"\[(\d{2}/[A-Z][a-z]{2}/\d{4}:\d{2}:\d{2}:\d{2} [+-]\d{4})\]"
# The last field may end without its quote, because servers cut a line that is too long; what follows is ignored.
_LINE: Final = (
    rf'{_ADDRESS}(\S++) ([^\[]*+){_TIME} {_QUOTED}" (\d{{3}}) (\d++|-)(?: {_QUOTED}" {_QUOTED}(?:"(?: .*)?)?)?\s*+$'
)
_REQUEST: Final = r"^([A-Z]+) (\S+)(?: (HTTP/\d(?:\.\d)?))?$"
_TIME_FORMAT: Final = "dd/MMM/yyyy:HH:mm:ss Z"

EVENT_COLUMNS: Final = (
    "source_partition",
    "source_offset",
    "event_time",
    "client",
    "method",
    "path",
    "page",
    "protocol",
    "status",
    "bytes",
    "referer",
    "user_agent",
)


def parsed(records: DataFrame) -> DataFrame:
    """Records of the Kafka source to one row each: the columns of an event, the `line`, and `reason` where rejected.

    `partition` and `offset` of the record identify the row, for equal lines are different requests. Bytes that are not
    UTF-8 become replacement characters. Times are read with their own zone.
    """
    line = sf.col("value").cast("string")
    request = sf.regexp_extract("line", _LINE, 5)
    rows = records.select(
        sf.col("topic").alias("source_topic"),
        sf.col("partition").alias("source_partition"),
        sf.col("offset").alias("source_offset"),
        sf.coalesce(line, sf.lit("")).alias("line"),
    )
    rows = rows.withColumns({"matched": sf.regexp_like("line", sf.lit(_LINE)), "request": request})
    target = _text(sf.regexp_extract("request", _REQUEST, 2))
    return rows.select(
        "source_topic",
        "source_partition",
        "source_offset",
        "line",
        sf.try_to_timestamp(sf.regexp_extract("line", _LINE, 4), sf.lit(_TIME_FORMAT)).alias("event_time"),
        _text(sf.regexp_extract("line", _LINE, 1)).alias("client"),
        _text(sf.regexp_extract("request", _REQUEST, 1)).alias("method"),
        target.alias("path"),
        sf.regexp_extract(target, r"^(?:[a-z]+://[^/]*)?([^?#]*)", 1).alias("page"),
        _text(sf.regexp_extract("request", _REQUEST, 3)).alias("protocol"),
        _text(sf.regexp_extract("line", _LINE, 6)).cast("int").alias("status"),
        sf.regexp_extract("line", _LINE, 7).try_cast("bigint").alias("bytes"),
        _text(sf.regexp_extract("line", _LINE, 8)).alias("referer"),
        _text(sf.regexp_extract("line", _LINE, 9)).alias("user_agent"),
        "matched",
    ).select("*", _reason().alias("reason"))


def events(lines: DataFrame) -> DataFrame:
    """The accepted rows of `parsed`."""
    return lines.where(sf.col("reason").isNull()).select(*EVENT_COLUMNS)


def rejected(lines: DataFrame) -> DataFrame:
    """The others: where the line stood, the line, and why it was rejected. `position` names one line of one topic."""
    position = sf.format_string("%s-%d@%d", "source_topic", "source_partition", "source_offset")
    return lines.where(sf.col("reason").isNotNull()).select(
        position.alias("position"), "source_topic", "source_partition", "source_offset", "reason", "line"
    )


def _text(extracted: Column) -> Column:
    """Null for what was absent, and for the hyphen that stands for absence in these formats."""
    return sf.when(~extracted.isin("", "-"), extracted)


def _reason() -> Column:
    """Why a line is rejected, the first thing that is wrong with it; null for a good line."""
    line = sf.col("line")
    return (
        sf.when(sf.trim(line) == "", "the line is empty")
        .when(sf.col("matched") & sf.col("event_time").isNotNull() & sf.col("client").isNotNull(), sf.lit(None))
        .when(sf.col("matched") & sf.col("event_time").isNull(), "the time does not exist in the calendar")
        .when(~line.rlike(_TIME), "no time as [dd/Mon/yyyy:hh:mm:ss +zzzz]")
        .when(~line.rlike(rf'{_TIME} "'), "no quoted request after the time")
        .when(~line.rlike(rf'{_TIME} {_QUOTED}" '), "the quoted request does not end")
        .when(~line.rlike(rf'{_TIME} {_QUOTED}" \d{{3}} '), "the status is not a number of three digits")
        .when(~line.rlike(rf'{_TIME} {_QUOTED}" \d{{3}} (?:\d+|-)(?: |$)'), "the size is neither a number nor a hyphen")
        .when(~line.rlike(_ADDRESS) | line.startswith("- "), "no client address at the start")
        .otherwise("neither Common nor Combined Log Format")
    )
