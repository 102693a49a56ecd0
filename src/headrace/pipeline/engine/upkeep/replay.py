"""Process quarantined records again, and move those that are now accepted to the tables of their job.

Records are identified by their position in the topic. A record that is in a table is not appended again, and a record
is removed from the quarantine only when it is in the tables. So a replay that was killed can be repeated.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Final

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from headrace.pipeline.engine.quality import lateness, quarantine
from headrace.pipeline.engine.quality.expectations import split
from headrace.pipeline.engine.tables.lake import Lake
from headrace.pipeline.engine.upkeep import offsets_present
from headrace.pipeline.errors import PipelineError
from headrace.pipeline.spec.jobs import Append, Job, Topic

_POSITION: Final = ("topic_id", "partition", "offset")
_ORIGIN: Final = ("topic_id", "source_partition", "source_offset")


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """The number of a job's records in quarantine for `reason`, and of those that the replay accepted."""

    reason: str
    records: int
    accepted: int


def can_replay(job: Job) -> bool:
    """True for jobs that read topics and only append to tables."""
    return isinstance(job.source, Topic) and all(isinstance(output, Append) for output in job.outputs)


def replay(
    lake: Lake, job: Job, params: object, *, reasons: Sequence[str] = (), dry_run: bool = False
) -> list[Replayed]:
    """Run the job's function on its quarantined records, append the good ones, and return the counts by reason.

    If `reasons` are given, only records with one of these are tried. With `dry_run`, nothing is written. The job may be
    running. Raises PipelineError if the job cannot be replayed.
    """
    if not can_replay(job):
        raise PipelineError(f"job {job.name} cannot be replayed: it must read topics and only append rows to tables")
    if not lake.exists(quarantine.TABLE):
        return []
    tried = lake.read(quarantine.TABLE).where(sf.col("job") == job.name)
    if reasons:
        tried = tried.where(sf.col("reason").isin(*reasons))
    tried = tried.dropDuplicates(list(_POSITION)).persist()
    try:
        good = _good(tried, job, params)
        accepted = _positions(good).persist()
        try:
            counts = _counts(tried, accepted)
            if not dry_run and any(count.accepted for count in counts):
                for table, rows in good.items():
                    _append(lake, table, rows, job)
                _remove(lake, _arrived(lake, good, accepted), job)
            return counts
        finally:
            accepted.unpersist()
    finally:
        tried.unpersist()


def _good(tried: DataFrame, job: Job, params: object) -> Mapping[str, DataFrame]:
    """Run the job on these records again, and return the rows that it accepts now, by table."""
    records = tried.drop("job", "version", "reason").withColumn("ingest_date", sf.current_date())
    met, _ = split(records, job.expects)
    result = job.function(met, params)
    frames = result if isinstance(result, dict) else {job.tables[0]: result}
    good = {table: rows for table, rows in frames.items() if table != quarantine.TABLE}
    for table, rows in good.items():
        if offsets_present.columns(rows.columns) is None:
            raise PipelineError(
                f"job {job.name} cannot be replayed: the rows that it writes to table {table} must have "
                "topic_id, partition and offset"
            )
    return good


def _positions(good: Mapping[str, DataFrame]) -> DataFrame:
    """Return the positions of the records that produced a row."""
    positions = [rows.select(*_position(rows)) for rows in good.values()]
    return reduce(lambda one, other: one.union(other), positions).distinct()


def _position(rows: DataFrame) -> list[Column]:
    names = offsets_present.columns(rows.columns) or {}
    return [sf.col(names[name]).alias(name) for name in _POSITION]


def _counts(tried: DataFrame, accepted: DataFrame) -> list[Replayed]:
    marked = tried.alias("tried").join(
        sf.broadcast(accepted.withColumn("good", sf.lit(True)).alias("accepted")), _same("tried", "accepted"), "left"
    )
    by_reason = marked.groupBy("tried.reason").agg(sf.count("*").alias("records"), sf.count("good").alias("accepted"))
    return [
        Replayed(reason=row.reason, records=row.records, accepted=row.accepted)
        for row in by_reason.orderBy(sf.desc("records"), "reason").collect()
    ]


def _append(lake: Lake, table: str, rows: DataFrame, job: Job) -> None:
    """Append the rows whose positions the table does not have."""
    writer = f"{job.name}-{job.version}/replay"
    if lake.exists(table):
        stored = lake.read(table)
        if "late_by_s" in stored.columns and set(rows.columns) >= {*_ORIGIN, "event_time"}:
            rows = _with_lateness(rows, stored)
        if "settled_after" in stored.columns:
            # Stateful queries may have dropped state from before this time, so they must reject older rows.
            [(settled,)] = stored.agg(sf.max(sf.unix_micros("settled_after"))).collect()
            time = sf.timestamp_micros(sf.lit(settled).cast("bigint"))
            rows = rows.withColumns({"settled_before": time, "settled_after": time})
        there = stored.select(*_position(stored)).alias("there")
        found = _position(rows)
        new = rows.select("*", sf.struct(*found).alias("_at"))
        rows = new.join(there, _same("_at", "there"), "left_anti").drop("_at")
    rows = rows.coalesce(1).persist()
    try:
        if rows.isEmpty():
            return
        last = lake.last_batch(table, writer)
        lake.append(
            table,
            rows,
            writer=writer,
            batch=0 if last is None else last + 1,
            metadata={"job": job.name, "version": job.version, "replay": True},
        )
    finally:
        rows.unpersist()


def _arrived(lake: Lake, good: Mapping[str, DataFrame], accepted: DataFrame) -> DataFrame:
    """Return the accepted positions whose rows are in the tables.

    Rows are missing if another replay used the same batch number at the same time: Delta then skips them.
    """
    for table, rows in good.items():
        if lake.exists(table):
            stored = lake.read(table)
            there = stored.select(*_position(stored)).alias("there")
            lost = rows.select(*_position(rows)).alias("rows").join(there, _same("rows", "there"), "left_anti")
            accepted = accepted.alias("accepted").join(lost.alias("lost"), _same("accepted", "lost"), "left_anti")
    return accepted


def _with_lateness(rows: DataFrame, stored: DataFrame) -> DataFrame:
    """Add the lateness of the rows, which depends on earlier rows of their partitions."""
    columns = [*_ORIGIN, "event_time"]
    partitions = sf.broadcast(rows.select(*_ORIGIN[:2]).distinct().alias("read"))
    around = stored.select(*columns).alias("stored").join(partitions, _same("stored", "read", _ORIGIN[:2]), "left_semi")
    both = around.withColumn("_new", sf.lit(False)).union(rows.select(*columns).withColumn("_new", sf.lit(True)))
    late = lateness.windowed(both, {}).where("_new").select(*_ORIGIN, "late_by_s")
    joined = rows.alias("rows").join(late.alias("late"), _same("rows", "late", _ORIGIN), "left")
    return joined.select("rows.*", "late.late_by_s")


def _remove(lake: Lake, accepted: DataFrame, job: Job) -> None:
    """Delete accepted records from the quarantine; they are in the job's tables."""
    table = DeltaTable.forPath(lake.spark, lake.path(quarantine.TABLE))
    (
        table.alias("stored")
        .merge(accepted.alias("accepted"), _same("stored", "accepted") & (sf.col("stored.job") == job.name))
        .whenMatchedDelete()
        .execute()
    )


def _same(one: str, other: str, names: Sequence[str] = _POSITION) -> Column:
    """Return the condition that these columns are equal. The topic id is null if the cluster has no ids."""
    return reduce(and_, (sf.col(f"{one}.{name}").eqNullSafe(sf.col(f"{other}.{name}")) for name in names))
