"""Streams of the records of topics, with the columns of `raw`, and of the rows of tables."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from headrace.pipeline.engine.files import Files
from headrace.pipeline.engine.tables.lake import Lake

_COMMITS: Final = 5
SMALL: Final = 20_000
"""Maximum number of rows in a batch that is processed in one task."""
_RECORDS_PER_TASK: Final = 70_000
"""Maximum number of records per task, so that a few large partitions keep all cores busy until the batch ends."""
_FEW: Final = 2
_OTHER_CHANGES: Final = ('{"remove"', '{"metaData"', '{"protocol"')
_MOST_COMMITS: Final = 50
"""Maximum number of commits whose rows are counted; reading more would take longer than it saves."""


def records(
    spark: SparkSession, options: Mapping[str, str], topics: Sequence[str], ids: Mapping[str, str], max_rows: int
) -> DataFrame:
    """Return the records of `topics` from the beginning, at most `max_rows` in a batch.

    `options` are the `kafka.*` options for connecting to the cluster; `ids` maps topic names to topic ids. Records of
    aborted transactions are left out. `ingest_date` is the date of the batch; a repeated batch keeps it.
    """
    source = (
        spark.readStream.format("kafka")
        .option("kafka.isolation.level", "read_committed")
        .options(**options)
        .option("subscribe", ",".join(topics))
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
        .option("maxOffsetsPerTrigger", max_rows)
        .option("minPartitions", 2 * spark.sparkContext.defaultParallelism)
        .option("maxRecordsPerPartition", _RECORDS_PER_TASK)
    )
    known = json.dumps(dict(ids))
    return source.load().select(
        "topic",
        sf.try_element_at(sf.from_json(sf.lit(known), "map<string, string>"), sf.col("topic")).alias("topic_id"),
        "partition",
        "offset",
        "timestamp",
        sf.col("timestampType").alias("timestamp_type"),
        "key",
        "value",
        "headers",
        sf.to_date(sf.current_timestamp()).alias("ingest_date"),
    )


def rows(lake: Lake, table: str, max_rows: int, *, new: bool = False) -> DataFrame:
    """Return the rows of a table as a stream, about `max_rows` in a batch, but always whole files.

    Delta limits a batch by bytes, so the limit is computed from the average row size of the latest commits. A `new`
    stream, without a checkpoint, reads a short log commit by commit, because Delta would need several jobs to list the
    table's files in the order of their commits. Raises PipelineError if the table does not exist.
    """
    path, files = lake.existing(table), Files(lake.spark)
    size = bytes_per_row(files, path)
    stream = lake.spark.readStream.format("delta")
    if new and only_adds(files, path):
        stream = stream.option("startingVersion", 0)
    if size is not None:
        stream = stream.option("maxBytesPerTrigger", f"{max(1, int(size * max_rows))}b")
    return stream.load(path)


def in_one_task(rows: DataFrame, count: int | None) -> DataFrame:
    """Process a small batch in one task, without a shuffle, and leave the other cores to other queries.

    `count` is the maximum number of rows; None if unknown. A batch of one or two partitions also counts as small.
    """
    if count is not None and count <= SMALL:
        return rows.coalesce(1)
    few = int(rows._jdf.queryExecution().toRdd().getNumPartitions()) <= _FEW
    return rows.coalesce(1) if few else rows


def records_between(before: object, after: object) -> int | None:
    """Return the maximum number of records between two Spark offsets of a Kafka source; None for another source."""
    if not isinstance(after, Mapping) or not all(isinstance(ends, Mapping) for ends in after.values()):
        return None
    starts = before if isinstance(before, Mapping) else {}
    return sum(
        int(end) - int(starts.get(topic, {}).get(at, 0)) for topic, ends in after.items() for at, end in ends.items()
    )


class Reading(Protocol):
    """The files of a table's log."""

    def read(self, uri: str) -> str | None: ...

    def names(self, uri: str) -> list[str]: ...


def bytes_per_row(files: Reading, table: str) -> float | None:
    """Return the average row size in the latest commits with rows, from the log alone; None if unknown.

    Counting the rows would take two Spark jobs at each start of a query.
    """
    log = f"{table}/_delta_log"
    commits = _commits(files, table)
    size = count = 0
    for name in reversed(commits[-_COMMITS:]):
        for file in _added(files.read(f"{log}/{name}")):
            if file.get("stats"):
                size += file["size"]
                count += json.loads(file["stats"])["numRecords"]
    return size / count if count else None


def rows_between(files: Reading, table: str, before: Any, after: Any) -> int | None:
    """Return the maximum number of rows between two Spark offsets of a Delta source; None if unknown.

    `before` is None for the first batch of a query.
    """
    if after is None:
        return None
    last = int(after["reservoirVersion"])
    first = 0 if before is None or before.get("isStartingVersion") else int(before["reservoirVersion"])
    if last - first >= _MOST_COMMITS:
        return None
    count = 0
    for number in range(first, last + 1):
        commit = files.read(f"{table}/_delta_log/{number:020}.json")
        if commit is None and number < last:
            return None  # the log was cleaned up
        for file in _added(commit):
            if not file.get("stats"):
                return None
            count += json.loads(file["stats"])["numRecords"]
    return count


def has_unread(files: Reading, table: str, after: Any) -> bool:
    """Return True if `after`, an offset of Spark's Delta source, is None, or if the table has later commits."""
    if after is None:
        return True
    last = max((int(name.removesuffix(".json")) for name in _commits(files, table)), default=-1)
    # A negative index means that no file of that version has been read.
    return last >= int(after["reservoirVersion"]) + (int(after["index"]) >= 0)


def only_adds(files: Reading, table: str) -> bool:
    """Return True if a table's commits only add rows, and its log is complete and short.

    The schema must not have changed either: Delta refuses to read commits with an older schema.
    """
    log = f"{table}/_delta_log"
    commits = _commits(files, table)
    if len(commits) > _MOST_COMMITS or commits != [f"{number:020}.json" for number in range(len(commits))]:
        return False
    lines = (line for name in commits[1:] for line in (files.read(f"{log}/{name}") or "").splitlines())
    return not any(line.startswith(_OTHER_CHANGES) for line in lines)


def _commits(files: Reading, table: str) -> list[str]:
    """Return the names of a table's commit files, oldest first."""
    return sorted(name for name in files.names(f"{table}/_delta_log") if name.removesuffix(".json").isdecimal())


def _added(commit: str | None) -> Iterator[Mapping[str, Any]]:
    for line in (commit or "").splitlines():
        if line.startswith('{"add"'):
            yield json.loads(line)["add"]
