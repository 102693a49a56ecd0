"""Small tables that are a function of another table's view: rewritten as a whole, and only if they change."""

import json
from collections.abc import Mapping

from delta.tables import DeltaTable
from pyspark.sql import DataFrame

from headrace.pipeline.engine.tables.lake import Lake
from headrace.pipeline.spec.jobs import Snapshot


def write(
    lake: Lake, output: Snapshot, rows: DataFrame, *, writer: str, batch: int, metadata: Mapping[str, object]
) -> tuple[DataFrame, DataFrame]:
    """Replace the table by `rows` if they differ; return the changed rows, and the rows whose keys are gone.

    A repeated batch returns what its first attempt changed, even if the view has changed again since: the two versions
    of the table are compared, not `rows`. `rows` are evaluated several times: cache them.
    """
    if not lake.exists(output.table):
        lake.append(output.table, rows, writer=writer, batch=batch, metadata=metadata)
        return rows, rows.limit(0)
    last = lake.last_batch(output.table, writer)
    version = _version(lake, output.table)
    if last is not None and batch <= last:
        new = _at(lake, output.table, version)
        if version == 0:
            return new, new.limit(0)
        return _changes(new, _at(lake, output.table, version - 1), output)
    changed, gone = _changes(rows, _at(lake, output.table, version), output)
    if not (changed.isEmpty() and gone.isEmpty()):
        (
            rows.write.format("delta")
            .mode("overwrite")
            .options(txnAppId=writer, txnVersion=batch, userMetadata=json.dumps(metadata))
            .save(lake.path(output.table))
        )
    return changed, gone


def _changes(new: DataFrame, old: DataFrame, output: Snapshot) -> tuple[DataFrame, DataFrame]:
    return new.select(*old.columns).exceptAll(old), old.join(new, list(output.keys), "left_anti").select(*old.columns)


def _version(lake: Lake, table: str) -> int:
    return int(DeltaTable.forPath(lake.spark, lake.path(table)).history(1).collect()[0].version)


def _at(lake: Lake, table: str, version: int) -> DataFrame:
    return lake.spark.read.format("delta").option("versionAsOf", version).load(lake.path(table))
