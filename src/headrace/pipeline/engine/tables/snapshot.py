"""Small tables that are a function of another table's view: rewritten as a whole, and only if they change."""

import json
from collections.abc import Mapping

from pyspark.sql import DataFrame

from headrace.pipeline.engine.tables import delta_log
from headrace.pipeline.engine.tables.lake import Lake
from headrace.pipeline.spec.jobs import Snapshot


class SnapshotTable:
    """A table and its latest rows, which only its job may change."""

    def __init__(self, lake: Lake, output: Snapshot) -> None:
        self._lake = lake
        self._output = output
        self._rows: DataFrame | None = None
        """The rows of the table, cached; None if they have to be read."""

    def write(
        self, rows: DataFrame, *, writer: str, batch: int, metadata: Mapping[str, object]
    ) -> tuple[DataFrame, DataFrame] | None:
        """Replace the table by `rows` if they differ; return the changed rows, and the rows whose keys are gone.

        None if nothing has changed. A repeated batch returns what its first attempt changed, even if the view has
        changed again since: the two versions of the table are compared, not `rows`.
        """
        lake, table = self._lake, self._output.table
        if not lake.exists(table):
            lake.append(table, rows, writer=writer, batch=batch, metadata=metadata)
            return rows, rows.limit(0)
        last = lake.last_batch(table, writer)
        if last is not None and batch <= last:
            version = delta_log.version(lake.spark, lake.path(table))
            new = _at(lake, table, version)
            return (new, new.limit(0)) if version == 0 else self._changes(new, _at(lake, table, version - 1))
        now = rows.localCheckpoint()
        changed, gone = self._changes(now, lake.read(table) if self._rows is None else self._rows)
        changed, gone = changed.localCheckpoint(), gone.localCheckpoint()
        if changed.isEmpty() and gone.isEmpty():
            return None
        (
            now.write.format("delta")
            .mode("overwrite")
            .options(txnAppId=writer, txnVersion=batch, userMetadata=json.dumps(metadata))
            .save(lake.path(table))
        )
        self._rows = now
        return changed, gone

    def _changes(self, new: DataFrame, old: DataFrame) -> tuple[DataFrame, DataFrame]:
        gone = old.join(new, list(self._output.keys), "left_anti").select(*old.columns)
        return new.select(*old.columns).exceptAll(old), gone


def _at(lake: Lake, table: str, version: int) -> DataFrame:
    return lake.spark.read.format("delta").option("versionAsOf", version).load(lake.path(table))
