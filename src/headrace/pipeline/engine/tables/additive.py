"""Additive tables: a batch appends partial aggregates, readers combine them, and `compact` keeps that cheap.

The table is the state, as in a log-structured store: an append needs no join, a late row is one more partial, and
partials may be replaced by their total at any time.
"""

from collections.abc import Mapping
from datetime import datetime
from functools import reduce
from operator import and_, or_
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from headrace.pipeline.engine.tables import delta_log
from headrace.pipeline.engine.tables.lake import Lake
from headrace.pipeline.engine.tables.partials import check_columns, columns, latest, summed
from headrace.pipeline.errors import PipelineError
from headrace.pipeline.spec.jobs import Additive, Stateful

_ROWS_PER_FILE: Final = 200_000
_POINTS: Final = 24
"""Up to this many values of the time key are looked up individually; more values, as one range."""


def append(
    lake: Lake, output: Additive, rows: DataFrame, *, writer: str, batch: int, metadata: Mapping[str, object]
) -> bool:
    """Append the partial aggregates of a batch, and return False if the writer had committed the batch before.

    Raises PipelineError if the columns are not those of the output.
    """
    check_columns(rows, output)
    # One file is enough, because batches are bounded; many small files would slow down every reader.
    one_file = rows.select(*columns(output)).coalesce(1)
    return lake.append(output.table, one_file, writer=writer, batch=batch, metadata=metadata)


def totals(lake: Lake, output: Additive, touched: DataFrame, *, once: bool = False) -> DataFrame:
    """Return the totals of the keys that occur in `touched`, the partial aggregates of a batch.

    Only files with the batch's values of the time key are read. With `once`, all files of a short table are read,
    because Delta would need seconds to choose files after a start. `touched` is evaluated twice: cache it.
    """
    if delta_log.version(lake.spark, lake.path(output.table)) == 0:
        # The table contains only this batch.
        return summed(touched, output)
    stored = lake.read_cold(output.table) if once else lake.read(output.table)
    if output.time is not None:
        stored = stored.where(_same_times(output.time, touched))
    keys = touched.select(*output.keys).distinct().alias("touched")
    same = reduce(and_, (sf.col(f"stored.{key}").eqNullSafe(sf.col(f"touched.{key}")) for key in output.keys))
    return summed(stored.alias("stored").join(sf.broadcast(keys), same, "left_semi"), output)


def compact(lake: Lake, output: Additive | Stateful, before: datetime) -> int:
    """Replace the partials whose time is before `before` with totals; return the number of files replaced.

    Of a stateful table with keys, only the latest row of each key is kept.

    `before` must have a time zone. Later partials in the same files are combined, too. Without a time key, the whole
    table is compacted. Readers and running queries are not disturbed. If nothing can be combined, the table stays
    unchanged. Raises PipelineError if another compaction of the table runs at the same time.
    """
    time = output.time if isinstance(output, Additive) else None
    names = _files_to_sum(lake, output.table, time, before)
    if not names:
        return 0

    def rewrite(rows: DataFrame) -> DataFrame:
        total = summed(rows, output) if isinstance(output, Additive) else latest(rows, output)
        files = max(1, rows.count() // _ROWS_PER_FILE)
        if time is None:
            return total.repartition(files, *output.keys)
        return total.repartitionByRange(files, time).sortWithinPartitions(*output.keys)

    try:
        return delta_log.rewrite_files(lake.spark, lake.path(output.table), names, rewrite)
    except (Py4JJavaError, PySparkException) as error:
        if delta_log.is_conflict(error):
            raise PipelineError(
                f"table {output.table} was compacted by another process at the same time; nothing was changed. "
                "Run one compaction at a time."
            ) from error
        raise


def _files_to_sum(lake: Lake, table: str, time: str | None, before: datetime) -> frozenset[str]:
    """Return the files that share a time with another file; without a time key, all files if there are several.

    The result may be outdated when it is used. This does no harm, because files are always rewritten as a whole.
    """
    file = sf.col("_metadata.file_name").alias("file")
    stored = lake.read(table)
    if time is None:
        found = stored.select(file).distinct()
        names = frozenset(row.file for row in found.collect())
        return names if len(names) > 1 else frozenset()
    by_time = (
        stored.where(sf.col(time) < sf.lit(before))
        .groupBy(time)
        .agg(sf.collect_set(file).alias("files"))
        .where(sf.size("files") > 1)
    )
    return frozenset(row.file for row in by_time.select(sf.explode("files").alias("file")).distinct().collect())


def _same_times(time: str, touched: DataFrame) -> Column:
    """Return the condition that a row has a time of `touched`. Its literals allow Delta to skip files.

    Times are passed as text in the session's time zone, because Python's local times repeat an hour every autumn.
    """
    kind = dict(touched.dtypes)[time]
    [found] = touched.agg(
        sf.collect_set(sf.col(time).cast("string")).alias("times"),
        sf.min(time).cast("string").alias("first"),
        sf.max(time).cast("string").alias("last"),
        sf.count_if(sf.col(time).isNull()).alias("unknown"),
    ).collect()
    conditions: list[Column] = [sf.col(time).isNull()] if found.unknown else []
    if len(found.times) > _POINTS:
        conditions.append(sf.col(time).between(sf.lit(found.first).cast(kind), sf.lit(found.last).cast(kind)))
    else:
        conditions.extend(sf.col(time) == sf.lit(value).cast(kind) for value in found.times)
    return reduce(or_, conditions) if conditions else sf.lit(False)
