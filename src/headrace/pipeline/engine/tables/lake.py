"""The tables of a pipeline: Delta tables in the directories below one URI.

The URI may be local, `s3a://` or `hdfs://`, so this module uses Delta, Hadoop's file systems and `Files`, not pathlib.
A commit contains its writer and batch, so a repeated batch changes nothing.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from delta.tables import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from headrace.pipeline.engine.files import Files
from headrace.pipeline.engine.java import java_class
from headrace.pipeline.engine.tables import delta_log, partials
from headrace.pipeline.errors import PipelineError
from headrace.pipeline.spec.jobs import TableOutput

_ATTEMPTS: Final = 5
_DESCRIBED: Final = frozenset(
    {"topic_id", "partition", "offset", "timestamp", "source_partition", "source_offset", "ingested_at", "event_time"}
)
"""Columns with statistics (minimum and maximum) in files of records and events, for `audit` and queries by time.

Statistics of other columns, such as lines, would take a third of the time to write a file, without skipping files.
"""
_WITH_STATISTICS: Final = frozenset({"string", "int", "bigint", "date", "timestamp", "timestamp_ntz"})
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


class Lake:
    """The tables below `uri`. One object may be shared by the threads of several queries."""

    def __init__(self, spark: SparkSession, uri: str) -> None:
        self.spark = spark
        self.uri = uri.rstrip("/")
        self._appender = delta_log.Appender(spark, Files(spark))
        self._existing: set[str] = set()

    def path(self, table: str) -> str:
        """Return the URI of a table. Raises PipelineError unless the name is an SQL identifier."""
        if not _NAME.fullmatch(table):
            raise PipelineError(f"'{table}' is not a valid table name: use a letter, then letters, digits and '_'")
        return f"{self.uri}/{table}"

    def exists(self, table: str) -> bool:
        if table not in self._existing and DeltaTable.isDeltaTable(self.spark, self.path(table)):
            self._existing.add(table)
        return table in self._existing

    def names(self) -> list[str]:
        """Return the names of all tables, sorted."""
        path = java_class(self.spark, "org.apache.hadoop.fs.Path")
        root = path(self.uri)
        files = root.getFileSystem(self.spark._jsparkSession.sessionState().newHadoopConf())
        if not files.exists(root):
            return []
        directories = [status.getPath() for status in files.listStatus(root) if status.isDirectory()]
        return sorted(d.getName() for d in directories if files.exists(path(d, "_delta_log")))

    def read(self, table: str) -> DataFrame:
        """Return the stored rows: partial aggregates of an additive table, all rows of each key of a stateful one."""
        return self.spark.read.format("delta").load(self.existing(table))

    def read_cold(self, table: str) -> DataFrame:
        """Return the stored rows, to be read once. For a short table, avoids Delta's jobs, which are slow at first."""
        found = self.followed(table).rows_if_followed()
        return self.read(table) if found is None else found

    def columns_of(self, table: str) -> DataFrame:
        """Return a frame with the columns of the stored rows, and no rows. Planning a query on it is cheap."""
        return delta_log.without_files(self.spark, self.existing(table))

    def stream(self, table: str) -> DataFrame:
        """Return the rows as a stream: first the stored rows, then each appended row once."""
        return self.spark.readStream.format("delta").load(self.existing(table))

    def view(self, output: TableOutput) -> DataFrame:
        """Return the rows as readers see them: totals, or the latest row of each key, or the stored rows."""
        return partials.current(self.read(output.table), output)

    def last_batch(self, table: str, writer: str) -> int | None:
        """Return the number of the last batch that a writer committed to a table; None if there is none."""
        return self._appender.last_batch(self.path(table), writer) if self.exists(table) else None

    def version_of(self, table: str, writer: str, batch: int) -> int | None:
        """Return the version of a table that a writer's batch has created; None if the log no longer contains it."""
        return self._appender.version_of(self.path(table), writer, batch)

    def was_changed_by_others(self, table: str, writer: str) -> bool:
        """Return True if another writer has changed the table's data since the last call."""
        return self._appender.was_changed_by_others(self.path(table), writer)

    def followed(self, table: str) -> delta_log.FollowedTable:
        """Return a reader of the table's current rows, for repeated use by one thread."""
        return delta_log.FollowedTable(self.spark, Files(self.spark), self.existing(table))

    def replace(self, table: str, rows: DataFrame, *, writer: str, batch: int, metadata: Mapping[str, object]) -> None:
        """Replace all rows of an existing table that has no other writers. A repeated batch changes nothing."""
        path, about = self.path(table), json.dumps(metadata)
        if self._appender.replace(path, rows, app_id=writer, batch=batch, user_metadata=about) is None:
            write = rows.write.format("delta").mode("overwrite")
            write.options(txnAppId=writer, txnVersion=batch, userMetadata=about).save(path)

    def append(
        self,
        table: str,
        rows: DataFrame,
        *,
        writer: str,
        batch: int,
        metadata: Mapping[str, object],
        partition_by: Sequence[str] = (),
    ) -> bool:
        """Append a batch, and return False if the writer had committed it before.

        `metadata` becomes the commit's `userMetadata`, as JSON. A writer's batches must have increasing numbers: Delta
        skips a number that is not above the last one. The first batch creates the table; columns may be added later.
        """
        path, about = self.path(table), json.dumps(metadata)

        def append() -> bool:
            if self.exists(table):
                done = self._appender.append(path, rows, app_id=writer, batch=batch, user_metadata=about)
                if done is not None:
                    return done
            write = rows.write.format("delta").mode("append").partitionBy(*partition_by)
            if "topic_id" in rows.columns and not self.exists(table):
                described = _described(rows, partition_by)
                write = write.option("delta.dataSkippingStatsColumns", ",".join(described))
            write.options(txnAppId=writer, txnVersion=batch, userMetadata=about, mergeSchema=True).save(path)
            return True

        return _repeat_on_conflict(append)

    def existing(self, table: str) -> str:
        """Return the URI of a table. Raises PipelineError if there is none."""
        if not self.exists(table):
            tables = ", ".join(self.names()) or "none"
            raise PipelineError(
                f"{self.uri} has no table {table} (tables: {tables}). Run the job that writes it, or check --lake."
            )
        return self.path(table)


def _described(rows: DataFrame, partition_by: Sequence[str]) -> list[str]:
    """Return the columns with statistics. Delta refuses partition columns and some types."""
    return [
        name
        for name, kind in rows.dtypes
        if name in _DESCRIBED and name not in partition_by and kind in _WITH_STATISTICS
    ]


def _repeat_on_conflict(commit: Callable[[], bool]) -> bool:
    """Repeat a commit that lost a race, for example to create a table. The batch number makes this safe."""
    attempt = 1
    while True:
        try:
            return commit()
        except (Py4JJavaError, PySparkException) as error:
            if attempt == _ATTEMPTS or not delta_log.is_conflict(error):
                raise
        attempt += 1
