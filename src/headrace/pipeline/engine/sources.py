"""Streams of the records of topics, in the columns of `raw`, and of the rows of tables."""

import json
from collections.abc import Mapping, Sequence

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from headrace.pipeline.engine.lake import Lake


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

    Delta limits a batch by bytes, so the table's average row is taken. Raises PipelineError if there is no such table.
    """
    count = lake.read(table).count()
    size = DeltaTable.forPath(lake.spark, lake.path(table)).detail().collect()[0].sizeInBytes
    stream = lake.spark.readStream.format("delta")
    if count:
        stream = stream.option("maxBytesPerTrigger", f"{max(1, size * max_rows // count)}b")
    return stream.load(lake.path(table))
