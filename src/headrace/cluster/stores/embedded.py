"""The embedded metadata store: one SQLite file for one process.

A write is on disk before it returns. All calls run on the executor, if any, because they may wait for the disk or a
lock. All failures of SQLite and the file become StoreErrors.
"""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from headrace.clock import now_ms
from headrace.cluster.store import (
    ANY_VERSION,
    BadVersionError,
    Create,
    Delete,
    Done,
    MetadataStore,
    Node,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Operation,
    Set,
    Stat,
    StoreError,
    StoreLockedError,
    StoreUnavailableError,
)
from headrace.cluster.stores import metadata_file

if TYPE_CHECKING:
    import sqlite3

T = TypeVar("T")

_NEXT_LOCK_WAIT_S: Final = 0.1
"""Lock timeout soon after a request has waited LOCK_WAIT_S in vain."""
_PATHS_AT_ONCE: Final = 500
"""Some builds of SQLite allow only 999 values in a statement."""
_STAT: Final = "version, czxid, mzxid, ctime_ms, ephemeral"
_READ: Final = f"SELECT data, {_STAT} FROM node WHERE path = ?"
_READ_STAT: Final = f"SELECT {_STAT} FROM node WHERE path = ?"


class EmbeddedStore(MetadataStore):
    """A metadata store in the file `path`, for one process. Deletes ephemeral nodes that an earlier process left.

    `durable=False` omits fsync, for tests. Raises StoreUnavailableError if the file cannot be used.
    """

    def __init__(self, path: Path, *, executor: Executor | None = None, durable: bool = True) -> None:
        import sqlite3

        self._path = path
        self._executor = executor
        self._lock = asyncio.Lock()
        self._failure = sqlite3.Error
        self._lock_wait_s = metadata_file.LOCK_WAIT_S
        self._locked_at: float | None = None
        self._session = 1 + int.from_bytes(os.urandom(7))
        self._database, status = metadata_file.open_database(path, durable=durable)
        self._identity = _identity(status)

    @property
    def session(self) -> int:
        return self._session

    async def get(self, path: str) -> Node:
        async with self._lock:
            return await self._run(lambda: self._node(path))

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        def read() -> list[Node | None]:
            found: dict[str, Node] = {}
            for start in range(0, len(paths), _PATHS_AT_ONCE):
                chunk = paths[start : start + _PATHS_AT_ONCE]
                placeholders = ",".join("?" * len(chunk))
                for path, data, *stat in self._database.execute(
                    f"SELECT path, data, {_STAT} FROM node WHERE path IN ({placeholders})", chunk
                ):
                    found[path] = Node(data, Stat(*stat))
            return [found.get(path) for path in paths]

        async with self._lock:
            return await self._run(read)

    async def exists(self, path: str) -> Stat | None:
        def read() -> Stat | None:
            row = self._database.execute(_READ_STAT, (path,)).fetchone()
            return None if row is None else Stat._make(row)

        async with self._lock:
            return await self._run(read)

    async def children(self, path: str) -> list[str]:
        def read() -> list[str]:
            self._node(path)
            rows = self._database.execute("SELECT path FROM node WHERE parent = ? ORDER BY path", (path,))
            return [row[0].rpartition("/")[2] for row in rows]

        async with self._lock:
            return await self._run(read)

    async def multi(self, operations: Sequence[Operation]) -> list[Done]:
        (result,) = await self._write((operations,))
        if isinstance(result, StoreError):
            raise result
        return result

    async def multi_many(self, batches: Sequence[Sequence[Operation]]) -> list[list[Done] | StoreError]:
        try:
            return await self._write(batches)
        except StoreUnavailableError as error:
            return [error for _ in batches]

    async def close(self) -> None:
        async with self._lock:
            if self._lost_reason() is not None:
                _leave_open(self._database)
                return
            with suppress(self._failure):  # the disk has failed; the next start deletes the nodes
                self._database.execute("PRAGMA busy_timeout = 0")
                self._database.execute("DELETE FROM node WHERE ephemeral")
            with suppress(self._failure):
                self._database.close()

    async def _write(self, batches: Sequence[Sequence[Operation]]) -> list[list[Done] | StoreError]:
        async with self._lock:
            return await self._run(lambda: self._transact(batches))

    async def _run(self, work: Callable[[], T]) -> T:
        """Run `work` on the executor, if any. Raises StoreUnavailableError for errors of SQLite and the disk."""

        def run() -> T:
            lost_reason = self._lost_reason()
            if lost_reason is not None:
                raise StoreUnavailableError(str(self._path), lost_reason)
            try:
                self._limit_lock_wait()
                return work()
            except (OSError, self._failure) as error:
                failure = metadata_file.failure_of(self._path, error)
                if isinstance(failure, StoreLockedError):
                    self._locked_at = time.monotonic()
                raise failure from error

        if self._executor is None:
            return run()
        return await asyncio.get_running_loop().run_in_executor(self._executor, run)

    def _limit_lock_wait(self) -> None:
        """Shorten SQLite's lock timeout for LOCK_WAIT_S after a request that did not get the lock."""
        wait_s = metadata_file.LOCK_WAIT_S
        if self._locked_at is not None and time.monotonic() - self._locked_at < wait_s:
            wait_s = _NEXT_LOCK_WAIT_S
        if wait_s != self._lock_wait_s:
            self._database.execute(f"PRAGMA busy_timeout = {int(wait_s * 1000)}")
            self._lock_wait_s = wait_s

    def _lost_reason(self) -> str | None:
        """Return why a restart would lose new writes, unnoticed by SQLite; None if the file is still in place."""
        try:
            found = _identity(self._path.stat())
        except (FileNotFoundError, NotADirectoryError):
            return "the file was removed, or its directory renamed, while the broker was running: restart the broker"
        except OSError as error:
            return error.strerror or str(error)
        return None if found == self._identity else "the file was replaced under the running broker: restart the broker"

    def _transact(self, batches: Sequence[Sequence[Operation]]) -> list[list[Done] | StoreError]:
        """Apply each batch atomically, but all in one SQLite transaction, so that there is only one fsync."""
        execute = self._database.execute
        results: list[list[Done] | StoreError] = []
        execute("BEGIN IMMEDIATE")
        try:
            zxid: int = execute("SELECT zxid FROM last").fetchone()[0]
            for operations in batches:
                execute("SAVEPOINT batch")
                try:
                    results.append([self._apply(operation, zxid + 1) for operation in operations])
                    zxid += 1
                except StoreError as error:
                    execute("ROLLBACK TO batch")
                    results.append(error)
                execute("RELEASE batch")
            execute("UPDATE last SET zxid = ? WHERE zxid != ?", (zxid, zxid))
            execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:
                with suppress(self._failure):  # the first error says more
                    execute("ROLLBACK")
            raise
        self._locked_at = None
        return results

    def _apply(self, operation: Operation, zxid: int) -> Done:
        if isinstance(operation, Create):
            return self._create(operation, zxid)
        path = operation.path
        row = self._database.execute(_READ_STAT, (path,)).fetchone()
        if row is None:
            raise NoNodeError(path)
        version, czxid, _, ctime_ms, owner = row
        if operation.version not in (ANY_VERSION, version):
            raise BadVersionError(path)
        if isinstance(operation, Set):
            self._database.execute(
                "UPDATE node SET data = ?, version = ?, mzxid = ? WHERE path = ?",
                (operation.data, version + 1, zxid, path),
            )
            return Done(path, Stat(version + 1, czxid, zxid, ctime_ms, owner))
        if isinstance(operation, Delete):
            if self._database.execute("SELECT 1 FROM node WHERE parent = ? LIMIT 1", (path,)).fetchone():
                raise NotEmptyError(path)
            self._database.execute("DELETE FROM node WHERE path = ?", (path,))
        return Done(path)

    def _create(self, operation: Create, zxid: int) -> Done:
        path = operation.path
        parent = path.rpartition("/")[0] or "/"
        found = self._database.execute("SELECT ephemeral, next_child FROM node WHERE path = ?", (parent,)).fetchone()
        if found is None:
            raise NoNodeError(parent)
        if found[0]:
            raise StoreError(parent, "an ephemeral node cannot have children")
        if operation.sequential:
            path = f"{path}{found[1]:010}"
            self._database.execute("UPDATE node SET next_child = next_child + 1 WHERE path = ?", (parent,))
        owner = self._session if operation.ephemeral else 0
        done = self._database.execute(
            "INSERT OR IGNORE INTO node VALUES (?, ?, ?, 0, ?, ?, ?, ?, 0)",
            (path, parent, operation.data, owner, zxid, zxid, now_ms()),
        )
        if not done.rowcount:
            raise NodeExistsError(path)
        return Done(path)

    def _node(self, path: str) -> Node:
        row = self._database.execute(_READ, (path,)).fetchone()
        if row is None:
            raise NoNodeError(path)
        return Node(row[0], Stat._make(row[1:]))


def _leave_open(database: "sqlite3.Connection") -> None:
    """Never close this connection to a lost file, not even at the end of the process.

    On close, SQLite would delete the write-ahead log by its path, where another broker may have its own by now.
    """
    import ctypes

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(database))


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
