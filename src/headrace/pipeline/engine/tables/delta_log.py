"""Transactions of Delta Lake that its Python interface lacks.

The calls go to the JVM classes of the Delta version that `jars.pom.xml` names; only this module knows them.
"""

import time
from collections.abc import Callable, Collection
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from headrace.pipeline.engine.java import java_class, to_list

_CONFLICTS: Final = ("[DELTA_CONCURRENT_", "[DELTA_METADATA_CHANGED", "[DELTA_PROTOCOL_CHANGED")


def is_conflict(error: Py4JJavaError | PySparkException) -> bool:
    """True if another writer's commit made this one fail, so that it may succeed when repeated."""
    return any(name in str(error) for name in _CONFLICTS)


def last_txn_version(spark: SparkSession, path: str, app_id: str) -> int | None:
    """Return the last `txnVersion` that `app_id` committed to a table; None if there was none."""
    found = _snapshot(spark, path).transactions().get(app_id)
    return int(found.get()) if found.isDefined() else None


def version(spark: SparkSession, path: str) -> int:
    """Return the number of a table's last commit; the first one is 0."""
    return int(_snapshot(spark, path).version())


def rewrite_files(
    spark: SparkSession, path: str, names: Collection[str], rewrite: Callable[[DataFrame], DataFrame]
) -> int:
    """Replace data files by `rewrite` of their rows in one commit, and return the number of files replaced.

    The commit says that it changes no data (`dataChange` false). Delta then grants it snapshot isolation: appends that
    commit at the same time stay beside the new files, and streams that read the table skip it. `replaceWhere` cannot
    be used instead: it accepts `dataChange` only with partition columns, and otherwise conflicts with every append.

    Raises an error for which `is_conflict` is true if one of the files was removed meanwhile.
    """
    log, none = _log(spark, path), _none(spark)
    to_seq = java_class(spark, "org.apache.spark.api.python.PythonUtils").toSeq
    transaction = log.startTransaction(none, none)
    old = [file for file in to_list(spark, transaction.filterFiles()) if _name(file) in names]
    if not old:
        return 0
    rows = DataFrame(log.createDataFrame(transaction.snapshot(), to_seq(old), False, none), spark)
    new = to_list(spark, transaction.writeFiles(rewrite(rows)._jdf))
    now_ms = int(time.time() * 1000)
    actions = [_without_data_change(file) for file in new] + [file.removeWithTimestamp(now_ms, False) for file in old]
    optimize = java_class(spark, "org.apache.spark.sql.delta.DeltaOperations$Optimize")
    transaction.commit(to_seq(actions), optimize(to_seq([]), to_seq([]), False, none, False))
    return len(old)


class TableVersion:
    """The version of a table at the time of creation: its data files with their statistics, and their rows."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self._none = _none(spark)
        self._log = _log(spark, path)
        self._snapshot = self._log.update(False, self._none, self._none)

    @property
    def columns(self) -> list[str]:
        return [str(name) for name in self._snapshot.schema().fieldNames()]

    def files(self) -> DataFrame:
        """Return a row per data file: `path`, `deletionVector`, and `stats` with `numRecords`, `minValues` etc."""
        return DataFrame(self._snapshot.withStats(), self._spark)

    def rows(self, paths: Collection[str] | None) -> DataFrame:
        """Return the rows of some files, or of all for None."""
        wanted = None if paths is None else frozenset(paths)
        files = [
            file for file in self._snapshot.allFiles().collectAsList() if wanted is None or str(file.path()) in wanted
        ]
        to_seq = java_class(self._spark, "org.apache.spark.api.python.PythonUtils").toSeq
        return DataFrame(self._log.createDataFrame(self._snapshot, to_seq(files), False, self._none), self._spark)


def _name(file: Any) -> str:
    return str(file.path()).rpartition("/")[2]


def _without_data_change(file: Any) -> Any:
    """Copy Scala's AddFile, whose fields are positional here, with `dataChange` false."""
    return file.copy(
        file.path(),
        file.partitionValues(),
        file.size(),
        file.modificationTime(),
        False,
        file.stats(),
        file.tags(),
        file.deletionVector(),
        file.baseRowId(),
        file.defaultRowCommitVersion(),
        file.clusteringProvider(),
    )


def _log(spark: SparkSession, path: str) -> Any:
    return java_class(spark, "org.apache.spark.sql.delta.DeltaLog").forTable(spark._jsparkSession, path)


def _snapshot(spark: SparkSession, path: str) -> Any:
    none = _none(spark)
    return _log(spark, path).update(False, none, none)


def _none(spark: SparkSession) -> Any:
    return java_class(spark, "scala.Option").empty()
