"""Find the offsets that a table has of each partition, and the gaps between them, without collecting the offsets."""

import re
from collections.abc import Iterator
from itertools import groupby
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from headrace.pipeline.engine.audit import Present

_BITS: Final = 32_768
"""Offsets in one of Spark's bitmaps, which have 4 KiB."""


def present(rows: DataFrame) -> list[Present]:
    """Return what is there of each partition. `rows` has `topic`, `topic_id`, `partition` and `offset`.

    Spark reads these columns only. The driver gets one row for 32,768 offsets, and 4 KiB more if they have a gap.
    """
    place = ("topic", "topic_id", "partition")
    distinct = sf.bitmap_count("bits")
    buckets = (
        rows.groupBy(*place, sf.floor(sf.col("offset") / _BITS).alias("bucket"))
        .agg(
            sf.min("offset").alias("first"),
            sf.max("offset").alias("last"),
            sf.count("*").alias("rows"),
            sf.bitmap_construct_agg(sf.col("offset") % _BITS).alias("bits"),
        )
        .withColumn("distinct", distinct)
        .withColumn("bits", sf.when(distinct <= sf.col("last") - sf.col("first"), sf.col("bits")))
        .orderBy(*place, "bucket")
    )
    return [
        _merged(list(of_partition))
        for _, of_partition in groupby(buckets.collect(), key=lambda row: (row.topic, row.topic_id, row.partition))
    ]


def _merged(buckets: list[Any]) -> Present:
    gaps: list[range] = []
    expected = buckets[0]["first"]
    for bucket in buckets:
        for run in _runs(bucket):
            if run.start > expected:
                gaps.append(range(expected, run.start))
            expected = run.stop
    rows = sum(bucket["rows"] for bucket in buckets)
    return Present(
        topic=buckets[0]["topic"],
        topic_id=buckets[0]["topic_id"],
        partition=buckets[0]["partition"],
        first=buckets[0]["first"],
        last=buckets[-1]["last"],
        rows=rows,
        duplicates=rows - sum(bucket["distinct"] for bucket in buckets),
        gaps=tuple(gaps),
    )


def _runs(bucket: Any) -> Iterator[range]:
    """Yield the ranges of offsets without a gap."""
    if bucket["bits"] is None:
        yield range(bucket["first"], bucket["last"] + 1)
        return
    base = bucket["bucket"] * _BITS
    from_the_lowest = format(int.from_bytes(bucket["bits"], "little"), "b")[::-1]
    for run in re.finditer("1+", from_the_lowest):
        yield range(base + run.start(), base + run.end())
