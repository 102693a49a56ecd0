"""Changelogs: rows of a table as records, keyed by the table's keys."""

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from headrace.pipeline.engine.exactly_once.publishing import Record
from headrace.pipeline.spec.jobs import Additive, Append, Publish, Snapshot, Stateful

TIMESTAMP_FORMAT: Final = "yyyy-MM-dd'T'HH:mm:ssX"
_NULL: Final = r"\N"
_IN_MEMORY: Final = 100_000
"""Maximum rows that the driver collects at once; larger batches are collected partition by partition."""


def records(rows: DataFrame, topic: str, output: Additive | Append | Stateful | Snapshot | Publish) -> DataFrame:
    r"""Return rows with `topic`, `key` and `value`. The value is the row as JSON, with estimates for sketches.

    The key contains the values of the keys, separated by spaces. It is null if the table has no keys. Different rows
    have different keys: null is `\N`. A value is in double quotes, with its double quotes doubled, if it begins with a
    double quote, if it is the text `\N`, or if it contains a space and there are several keys.
    """
    if isinstance(output, Additive):
        rows = rows.withColumns({name: sf.hll_sketch_estimate(name) for name in output.sketches})
    keys: Sequence[str] = () if isinstance(output, Append) else output.keys
    kinds = dict(rows.dtypes)
    parts = [
        sf.date_format(name, TIMESTAMP_FORMAT) if kinds[name] == "timestamp" else sf.col(name).cast("string")
        for name in keys
    ]
    return rows.select(
        sf.lit(topic).alias("topic"),
        (_key(parts) if parts else sf.lit(None)).cast("string").alias("key"),
        sf.to_json(sf.struct(*rows.columns), {"timestampFormat": TIMESTAMP_FORMAT}).alias("value"),
    )


def _key(parts: Sequence[Column]) -> Column:
    """Return the values as one text."""

    def written(value: Column) -> Column:
        is_ambiguous = value.startswith('"') | (value == _NULL)
        if len(parts) > 1:
            is_ambiguous |= value.contains(" ")
        quoted = sf.concat(sf.lit('"'), sf.replace(value, sf.lit('"'), sf.lit('""')), sf.lit('"'))
        return sf.coalesce(sf.when(is_ambiguous, quoted).otherwise(value), sf.lit(_NULL))

    return sf.concat_ws(" ", *(written(value) for value in parts))


def tombstones(rows: DataFrame, topic: str, output: Snapshot) -> DataFrame:
    """Return records without values, for deleted rows."""
    return records(rows, topic, output).withColumn("value", sf.lit(None).cast("string"))


def united(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(lambda all_rows, rows: all_rows.unionAll(rows), frames)


def collected(rows: DataFrame, count: int) -> Iterator[Record]:
    """Return the records. If `count` is above 100,000, collect them partition by partition, to bound the memory.

    Up to 100,000 records are collected during the call: the transaction that publishes them has not begun yet, so its
    timeout does not include this time.
    """
    found = rows.collect() if count <= _IN_MEMORY else rows.toLocalIterator()
    return (Record(topic, _encoded(key), _encoded(value)) for topic, key, value in found)


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()
