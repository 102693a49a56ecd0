"""Stateful queries: late rows are split off first, and state is kept as long as rows in time may need it.

Spark's own watermark follows the latest event time of all partitions, and would silently drop the rows of a slow
partition. Here the watermark follows a column of the source table: the time up to which all partitions are settled.
"""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from headrace.pipeline.engine.quality import lateness
from headrace.pipeline.errors import PipelineError
from headrace.pipeline.spec.jobs import Job, Stateful, Table
from headrace.pipeline.spec.params import seconds_of

_SETTLED: Final = ("settled_before", "settled_after")
_WATERMARK: Final = "spark.watermarkDelayMs"
"""The key in a column's metadata by which Spark finds the watermark."""


def stream(rows: DataFrame, job: Job, output: Stateful, params: object) -> DataFrame:
    """Return a stream with the job's results in `result` and its late rows in `late`. One of the two is null.

    If the job sets its own watermark, there is no column `late`. Raises PipelineError if the source lacks columns.
    """
    if output.late_by is None:
        return _results(job, output, rows, params)
    if missing := {"event_time", "late_by_s", *_SETTLED} - set(rows.columns):
        source = f"table {job.source.name}" if isinstance(job.source, Table) else "a topic"
        raise PipelineError(
            f"job {job.name} needs the columns {', '.join(sorted(missing))}, which {source} lacks: its source must be "
            "a table of a job that reads a topic and returns topic_id, source_partition, source_offset and event_time"
        )
    late_by = str(getattr(params, output.late_by))
    in_time, late = lateness.parted(rows, late_by)
    results = _results(job, output, watermarked(in_time, late_by), params)
    return results.unionByName(late.select(sf.struct("*").alias("late")), allowMissingColumns=True)


def parted(rows: DataFrame) -> tuple[DataFrame, DataFrame | None]:
    """Return the results and the late rows of a batch of `stream`; None for the latter if the job sets a watermark."""
    if "late" not in rows.columns:
        return rows.select("result.*"), None
    return (
        rows.where(sf.col("late").isNull()).select("result.*"),
        rows.where(sf.col("late").isNotNull()).select("late.*"),
    )


def watermarked(rows: DataFrame, late_by: str) -> DataFrame:
    """Set a watermark on `event_time` that follows `settled_after`, and drop both columns of settled times.

    The delay is `late_by` plus one millisecond, Spark's unit, because a row at the end of a window still belongs to the
    window if it is exactly as late as allowed. Spark would move a job's filters below the watermark, which would
    then follow only the rows that pass the filters. A nondeterministic `event_time` prevents this.
    """
    known = sf.coalesce("settled_after", sf.timestamp_micros(sf.lit(0)))
    followed = rows.withColumn("settled_after", known).withWatermark("settled_after", f"{late_by} 1 millisecond")
    about = {_WATERMARK: round(seconds_of(late_by) * 1000) + 1}
    time = sf.when(sf.spark_partition_id() >= 0, sf.col("event_time"))
    return followed.withColumn("event_time", time.alias("event_time", metadata=about)).drop(*_SETTLED)


def _results(job: Job, output: Stateful, rows: DataFrame, params: object) -> DataFrame:
    result = job.function(rows, params)
    return (result[output.table] if isinstance(result, dict) else result).select(sf.struct("*").alias("result"))
