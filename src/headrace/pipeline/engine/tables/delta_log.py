"""Transactions of Delta Lake that its Python API lacks.

Only this module calls the JVM classes of Delta, in the version that `jars.pom.xml` sets.
"""

import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from headrace.pipeline.engine.files import Files
from headrace.pipeline.engine.java import java_class, to_list

_SHORT: Final = 200
"""Up to this number of commits, reading them one by one takes less time than Delta's jobs."""
_CONFLICTS: Final = ("[DELTA_CONCURRENT_", "[DELTA_METADATA_CHANGED", "[DELTA_PROTOCOL_CHANGED")
_GONE: Final = (
    "[FAILED_READ_FILE.FILE_NOT_EXIST]",
    "[DELTA_NO_RECREATABLE_HISTORY_FOUND]",
    "Cannot time travel Delta table",
)


def is_conflict(error: Py4JJavaError | PySparkException) -> bool:
    """True if a commit failed because of another writer's commit, so that it may succeed when repeated."""
    return any(name in str(error) for name in _CONFLICTS)


def is_gone(error: Py4JJavaError | PySparkException) -> bool:
    """True if a version of a table cannot be read because its files or its log were cleaned up."""
    return any(name in str(error) for name in _GONE)


def version(spark: SparkSession, path: str) -> int:
    """Return the number of a table's last commit; the first commit is 0."""
    return int(_snapshot(spark, path).version())


def without_files(spark: SparkSession, path: str) -> DataFrame:
    """Return a frame with a table's columns and no rows. Planning a query on it lists no files and runs no jobs."""
    none_of_them = java_class(spark, "org.apache.spark.api.python.PythonUtils").toSeq([])
    rows = _log(spark, path).createDataFrame(_snapshot(spark, path), none_of_them, False, _none(spark))
    return DataFrame(rows, spark)


class Appender:
    """Appends batches to tables, and skips those that a table already contains from the same writer.

    To find a writer's last batch, Delta would compute the state of the table for every append, with several Spark
    jobs. Here the last batch is cached, and only later commits are read. As in Delta, a commit fails if another process
    commits as the same writer at the same time.
    """

    def __init__(self, spark: SparkSession, files: Files) -> None:
        self._spark = spark
        self._files = files
        self._seen: dict[tuple[str, str], tuple[int, int]] = {}
        """By path and writer: a version of the table, and the writer's last batch up to that version."""
        self._changed: set[tuple[str, str]] = set()
        """Paths and writers for which `was_changed_by_others` must return True next time."""
        self._written: dict[str, tuple[int, list[Any]]] = {}
        """By path: the version of the table after the last `replace`, and its files."""

    def last_batch(self, path: str, app_id: str) -> int | None:
        """Return the last batch that the writer committed to an existing table; None if there was none."""
        last = self._last(path, app_id, version(self._spark, path))
        return None if last < 0 else last

    def version_of(self, path: str, app_id: str, batch: int) -> int | None:
        """Return the version of the table that a writer's batch has created; None if the log no longer contains it."""
        for number in range(version(self._spark, path), -1, -1):
            commit = self._files.read(f"{path}/_delta_log/{number:020}.json")
            if commit is None:
                return None
            if batch in _batches(commit, app_id):
                return number
        return None

    def was_changed_by_others(self, path: str, app_id: str) -> bool:
        """Return True if another writer has changed the data since the last call; compactions do not count."""
        changed = (path, app_id) in self._changed
        self._changed.discard((path, app_id))
        return changed

    def append(self, path: str, rows: DataFrame, *, app_id: str, batch: int, user_metadata: str) -> bool | None:
        """Append a batch to an existing table. Return False if the table already contains it.

        Return None if the table's columns would have to change. Raises an error for which `is_conflict` is true if
        another process has just committed as the same writer.
        """
        transaction = self._begin(path, rows, app_id, batch)
        if transaction is None or transaction is False:
            return transaction
        read = int(transaction.snapshot().version())
        files = to_list(self._spark, transaction.writeFiles(rows._jdf))
        if self._commit(transaction, files, path, app_id, batch, "Append", user_metadata) > read + 1:
            self._changed.add((path, app_id))
        return True

    def replace(self, path: str, rows: DataFrame, *, app_id: str, batch: int, user_metadata: str) -> bool | None:
        """Replace all rows of a table that only this writer changes. Return and raise like `append`.

        To find the files to remove, Delta would compute the state of the table. Here they are cached by the first call.
        """
        transaction = self._begin(path, rows, app_id, batch)
        if transaction is None or transaction is False:
            return transaction
        at, old = self._written.get(path, (-1, []))
        if at != int(transaction.snapshot().version()):
            old = to_list(self._spark, transaction.filterFiles())
        new = to_list(self._spark, transaction.writeFiles(rows._jdf))
        now_ms = int(time.time() * 1000)
        files = [*new, *(file.removeWithTimestamp(now_ms, True) for file in old)]
        self._written[path] = self._commit(transaction, files, path, app_id, batch, "Overwrite", user_metadata), new
        return True

    def _begin(self, path: str, rows: DataFrame, app_id: str, batch: int) -> Any:
        """Return a transaction that conflicts with others of the writer, or False or None like `append`."""
        none = _none(self._spark)
        transaction = _log(self._spark, path).startTransaction(none, none)
        if batch <= self._last(path, app_id, int(transaction.snapshot().version())):
            return False
        stored = dict(_dtypes(transaction.metadata().schema().json()))
        if any(stored.get(name) != kind for name, kind in rows.dtypes):
            return None
        transaction.readTxn().addOne(app_id)
        return transaction

    def _commit(
        self, transaction: Any, files: Sequence[Any], path: str, app_id: str, batch: int, mode: str, user_metadata: str
    ) -> int:
        """Commit a writer's batch, and return the table's new version."""
        spark, none = self._spark, _none(self._spark)
        some = java_class(spark, "scala.Some")
        set_transaction = java_class(spark, "org.apache.spark.sql.delta.actions.SetTransaction")
        write = java_class(spark, "org.apache.spark.sql.delta.DeltaOperations$Write")
        save_mode = getattr(java_class(spark, "org.apache.spark.sql.SaveMode"), mode)
        to_seq = java_class(spark, "org.apache.spark.api.python.PythonUtils").toSeq
        actions = [*files, set_transaction(app_id, batch, some(int(time.time() * 1000)))]
        written = int(transaction.commit(to_seq(actions), write(save_mode, none, none, some(user_metadata))))
        self._seen[path, app_id] = written, batch
        return written

    def _last(self, path: str, app_id: str, upto: int) -> int:
        """Return the writer's last batch in the versions up to `upto`; -1 if there is none."""
        seen = self._seen.get((path, app_id))
        last = -1 if seen is None else seen[1]
        for number in range(upto + 1 if seen is None else seen[0] + 1, upto + 1):
            commit = self._files.read(f"{path}/_delta_log/{number:020}.json")
            if commit is None:
                seen = None  # the log was cleaned up
                break
            last = max(last, *_batches(commit, app_id), -1)
            if '"dataChange":true' in commit:
                self._changed.add((path, app_id))
        if seen is None:
            last = self._last_in_state(path, app_id, upto)
        self._seen[path, app_id] = upto, last
        return last

    def _last_in_state(self, path: str, app_id: str, upto: int) -> int:
        """Return the writer's last batch from the version's summary. Without a summary, Delta computes the state."""
        writers = _summary(self._files, path, upto).get("setTransactions")
        if writers is not None:
            return max((int(each["version"]) for each in writers if each["appId"] == app_id), default=-1)
        found = _snapshot(self._spark, path).transactions().get(app_id)
        return int(found.get()) if found.isDefined() else -1


def _summary(files: Files, path: str, version: int) -> Mapping[str, Any]:
    """Return the checksum file that Delta has written for a version, parsed; empty if there is none.

    It contains the writers (`setTransactions`) and, unless there are many, the files (`allFiles`).
    """
    text = files.read(f"{path}/_delta_log/{version:020}.crc")
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}  # another process is writing it
    return found if isinstance(found, dict) else {}


def _batches(commit: str, app_id: str) -> Iterator[int]:
    for line in commit.splitlines():
        if line.startswith('{"txn"'):
            found = json.loads(line)["txn"]
            if found["appId"] == app_id:
                yield int(found["version"])


@cache
def _dtypes(schema: str) -> Sequence[tuple[str, str]]:
    parsed = StructType.fromJson(json.loads(schema))
    return tuple((field.name, field.dataType.simpleString()) for field in parsed.fields)


def rewrite_files(
    spark: SparkSession, path: str, names: Collection[str], rewrite: Callable[[DataFrame], DataFrame]
) -> int:
    """Replace data files with the result of `rewrite` on their rows, in one commit. Return how many were replaced.

    The commit is marked as changing no data (`dataChange` false). Delta then uses snapshot isolation: concurrent
    appends do not conflict with the commit, and streams that read the table skip it. `replaceWhere` cannot be used
    instead: it accepts `dataChange` only with partition columns, and otherwise conflicts with every append.

    Raises an error for which `is_conflict` is true if one of the files was removed at the same time.
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
    """The version of a table when the object is created: data files with their statistics, and rows."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self._none = _none(spark)
        self._log = _log(spark, path)
        self._snapshot = self._log.update(False, self._none, self._none)

    @property
    def columns(self) -> list[str]:
        return [str(name) for name in self._snapshot.schema().fieldNames()]

    def files(self) -> DataFrame:
        """Return a row per data file, with `path`, `deletionVector`, and `stats` (`numRecords`, `minValues` etc.)."""
        return DataFrame(self._snapshot.withStats(), self._spark)

    def rows(self, paths: Collection[str] | None) -> DataFrame:
        """Return the rows of the files at `paths`; None means all files."""
        wanted = None if paths is None else frozenset(paths)
        files = [
            file for file in self._snapshot.allFiles().collectAsList() if wanted is None or str(file.path()) in wanted
        ]
        to_seq = java_class(self._spark, "org.apache.spark.api.python.PythonUtils").toSeq
        return DataFrame(self._log.createDataFrame(self._snapshot, to_seq(files), False, self._none), self._spark)


class FollowedTable:
    """The current rows of a table that is read repeatedly.

    To list the files of a table, Delta computes its state from all commits since the last checkpoint. This class
    reads only the commits since its last call, if the log still contains them.
    """

    def __init__(self, spark: SparkSession, files: Files, path: str) -> None:
        self._spark = spark
        self._reader = files
        self._path = path
        self._version = -1
        self._files: dict[str, Any] = {}
        """Scala's AddFile by path, at `_version`."""

    def rows(self) -> DataFrame:
        found = self.rows_if_followed()
        if found is not None:
            return found
        snapshot = _snapshot(self._spark, self._path)
        self._files = {str(file.path()): file for file in snapshot.allFiles().collectAsList()}
        self._version = int(snapshot.version())
        return self._of_files(snapshot)

    def rows_if_followed(self) -> DataFrame | None:
        """Return the rows if their files can be found without Delta's jobs; None for a long or cleaned-up log."""
        snapshot = _snapshot(self._spark, self._path)
        version = int(snapshot.version())
        if not (self._advance(version) if self._version >= 0 else self._begin(version)):
            return None
        self._version = version
        return self._of_files(snapshot)

    def _of_files(self, snapshot: Any) -> DataFrame:
        spark = self._spark
        to_seq = java_class(spark, "org.apache.spark.api.python.PythonUtils").toSeq
        files = to_seq(list(self._files.values()))
        return DataFrame(_log(spark, self._path).createDataFrame(snapshot, files, False, _none(spark)), spark)

    def _begin(self, version: int) -> bool:
        """Find the files of a version. Return False if the log is long or was cleaned up."""
        listed = _summary(self._reader, self._path, version).get("allFiles")
        if listed is None:
            return version < _SHORT and self._advance(version)
        action = java_class(self._spark, "org.apache.spark.sql.delta.actions.Action")
        self._files = {file["path"]: action.fromJson(json.dumps({"add": file})) for file in listed}
        return True

    def _advance(self, version: int) -> bool:
        """Apply the commits up to `version`. Return False if one is missing because the log was cleaned up."""
        action = java_class(self._spark, "org.apache.spark.sql.delta.actions.Action")
        for number in range(self._version + 1, version + 1):
            commit = self._reader.read(f"{self._path}/_delta_log/{number:020}.json")
            if commit is None:
                return False
            lines = commit.splitlines()
            for line in lines:
                if line.startswith('{"remove"'):
                    self._files.pop(json.loads(line)["remove"]["path"], None)
            for line in lines:
                if line.startswith('{"add"'):
                    file = action.fromJson(line)
                    self._files[str(file.path())] = file
        return True


def _name(file: Any) -> str:
    return str(file.path()).rpartition("/")[2]


def _without_data_change(file: Any) -> Any:
    """Copy an `AddFile` with `dataChange` false. Scala's `copy` has only positional arguments here."""
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
