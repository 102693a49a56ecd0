"""Write results to a Delta table and a topic, exactly once even after a crash.

After a crash, Spark repeats the last micro-batch with the same number and rows. The table's commit has the job and the
batch number (`txnAppId`, `txnVersion`), so a repeated batch changes nothing. The commit also has the topic's end
offsets from before the batch was published: a repeated batch reads the topic from there and publishes missing records.
See docs/decisions/050-results-once.md.
"""

import json
import logging
from dataclasses import dataclass
from typing import Final

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from headrace.pipeline.jobs.job import Output
from headrace.pipeline.topics import Topics

TIMESTAMP_FORMAT: Final = "yyyy-MM-dd'T'HH:mm:ssX"
_COMMITS_LOOKED_BACK: Final = 20
"""A repeated batch is its writer's last commit; later commits come from `settle` or a manual OPTIMIZE."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The cluster of the topics, whose names begin with `prefix`."""

    bootstrap: str
    prefix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A batch in a table's log: its version of the table, and the topic's end offsets before it, by partition."""

    version: int
    topic_end_offsets: dict[str, int]


def find_commit(spark: SparkSession, table_path: str, writer: str, batch: int) -> Commit | None:
    """Return the commit of a writer's batch; None if it is not among the last ones."""
    if not DeltaTable.isDeltaTable(spark, table_path):
        return None
    history = DeltaTable.forPath(spark, table_path).history(_COMMITS_LOOKED_BACK)
    for row in history.where(sf.col("userMetadata").isNotNull()).select("version", "userMetadata").collect():
        marker = json.loads(row.userMetadata)
        if marker.get("writer") == writer and marker.get("batch") == batch:
            return Commit(version=row.version, topic_end_offsets=marker["topic_end_offsets"])
    return None


class Sink:
    """One output of a writer. `writer` must never change: it is in the table's log and in the records' headers."""

    def __init__(self, output: Output, writer: str, table_path: str, cluster: Cluster) -> None:
        self._output = output
        self._writer = writer
        self._path = table_path
        self._cluster = cluster
        self._topic = cluster.prefix + output.topic if output.topic else None
        self._topics = Topics(cluster.bootstrap)
        self._may_be_repeated = True

    def write(self, rows: DataFrame, batch: int) -> int:
        """Write a batch of cached rows, and return the number of published records.

        Batches come in order; only the first one after a start may have been written before.
        """
        count = rows.count()
        if count == 0:
            return 0
        spark = rows.sparkSession
        earlier = find_commit(spark, self._path, self._writer, batch) if self._may_be_repeated else None
        self._may_be_repeated = False
        if earlier is None:
            self._commit(rows, batch)
        if self._topic is None:
            return 0
        records = self._records(rows, batch)
        if earlier is not None:
            published = self._published(spark, self._topic, batch, earlier.topic_end_offsets)
            records = records.join(published, "key", "left_anti")
            count = records.count()
            log.info("%s: batch %d is already committed; publishing %d missing records", self._writer, batch, count)
        records.write.format("kafka").option("kafka.bootstrap.servers", self._cluster.bootstrap).option(
            "topic", self._topic
        ).option("includeHeaders", "true").save()
        return count

    def _commit(self, rows: DataFrame, batch: int) -> None:
        spark = rows.sparkSession
        offsets = self._topics.end_offsets(self._topic) if self._topic else {}
        marker = json.dumps({"writer": self._writer, "batch": batch, "topic_end_offsets": offsets})
        if not self._output.keys or not DeltaTable.isDeltaTable(spark, self._path):
            (
                rows.write.format("delta")
                .mode("append")
                .options(txnAppId=self._writer, txnVersion=batch, userMetadata=marker)
                .save(self._path)
            )
            return
        same_keys = " AND ".join(f"stored.{key} = new.{key}" for key in self._output.keys)
        merge = (
            DeltaTable.forPath(spark, self._path)
            .alias("stored")
            .merge(rows.alias("new"), same_keys)
            .whenMatchedUpdateAll()
            .whenNotMatchedInsertAll()
        )
        # A merge takes no options. The session belongs to the query: Spark clones one for each query.
        settings = {
            "spark.databricks.delta.write.txnAppId": self._writer,
            "spark.databricks.delta.write.txnVersion": str(batch),
            "spark.databricks.delta.commitInfo.userMetadata": marker,
        }
        for name, value in settings.items():
            spark.conf.set(name, value)
        try:
            merge.execute()
        finally:
            for name in settings:
                spark.conf.unset(name)

    def _records(self, rows: DataFrame, batch: int) -> DataFrame:
        """Convert rows to records: keys joined by spaces, the row as JSON, headers with writer and batch."""
        options = {"timestampFormat": TIMESTAMP_FORMAT}
        key = sf.concat_ws(
            " ",
            *(
                sf.date_format(name, TIMESTAMP_FORMAT) if kind == "timestamp" else sf.col(name).cast("string")
                for name, kind in rows.dtypes
                if name in self._output.keys
            ),
        )
        headers = [
            ("job", sf.lit(self._writer)),
            ("batch", sf.lit(str(batch))),
            *((name, sf.col(name)) for name in self._output.headers),
        ]
        return rows.select(
            key.alias("key"),
            sf.to_json(sf.struct(*rows.columns), options).alias("value"),
            sf.array(
                *(sf.struct(sf.lit(name).alias("key"), value.cast("binary").alias("value")) for name, value in headers)
            ).alias("headers"),
        )

    def _published(self, spark: SparkSession, topic: str, batch: int, before: dict[str, int]) -> DataFrame:
        """Return the keys of this batch in the topic at or after the offsets `before`."""
        now = self._topics.end_offsets(topic)
        starting = {str(partition): before.get(str(partition), 0) for partition in now}
        records = (
            spark.read.format("kafka")
            .option("kafka.bootstrap.servers", self._cluster.bootstrap)
            .option("subscribe", topic)
            .option("startingOffsets", json.dumps({topic: starting}))
            .option("endingOffsets", json.dumps({topic: {str(partition): end for partition, end in now.items()}}))
            .option("includeHeaders", "true")
            .load()
        )
        named = sf.map_from_entries("headers")
        return records.where(
            (named["job"].cast("string") == self._writer) & (named["batch"].cast("string") == str(batch))
        ).select(sf.col("key").cast("string").alias("key"))
