"""The table of rejected records: the original bytes, where they are in the log, and why they were rejected."""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

TABLE: Final = "quarantine"
_HEADERS: Final = "array<struct<key: string, value: binary>>"
COLUMNS: Final = {
    "job": "string",
    "version": "int",
    "reason": "string",
    "topic": "string",
    "topic_id": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestamp_type": "int",
    "key": "binary",
    "value": "binary",
    "headers": _HEADERS,
}


def rows(rejected: DataFrame, *, job: str, version: int, origin: str | None = None) -> DataFrame:
    """Return rows of the quarantine from rejected rows, which have a column `reason`.

    Columns of `raw` are kept as they are. Rows of `events` have their position in the topic `origin` in
    `source_partition` and `source_offset`; the original bytes are only in `raw`. Rows without a position, such as
    results, become JSON in `value`.
    """
    present = set(rejected.columns)
    if not present & {"value", "source_offset"}:
        row = sf.to_json(sf.struct(*(name for name in rejected.columns if name != "reason")))
        rejected, present = rejected.withColumn("value", row), present | {"value"}

    def column(name: str, kind: str) -> Column:
        if name in ("job", "version"):
            return sf.lit(job if name == "job" else version).cast(kind)
        if name == "topic" and not present & {"topic", "source_topic"}:
            return sf.lit(origin).cast(kind)
        found = next((source for source in (name, f"source_{name}") if source in present), None)
        return sf.lit(None).cast(kind) if found is None else sf.col(found).cast(kind)

    return rejected.select(*(column(name, kind).alias(name) for name, kind in COLUMNS.items()))
