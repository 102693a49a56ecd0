"""Compute how late records are, from event times and log positions alone, so that streams, reports and restarts agree.

A record's lateness is the time from its event time to the latest event time of earlier records in its partition; 0 if
no earlier record has a later event time.

A stateful query must also know when it may drop state. So rows contain the time up to which the whole log was settled
before and after their batch (see `reached.py`).
"""

from collections.abc import Mapping
from functools import reduce
from operator import and_
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from headrace.pipeline.engine.reached import Reached
from headrace.pipeline.spec.params import seconds_of

_POSITION: Final = ("topic_id", "source_partition", "source_offset")
COLUMNS: Final = frozenset({*_POSITION, "event_time"})
"""Rows with these columns get `late_by_s`, `settled_before` and `settled_after`."""
_MICROSECONDS: Final = 1_000_000
_ROWS_PER_FILE: Final = 50_000
"""Several tasks write a larger batch, each to its own file."""
_SORTED_WHOLE: Final = 20_000
"""Maximum number of rows for which a sort is cheaper than another Spark job for the join."""


def with_lateness(
    rows: DataFrame, before: Mapping[str, int], count: int | None = None, *, time: str = "event_time"
) -> DataFrame:
    """Add `late_by_s`, seconds as a double, to a batch with `topic_id`, `source_partition`, `source_offset` and `time`.

    `before` contains the latest event time of earlier rows by partition, in microseconds since 1970. A row without an
    event time has no lateness. `rows` is evaluated twice: cache it. Sorting many whole rows is slow, so only their
    positions are sorted, and the few late ones are joined to the batch. `count` is the number of rows, if known.
    """
    if count is not None and count <= _SORTED_WHOLE:
        return windowed(rows, before, time=time)
    late = (
        windowed(rows.select(*_POSITION, time), before, time=time)
        .where("late_by_s > 0")
        .select(*_POSITION, "late_by_s")
    )
    same = reduce(and_, (sf.col(f"rows.{name}").eqNullSafe(sf.col(f"late.{name}")) for name in _POSITION))
    joined = rows.alias("rows").join(sf.broadcast(late.alias("late")), same, "left")
    late_by = sf.when(sf.col(f"rows.{time}").isNotNull(), sf.coalesce("late.late_by_s", sf.lit(0.0)))
    return joined.select("rows.*", late_by.alias("late_by_s"))


def windowed(rows: DataFrame, before: Mapping[str, int], *, time: str = "event_time") -> DataFrame:
    """Like `with_lateness`, but sorts whole rows."""
    earlier = Window.partitionBy("topic_id", "source_partition").orderBy("source_offset")
    so_far = sf.max(sf.unix_micros(time)).over(earlier.rowsBetween(Window.unboundedPreceding, -1))
    latest = sf.greatest(so_far, _carried(before))
    late_us = sf.greatest(latest - sf.unix_micros(time), sf.lit(0))
    return rows.withColumn("late_by_s", sf.when(sf.col(time).isNotNull(), late_us / _MICROSECONDS))


def reached(rows: DataFrame, before: Reached, *, time: str = "event_time") -> tuple[Reached, int]:
    """Return the state after `rows`, to pass as `before` for the next batch, and the number of rows."""
    arrived = sf.max(sf.unix_micros("ingested_at")) if "ingested_at" in rows.columns else sf.lit(None)
    found = (
        rows.groupBy(_partition().alias("at"))
        .agg(sf.max(sf.unix_micros(time)).alias("latest"), arrived.alias("arrived"), sf.count("*").alias("rows"))
        .collect()
    )
    after = before.after(
        {row["at"]: row["latest"] for row in found if row["latest"] is not None},
        {row["at"]: row["arrived"] for row in found if row["arrived"] is not None},
    )
    return after, sum(row["rows"] for row in found)


def with_settled(rows: DataFrame, before: Reached, after: Reached, count: int) -> DataFrame:
    """Add `settled_before` and `settled_after`, the settled times before and after a stream reads the row's file.

    A small batch becomes one file. A larger batch has several files, which a stream may read one by one, in any order.
    It then can only rely on the time that was settled before the batch, so both columns contain that time.
    """
    small = count <= _ROWS_PER_FILE
    return (rows.coalesce(1) if small else rows).withColumns(
        {"settled_before": _time(before.settled), "settled_after": _time((after if small else before).settled)}
    )


def parted(rows: DataFrame, late_by: str) -> tuple[DataFrame, DataFrame]:
    """Return the rows that are in time, and the late rows with a column `reason`.

    A row is late if `late_by_s` is more than `late_by`, or if it is older than the settled time by more than `late_by`.
    In the latter case, its partition was idle or new, and queries may have dropped the state that it needs.
    """
    allowed_us = round(seconds_of(late_by) * _MICROSECONDS)
    reason = sf.when(sf.col("late_by_s") * _MICROSECONDS > allowed_us, f"late by more than {late_by}").when(
        sf.unix_micros("event_time") < sf.unix_micros("settled_before") - allowed_us,
        f"more than {late_by} before the time that all active partitions had passed; its own partition was idle",
    )
    marked = rows.withColumn("reason", reason)
    return marked.where(sf.col("reason").isNull()).drop("reason"), marked.where(sf.col("reason").isNotNull())


def _partition() -> Column:
    return sf.concat_ws("/", "topic_id", "source_partition")


def _time(microseconds: int | None) -> Column:
    return sf.timestamp_micros(sf.lit(microseconds).cast("bigint"))


def _carried(before: Mapping[str, int]) -> Column:
    if not before:
        return sf.lit(None).cast("bigint")
    entries = [sf.lit(part) for item in before.items() for part in item]
    return sf.try_element_at(sf.create_map(*entries), _partition()).cast("bigint")
