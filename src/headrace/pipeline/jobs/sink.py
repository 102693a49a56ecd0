"""Results to a Delta table and a topic, each once, whatever happens in between.

Spark repeats the last micro-batch after a crash: same number, same rows. The table's commit names job and batch
(`txnAppId`, `txnVersion`), so a repeated one changes nothing. The same commit carries the topic's end offsets from
before the batch was published: a repeated batch reads the topic from there and publishes what is missing.
docs/decisions/050-results-once.md says why that is enough.
"""

from __future__ import annotations

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
"""The commit of a repeated batch is its writer's last one; others come from `settle` and from people's OPTIMIZE."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Where the topics are. `prefix` comes before every topic's name."""

    bootstrap: str
    prefix: str = ""


class Sink:
    """One output of one writer. `writer` names it for ever: in the table's log and in the records' headers."""

    def __init__(self, output: Output, writer: str, table_path: str, cluster: Cluster) -> None:
        self._output = output
        self._writer = writer
        self._path = table_path
        self._cluster = cluster
        self._topic = cluster.prefix + output.topic if output.topic else None
        self._topics = Topics(cluster.bootstrap)
        self._may_be_repeated = True

    def write(self, rows: DataFrame, batch: int) -> int:
        """Write one batch, whose rows are cached; returns how many records were published.

        Batches come in rising order; only the first after a start may have been written before.
        """
        count = rows.count()
        if count == 0:
            return 0
        spark = rows.sparkSession
        before = self._offsets_before(spark, batch) if self._may_be_repeated else None
        self._may_be_repeated = False
        if before is None:
            self._commit(rows, batch)
        if self._topic is None:
            return 0
        records = self._records(rows, batch)
        if before is not None:
            published = self._published(spark, self._topic, batch, before)
            records = records.join(published, "key", "left_anti")
            count = records.count()
            log.info("%s: batch %d was committed before, %d records were missing", self._writer, batch, count)
        records.write.format("kafka").option("kafka.bootstrap.servers", self._cluster.bootstrap).option(
            "topic", self._topic
        ).option("includeHeaders", "true").save()
        return count

    def _offsets_before(self, spark: SparkSession, batch: int) -> dict[str, int] | None:
        """The topic's end offsets when `batch` was committed to the table; None when it was not."""
        if not DeltaTable.isDeltaTable(spark, self._path):
            return None
        history = DeltaTable.forPath(spark, self._path).history(_COMMITS_LOOKED_BACK)
        for row in history.where(sf.col("userMetadata").isNotNull()).select("userMetadata").collect():
            marker = json.loads(row.userMetadata)
            if marker.get("writer") == self._writer and marker.get("batch") == batch:
                return dict(marker["topic_end_offsets"])
        return None

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
        # A merge has no options of its own. The session is the query's alone: Spark clones one for each.
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
        """Rows as records: the keys joined by a space, the row as JSON, and headers that say who wrote it when."""
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
        """The keys of this batch that are in the topic at or after the offsets `before`."""
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
