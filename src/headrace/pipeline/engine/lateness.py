"""How late a record is: by its place in the log alone, so the same in a stream, in a batch and after a restart.

A record is late by the time between its event time and the latest event time before it in its partition. Records with
the latest time so far, and the first of a partition, are late by 0.
"""

from collections.abc import Mapping
from typing import Final, TypeAlias

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

Latest: TypeAlias = dict[str, int]
"""The latest event time of each partition in microseconds since 1970, by `topic id/partition`. It fits into JSON."""

_MICROSECONDS: Final = 1_000_000


def with_lateness(rows: DataFrame, before: Mapping[str, int], *, time: str = "event_time") -> DataFrame:
    """Add `late_by_s`, seconds as a double, to rows with `topic_id`, `source_partition`, `source_offset` and `time`.

    `before` holds the latest times of all earlier rows. A row without an event time has no lateness.
    """
    earlier = Window.partitionBy("topic_id", "source_partition").orderBy("source_offset")
    so_far = sf.max(sf.unix_micros(time)).over(earlier.rowsBetween(Window.unboundedPreceding, -1))
    latest = sf.greatest(so_far, _carried(before))
    late_us = sf.greatest(latest - sf.unix_micros(time), sf.lit(0))
    return rows.withColumn("late_by_s", sf.when(sf.col(time).isNotNull(), late_us / _MICROSECONDS))


def latest(rows: DataFrame, before: Mapping[str, int], *, time: str = "event_time") -> Latest:
    """Return the latest times after `rows`: what the next batch must get as `before`."""
    found = rows.where(sf.col(time).isNotNull()).groupBy(_partition().alias("at"))
    merged = dict(before)
    for row in found.agg(sf.max(sf.unix_micros(time)).alias("latest")).collect():
        merged[row["at"]] = max(row["latest"], merged.get(row["at"], row["latest"]))
    return merged


def _partition() -> Column:
    return sf.concat_ws("/", "topic_id", "source_partition")


def _carried(before: Mapping[str, int]) -> Column:
    if not before:
        return sf.lit(None).cast("bigint")
    entries = [sf.lit(part) for item in before.items() for part in item]
    return sf.try_element_at(sf.create_map(*entries), _partition()).cast("bigint")
