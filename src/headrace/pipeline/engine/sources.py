"""Streams of the records of topics, in the columns of `raw`, and of the rows of tables."""

import json
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from headrace.pipeline.engine.files import Files
from headrace.pipeline.engine.tables.lake import Lake

_COMMITS: Final = 5


def records(
    spark: SparkSession, options: Mapping[str, str], topics: Sequence[str], ids: Mapping[str, str], max_rows: int
) -> DataFrame:
    """Return the records of `topics` from the beginning, at most `max_rows` in a batch.

    `options` connect to the cluster (`kafka.*`); `ids` are the topics' ids. Records of aborted transactions are left
    out. `ingest_date` is the date of the batch, so a repeated batch has the same.
    """
    source = (
        spark.readStream.format("kafka")
        .option("kafka.isolation.level", "read_committed")
        .options(**options)
        .option("subscribe", ",".join(topics))
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
        .option("maxOffsetsPerTrigger", max_rows)
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


def rows(lake: Lake, table: str, max_rows: int) -> DataFrame:
    """Return the rows of a table as a stream, about `max_rows` in a batch, but always whole files.

    Delta limits a batch by bytes, so the average row of the latest commits is taken. Raises PipelineError if there is
    no such table.
    """
    path = lake.existing(table)
    size = bytes_per_row(Files(lake.spark), path)
    stream = lake.spark.readStream.format("delta")
    if size is not None:
        stream = stream.option("maxBytesPerTrigger", f"{max(1, int(size * max_rows))}b")
    return stream.load(path)


class Reading(Protocol):
    """The files of a table's log."""

    def read(self, uri: str) -> str | None: ...

    def names(self, uri: str) -> list[str]: ...


def bytes_per_row(files: Reading, table: str) -> float | None:
    """Return the average of the latest commits with rows, from the log alone; None if it is not known.

    Counting the rows would take two Spark jobs at each start of a query.
    """
    log = f"{table}/_delta_log"
    commits = sorted(name for name in files.names(log) if name.removesuffix(".json").isdecimal())
    size = count = 0
    for name in reversed(commits[-_COMMITS:]):
        for line in (files.read(f"{log}/{name}") or "").splitlines():
            added = json.loads(line).get("add") if line.startswith('{"add"') else None
            if added is not None and added.get("stats"):
                size += added["size"]
                count += json.loads(added["stats"])["numRecords"]
    return size / count if count else None
