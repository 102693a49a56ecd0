"""Small tables that are a function of another table's view: rewritten as a whole, and only if they change."""

import logging
from collections.abc import Mapping
from functools import reduce
from operator import and_
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from headrace.pipeline.engine.tables import delta_log
from headrace.pipeline.engine.tables.lake import Lake
from headrace.pipeline.spec.jobs import Snapshot

_NEW: Final = "_new"

log = logging.getLogger(__name__)


class SnapshotTable:
    """A table and its latest rows, which only its job may change."""

    def __init__(self, lake: Lake, output: Snapshot) -> None:
        self._lake = lake
        self._output = output
        self._rows: DataFrame | None = None
        """The rows of the table, in a local checkpoint; None if they must be read from the table."""

    def write(
        self, rows: DataFrame, *, writer: str, batch: int, metadata: Mapping[str, object]
    ) -> tuple[DataFrame, DataFrame] | None:
        """Replace the table by `rows` if they differ. Return the changed rows, and the rows whose keys are gone.

        Return None if nothing has changed. A repeated batch returns the changes of its first attempt, even if the view
        has changed since: it compares versions of the table, not `rows`.
        """
        lake, table = self._lake, self._output.table
        if not lake.exists(table):
            lake.append(table, rows, writer=writer, batch=batch, metadata=metadata)
            return rows, rows.limit(0)
        last = lake.last_batch(table, writer)
        if last is not None and batch <= last:
            return self._repeated(writer, batch)
        now = rows.localCheckpoint()
        changes = self._changes(now, lake.read_cold(table) if self._rows is None else self._rows).localCheckpoint()
        if changes.isEmpty():
            return None
        lake.replace(table, now, writer=writer, batch=batch, metadata=metadata)
        self._rows = now
        return _parted(changes)

    def _repeated(self, writer: str, batch: int) -> tuple[DataFrame, DataFrame]:
        """Return the changes of a batch that the table contains.

        Others may have committed since, for example a vacuum. If the version before the batch can no longer be read,
        return all rows as changed, and no row as gone.
        """
        lake, table = self._lake, self._output.table
        version = lake.version_of(table, writer, batch)
        if version is not None:
            try:
                new = _at(lake, table, version)
                old = _at(lake, table, version - 1) if version else new.limit(0)
                return _parted(self._changes(new, old).localCheckpoint())
            except (Py4JJavaError, PySparkException) as error:
                if not delta_log.is_gone(error):
                    raise
        log.warning("%s: batch %d is published with all rows, because its changes are no longer known", table, batch)
        now = lake.read(table)
        return now, now.limit(0)

    def _changes(self, new: DataFrame, old: DataFrame) -> DataFrame:
        """Return new rows that are not in `old` (`_NEW` is true), and old rows whose keys are not in `new`."""
        names, keys = old.columns, self._output.keys
        new = new.select(sf.struct(*names).alias("row"), sf.lit(True).alias(_NEW)).alias("new")
        old = old.select(sf.struct(*names).alias("row")).alias("old")
        both = new.join(old, _same([(f"new.row.{key}", f"old.row.{key}") for key in keys]), "full_outer")
        differ = ~sf.col("new.row").eqNullSafe(sf.col("old.row"))
        row = sf.coalesce("new.row", "old.row")
        return both.where(differ).select(
            *(row[name].alias(name) for name in names), sf.coalesce(_NEW, sf.lit(False)).alias(_NEW)
        )


def _parted(changes: DataFrame) -> tuple[DataFrame, DataFrame]:
    return changes.where(_NEW).drop(_NEW), changes.where(~sf.col(_NEW)).drop(_NEW)


def _same(names: list[tuple[str, str]]) -> Column:
    return reduce(and_, (sf.col(one).eqNullSafe(sf.col(other)) for one, other in names))


def _at(lake: Lake, table: str, version: int) -> DataFrame:
    return lake.spark.read.format("delta").option("versionAsOf", version).load(lake.path(table))
