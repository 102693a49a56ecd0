"""Parse lines of a web server's access log, in Common or Combined Log Format.

A line with a malformed request is kept: servers log the garbage they receive, which is traffic too. Lines without a
valid client, time, status or size are rejected, with the reason. Sizes of 2^50 bytes or more are not valid.
"""

from collections.abc import Sequence
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
# In most lines split at their quotes: the parts before and after the request.
_BEFORE: Final = rf"{_ADDRESS}\S++ [^\[]*+{_TIME} \z"
_AFTER: Final = r"^ \d{3} (?:\d++|-) ?\z"
# The groups of _LINE, in the order of the parts of a line split at its quotes.
_PARTS: Final = "$1 [$2] \n$3\n $4 $5\n$6\n\n$7"
_REQUEST: Final = r"^([A-Z]+) (\S+)(?: (HTTP/\d(?:\.\d)?))?$"
LARGEST_SIZE: Final = 2**50 - 1
"""No response is larger; the sum of a minute with thousands of such sizes would exceed a bigint."""
WRONG_SIZE: Final = "the size is negative, or 2^50 bytes or more"
_TIME_FORMAT: Final = "dd/MMM/yyyy:HH:mm:ss Z"


def parsed(raw: DataFrame) -> DataFrame:
    """Add the fields of a request, and `reason`, to records whose values are lines.

    Bytes that are not UTF-8 become replacement characters. Times are read with their time zones.
    """
    lines = raw.withColumn("line", sf.coalesce(sf.col("value").cast("string"), sf.lit("")))
    rows = lines.select("*", _once(sf.split("line", '"')).alias("quoted"))
    rows = rows.select("*", _once(_parts(sf.col("quoted"))).alias("parts")).drop("quoted")
    before, request, after, referer, user_agent = (sf.get("parts", sf.lit(index)) for index in (0, 1, 2, 3, 5))
    fields = sf.struct(
        # The address comes first. The time comes last: 26 characters, a bracket and a space.
        _text(sf.substring_index(before, " ", 1)).alias("client"),
        sf.try_to_timestamp(sf.substring(before, -28, 26), sf.lit(_TIME_FORMAT)).alias("event_time"),
        sf.when(request.rlike(_REQUEST), sf.split(request, " ")).alias("words"),
    )
    rows = rows.select("*", _once(fields).alias("fields"))
    words = sf.col("fields.words")
    rows = rows.select(
        *raw.columns,
        "line",
        "fields.event_time",
        "fields.client",
        sf.get(words, sf.lit(0)).alias("method"),
        sf.get(words, sf.lit(1)).alias("path"),
        sf.get(words, sf.lit(2)).alias("protocol"),
        # A space, the status, a space, and the size or a hyphen.
        sf.substring(after, 2, 3).cast("int").alias("status"),
        # Casting a hyphen would create an exception, which takes as long as all other work on the line.
        # A number that exceeds a bigint becomes -1, which is rejected.
        sf.when(
            sf.substring(after, 6, 1) != "-",
            sf.coalesce(sf.substring(after, 6, 20).try_cast("bigint"), sf.lit(-1)),
        ).alias("bytes"),
        _text(referer).alias("referer"),
        _text(user_agent).alias("user_agent"),
    )
    return events_of(rows, raw.columns, _reason())


def events_of(rows: DataFrame, raw: Sequence[str], reason: Column) -> DataFrame:
    """Return the columns `raw`, the columns of events, and `reason`, which says why a row is not an event."""
    return rows.select(
        *raw,
        "event_time",
        "client",
        "method",
        "path",
        page_of("path").alias("page"),
        "protocol",
        "status",
        "bytes",
        "referer",
        "user_agent",
        reason.alias("reason"),
    )


def page_of(path: str) -> Column:
    """Return the path in column `path` without scheme, host, query and fragment."""
    absolute = sf.regexp_extract(path, r"^(?:[a-z]+://[^/]*)?([^?#]*)", 1)
    without_query = sf.substring_index(sf.substring_index(path, "?", 1), "#", 1)
    return sf.when(sf.startswith(sf.col(path), sf.lit("/")), without_query).otherwise(absolute)


def _once(value: Column) -> Column:
    """Wrap the value in `explode`, so that the optimizer does not copy it into all filters that use it.

    Otherwise, the pattern would be matched, or the time parsed, several times for each line.
    """
    return sf.explode(sf.array(value))


def _parts(quoted: Column) -> Column:
    """Return the line divided at its quotes; null if it is malformed. `quoted` is the line, split at every quote.

    Most lines contain no escapes, and no quotes before the request. For these, it is enough to match the parts outside
    the quotes. For other lines, the regular expression writes its groups separated by line breaks, which no line has.
    """
    line, at, count = sf.col("line"), [sf.get(quoted, sf.lit(index)) for index in range(7)], sf.size(quoted)
    after_combined = at[2].endswith(" ") & (at[4] == " ") & (at[6] == "")
    usual = (
        ~line.contains("\\")
        & ((count == 3) | ((count == 7) & after_combined))
        & at[0].rlike(_BEFORE)
        & at[2].rlike(_AFTER)
    )
    plain = ~line.contains("\\") & at[0].endswith("] ")
    by_groups = sf.split(sf.regexp_replace(line, _LINE, _PARTS), "\n")
    others = sf.when(line.rlike(_LINE), sf.when(plain, quoted).otherwise(by_groups))
    return sf.when(~line.contains("\n"), sf.when(usual, quoted).otherwise(others))


def _text(extracted: Column) -> Column:
    """Return null for absent values, including the hyphen that stands for them in these formats."""
    return sf.when(~extracted.isin("", "-"), extracted)


def _reason() -> Column:
    """Return the first reason to reject a line; null for a good line."""
    line = sf.col("line")
    size_is_wrong = sf.col("bytes").isNotNull() & ~sf.col("bytes").between(0, LARGEST_SIZE)
    return (
        sf.when(sf.col("event_time").isNotNull() & sf.col("client").isNotNull() & ~size_is_wrong, sf.lit(None))
        .when(sf.trim(line) == "", "the line is empty")
        .when(line.contains("\n"), "a line break inside the line")
        .when(~line.rlike(_TIME), "no time as [dd/Mon/yyyy:hh:mm:ss +zzzz]")
        .when(~line.rlike(rf'{_TIME} "'), "no quoted request after the time")
        .when(~line.rlike(rf'{_TIME} {_QUOTED}" '), "the quoted request does not end")
        .when(~line.rlike(rf'{_TIME} {_QUOTED}" \d{{3}} '), "the status is not a number of three digits")
        .when(~line.rlike(rf'{_TIME} {_QUOTED}" \d{{3}} (?:\d+|-)(?: |$)'), "the size is neither a number nor a hyphen")
        .when(~line.rlike(_ADDRESS) | line.startswith("- "), "no client address at the start")
        .when(size_is_wrong, WRONG_SIZE)
        .when(line.rlike(_LINE), "the time does not exist in the calendar")
        .otherwise("neither Common nor Combined Log Format")
    )
