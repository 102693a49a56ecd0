"""Parse JSON objects, one per record, as web servers write them if they log in JSON.

Fields may have the names of `events` or those of nginx and Logstash; other fields are ignored. The time is ISO 8601
(UTC without a zone), or seconds or milliseconds since 1970.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from headrace.pipeline.parsers.access_log import LARGEST_SIZE, WRONG_SIZE, events_of

_NAMES: Final = {
    "time": ("event_time", "time", "timestamp", "@timestamp", "time_iso8601", "msec"),
    "client": ("client", "remote_addr", "client_ip"),
    "method": ("method", "request_method"),
    "path": ("path", "request_uri", "uri"),
    "protocol": ("protocol", "server_protocol"),
    "status": ("status",),
    "bytes": ("bytes", "body_bytes_sent", "bytes_sent"),
    "referer": ("referer", "http_referer", "referrer"),
    "user_agent": ("user_agent", "http_user_agent", "agent"),
}
"""Names of each field in JSON; the first name present is used."""
_BROKEN: Final = "_broken"
# Read all fields as text, so that a wrong type affects one field and not the whole object.
_SCHEMA: Final = ", ".join(f"`{name}` string" for names in _NAMES.values() for name in names) + f", {_BROKEN} string"
_ISO: Final = r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}"
# Spark writes large numbers in JSON with an exponent.
_NUMBER: Final = r"^\d+(?:\.\d*)?(?:E\d\d?)?$"
_LARGEST_SECONDS: Final = 100_000_000_000


def parsed(raw: DataFrame) -> DataFrame:
    """Add the fields of a request, and `reason`, to records whose values are JSON objects."""
    text = sf.coalesce(sf.col("value").cast("string"), sf.lit(""))
    found = sf.from_json(text, _SCHEMA, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _BROKEN})
    # `explode`, because the optimizer would copy any other expression into all filters that use it.
    rows = raw.select("*", sf.explode(sf.array(found)).alias("json"))
    fields = {name: _first(names) for name, names in _NAMES.items()}
    status = sf.when(fields["status"].rlike(r"^\d{3}$"), fields["status"].try_cast("int"))
    rows = rows.select(
        *raw.columns,
        text.alias("text"),
        f"json.{_BROKEN}",
        fields["time"].alias("time"),
        _time(fields["time"]).alias("event_time"),
        fields["client"].alias("client"),
        fields["method"].alias("method"),
        fields["path"].alias("path"),
        fields["protocol"].alias("protocol"),
        status.alias("status"),
        fields["bytes"].try_cast("bigint").alias("bytes"),
        fields["bytes"].try_cast("double").alias("size"),
        fields["referer"].alias("referer"),
        fields["user_agent"].alias("user_agent"),
    )
    return events_of(rows, raw.columns, _reason())


def _first(names: tuple[str, ...]) -> Column:
    """Return the first field that is present; null if it is empty or a hyphen, which servers write for no value."""
    text = sf.coalesce(*[sf.col(f"json.`{name}`") for name in names])
    return sf.when(~text.isin("", "-"), text)


def _time(text: Column) -> Column:
    number = sf.when(text.rlike(_NUMBER), text.try_cast("decimal(20,6)"))
    seconds = sf.when(number < _LARGEST_SECONDS, number).otherwise(number / 1000)
    return sf.when(text.rlike(_ISO), text.try_cast("timestamp")).otherwise(
        sf.timestamp_micros((seconds * 1_000_000).cast("bigint"))
    )


def _reason() -> Column:
    """Return the first reason to reject a record; null for a good one."""
    needed = sf.col("event_time").isNotNull() & sf.col("client").isNotNull() & sf.col("status").isNotNull()
    # Null for a size that is no number. A double has no limit, unlike a bigint.
    size_is_wrong = sf.col("size").isNotNull() & ~sf.col("size").between(0, LARGEST_SIZE)
    return (
        sf.when(needed & sf.col(_BROKEN).isNull() & ~size_is_wrong, sf.lit(None))
        .when(sf.trim("text") == "", "the line is empty")
        .when(sf.col(_BROKEN).isNotNull(), "not a JSON object")
        .when(sf.col("time").isNull(), f"no time: give one of {', '.join(_NAMES['time'])}")
        .when(sf.col("event_time").isNull(), "the time is neither ISO 8601 nor seconds or milliseconds since 1970")
        .when(sf.col("client").isNull(), f"no client: give one of {', '.join(_NAMES['client'])}")
        .when(sf.col("status").isNull(), "the status is not a number of three digits")
        .otherwise(WRONG_SIZE)
    )
