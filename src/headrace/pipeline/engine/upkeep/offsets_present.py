"""Find which offsets of each partition a table contains, without collecting them.

Delta stores the number of rows in each data file, and the minimum and maximum of its columns. A file of one partition
need not be read if it has as many rows as there are offsets from its minimum to its maximum. Of other files, only the
columns with the position are read.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as sf

from headrace.pipeline.engine.tables.delta_log import TableVersion
from headrace.pipeline.engine.upkeep.presence import Piece

_BITS: Final = 32_768
"""Number of offsets in one of Spark's bitmaps, which are 4 KiB in size."""
_OWN: Final = {"topic_id": "topic_id", "partition": "partition", "offset": "offset"}
_ORIGIN: Final = {"topic_id": "topic_id", "partition": "source_partition", "offset": "source_offset"}


@dataclass(frozen=True, slots=True)
class Found:
    """The offsets in a table, the number of its files, and how many of them had to be read."""

    pieces: tuple[Piece, ...]
    files: int
    files_read: int


def columns(names: list[str]) -> dict[str, str] | None:
    """Return the columns of a table that contain the position in a topic; None if there are none."""
    return next((item for item in (_OWN, _ORIGIN) if set(item.values()) <= set(names)), None)


def in_table(table: TableVersion, position: dict[str, str]) -> Found:
    """Return the offsets in a table; `position` is the result of `columns`."""
    files = table.files()
    described_columns = _columns_with_statistics(files)
    if not {position["partition"], position["offset"]} <= described_columns:
        # By default, Delta keeps statistics of only the first 32 columns.
        count = files.count()
        return Found(tuple(in_rows(table.rows(None), position)), count, count)

    def at(values: str, name: str) -> Any:
        return sf.col(f"stats.{values}.{name}") if name in described_columns else sf.lit(None).cast("string")

    described = files.select(
        "path",
        sf.col("deletionVector").isNotNull().alias("partly_deleted"),
        sf.col("stats.numRecords").alias("rows"),
        *(at("minValues", name).alias(f"min_{key}") for key, name in position.items()),
        *(at("maxValues", name).alias(f"max_{key}") for key, name in position.items()),
    ).collect()
    pieces = [piece for file in described if (piece := _whole(file)) is not None]
    unsettled = [file.path for file in described if _whole(file) is None]
    if unsettled:
        pieces += in_rows(table.rows(unsettled), position)
    return Found(tuple(pieces), len(described), len(unsettled))


def in_rows(rows: DataFrame, position: dict[str, str]) -> list[Piece]:
    """Return the offsets in rows. Spark reads only the columns of `position`.

    The driver collects one row for 32,768 offsets, with a bitmap of 4 KiB if they have a gap.
    """
    named = rows.select(
        sf.coalesce(sf.col(position["topic_id"]), sf.lit("")).alias("topic_id"),
        sf.col(position["partition"]).alias("partition"),
        sf.col(position["offset"]).alias("offset"),
    )
    distinct = sf.bitmap_count("bits")
    buckets = (
        named.groupBy("topic_id", "partition", sf.floor(sf.col("offset") / _BITS).alias("bucket"))
        .agg(
            sf.min("offset").alias("first"),
            sf.max("offset").alias("last"),
            sf.count("*").alias("rows"),
            sf.bitmap_construct_agg(sf.col("offset") % _BITS).alias("bits"),
        )
        .withColumn("bits", sf.when(distinct <= sf.col("last") - sf.col("first"), sf.col("bits")))
    )
    return [
        Piece(
            topic_id=bucket.topic_id,
            partition=bucket.partition,
            offsets=tuple(_runs(bucket)),
            rows=bucket.rows,
        )
        for bucket in buckets.collect()
    ]


def _columns_with_statistics(files: DataFrame) -> set[str]:
    return set(files.select("stats.minValues.*").columns) if "minValues" in files.select("stats.*").columns else set()


def _whole(file: Row) -> Piece | None:
    """Return the offsets in a file if its statistics determine them; None if it must be read.

    With as many rows as offsets from the minimum to the maximum, none is missing: no task writes an offset twice.
    """
    if file.partly_deleted or file.rows is None or file.min_offset is None or file.min_partition != file.max_partition:
        return None
    if file.min_topic_id != file.max_topic_id or file.rows != file.max_offset - file.min_offset + 1:
        return None
    return Piece(
        topic_id=file.min_topic_id or "",
        partition=file.min_partition,
        offsets=(range(file.min_offset, file.max_offset + 1),),
        rows=file.rows,
    )


def _runs(bucket: Row) -> Iterator[range]:
    """Yield the ranges of offsets without a gap."""
    if bucket.bits is None:
        yield range(bucket.first, bucket.last + 1)
        return
    base = bucket.bucket * _BITS
    from_the_lowest = format(int.from_bytes(bucket.bits, "little"), "b")[::-1]
    for run in re.finditer("1+", from_the_lowest):
        yield range(base + run.start(), base + run.end())
