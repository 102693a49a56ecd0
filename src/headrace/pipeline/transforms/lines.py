"""Lines of a web server's access log, Common or Combined Log Format, to columns.

A line is kept whatever the request inside its quotes looks like: servers log garbage that they were sent, and that is
traffic too. Only a line that cannot be dated, or tells no status, is rejected, with the reason.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

# Possessive quantifiers: no line, however long or broken, makes the engine backtrack or recurse.
_QUOTED: Final = r'"([^"\\]*+(?:\\.[^"\\]*+)*+)'
_ADDRESS: Final = r"^(\S++) "
_TIME: Final = r"\[(\d{2}/[A-Z][a-z]{2}/\d{4}:\d{2}:\d{2}:\d{2} [+-]\d{4})\]"
# The last field may end without its quote, because servers cut a line that is too long; what follows is ignored.
_LINE: Final = (
    rf'{_ADDRESS}\S++ [^\[]*+{_TIME} {_QUOTED}" (\d{{3}}) (\d++|-)(?: {_QUOTED}" {_QUOTED}(?:"(?: .*)?)?)?\s*+$'
)
_FIELDS: Final = ("client", "time", "request", "status", "bytes", "referer", "user_agent")
_REQUEST: Final = r"^([A-Z]+) (\S+)(?: (HTTP/\d(?:\.\d)?))?$"
_REQUEST_FIELDS: Final = ("method", "path", "protocol")
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
    rows = records.select(
        sf.col("topic").alias("source_topic"),
        sf.col("partition").alias("source_partition"),
        sf.col("offset").alias("source_offset"),
        sf.coalesce(sf.col("value").cast("string"), sf.lit("")).alias("line"),
    )
    rows = rows.select("*", _groups("line", _LINE, len(_FIELDS)).alias("fields"))
    rows = rows.withColumns({name: _text(sf.col("fields")[i]) for i, name in enumerate(_FIELDS)})
    rows = rows.select("*", _groups("request", _REQUEST, len(_REQUEST_FIELDS)).alias("request_fields"))
    rows = rows.withColumns({name: _text(sf.col("request_fields")[i]) for i, name in enumerate(_REQUEST_FIELDS)})
    return rows.select(
        "source_topic",
        "source_partition",
        "source_offset",
        "line",
        sf.try_to_timestamp("time", sf.lit(_TIME_FORMAT)).alias("event_time"),
        "client",
        "method",
        "path",
        sf.regexp_extract("path", r"^(?:[a-z]+://[^/]*)?([^?#]*)", 1).alias("page"),
        "protocol",
        sf.col("status").cast("int").alias("status"),
        sf.col("bytes").try_cast("bigint").alias("bytes"),
        "referer",
        "user_agent",
    ).withColumn("reason", _reason())


def events(lines: DataFrame) -> DataFrame:
    """The accepted rows of `parsed`."""
    return lines.where(sf.col("reason").isNull()).select(*EVENT_COLUMNS)


def rejected(lines: DataFrame) -> DataFrame:
    """The others: where the line stood, the line, and why it was rejected. `position` names one line of one topic."""
    position = sf.format_string("%s-%d@%d", "source_topic", "source_partition", "source_offset")
    return lines.where(sf.col("reason").isNotNull()).select(
        position.alias("position"), "source_topic", "source_partition", "source_offset", "reason", "line"
    )


def _groups(column: str, pattern: str, count: int) -> Column:
    """The pattern's groups as an array, in one pass of the regular expression; null where it does not match.

    A line break separates them: a line has none inside. The array comes out of `explode`, because the optimizer copies
    any other expression into every filter that uses it, and would match the pattern dozens of times.
    """
    separated = sf.regexp_replace(column, pattern, "\n".join(f"${number}" for number in range(1, count + 1)))
    groups = sf.split(separated, "\n")
    one_line = ~sf.contains(sf.col(column), sf.lit("\n"))
    return sf.explode(sf.array(sf.when(one_line & (sf.size(groups) == count), groups)))


def _text(extracted: Column) -> Column:
    """Null for what was absent, and for the hyphen that stands for absence in these formats."""
    return sf.when(~extracted.isin("", "-"), extracted)


def _reason() -> Column:
    """Why a line is rejected, the first thing that is wrong with it; null for a good line."""
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
