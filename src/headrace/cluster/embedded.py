"""The embedded metadata store: one SQLite file, one process, no other service.

A write is on disk before it returns. Slow fsyncs run on the executor, where there is one, off the event loop.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from headrace.cluster import znodes
from headrace.cluster.store import (
    ANY_VERSION,
    CHANGED,
    CHILDREN,
    CREATED,
    DELETED,
    BadVersion,
    Create,
    Delete,
    Event,
    Node,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    SessionListener,
    Set,
    StoreUnavailable,
    Watcher,
)

if TYPE_CHECKING:
    import sqlite3

T = TypeVar("T")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS node (
    path TEXT PRIMARY KEY, parent TEXT NOT NULL, data BLOB NOT NULL, version INTEGER NOT NULL,
    ephemeral INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS child ON node (parent);
INSERT OR IGNORE INTO node VALUES ('/', '', x'', 0, 0);
DELETE FROM node WHERE ephemeral;
"""


def founded_cluster(path: Path) -> str | None:
    """The id of the cluster whose store is in the file `path`; None where there is none yet.

    Raises StoreUnavailable for a file that is no store.
    """
    if not path.is_file():
        return None
    import sqlite3

    try:
        with closing(sqlite3.connect(path)) as database:
            row = database.execute("SELECT data FROM node WHERE path = ?", (znodes.CLUSTER_ID,)).fetchone()
    except sqlite3.OperationalError:
        return None  # without the table: nothing was founded in it
    except sqlite3.Error as error:
        raise StoreUnavailable(str(path), str(error)) from error
    return None if row is None else znodes.decode_cluster_id(row[0])


def read_tree(path: Path) -> dict[str, bytes]:
    """Every node, by its path, of the store in the file `path`, whose broker does not run. Raises StoreUnavailable."""
    import sqlite3

    try:
        with closing(sqlite3.connect(path)) as database:
            rows = database.execute("SELECT path, data FROM node WHERE NOT ephemeral AND path != '/'").fetchall()
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.Error as error:
        raise StoreUnavailable(str(path), str(error)) from error
    return dict(rows)


class EmbeddedStore:
    """A metadata store in the file `path`. One process may have it open; ephemeral nodes of a dead one are dropped.

    `durable=False` leaves fsync out, for tests. Raises StoreUnavailable for a file that cannot be used.
    """

    def __init__(self, path: Path, *, executor: Executor | None = None, durable: bool = True) -> None:
        import sqlite3  # loaded only by a broker that uses this store

        self._executor = executor
        self._lock = asyncio.Lock()
        self._data_watchers: dict[str, list[Watcher]] = {}
        self._child_watchers: dict[str, list[Watcher]] = {}
        self._failure = sqlite3.Error
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # settings in it may be secret
            self._database: sqlite3.Connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute(f"PRAGMA synchronous = {'FULL' if durable else 'OFF'}")
            self._database.execute("PRAGMA cache_size = -256")
            self._database.executescript(f"BEGIN; {_SCHEMA} COMMIT;")
        except (OSError, sqlite3.Error) as error:
            raise StoreUnavailable(str(path), str(error)) from error

    async def get(self, path: str, watcher: Watcher | None = None) -> Node:
        async with self._lock:
            node = self._node(path)
            if watcher is not None:
                self._data_watchers.setdefault(path, []).append(watcher)
            return node

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        async with self._lock:
            rows = (
                self._database.execute("SELECT data, version FROM node WHERE path = ?", (path,)).fetchone()
                for path in paths
            )
            return [None if row is None else Node(row[0], row[1]) for row in rows]

    async def exists(self, path: str, watcher: Watcher | None = None) -> int | None:
        async with self._lock:
            if watcher is not None:
                self._data_watchers.setdefault(path, []).append(watcher)
            row = self._database.execute("SELECT version FROM node WHERE path = ?", (path,)).fetchone()
            return row[0] if row else None

    async def children(self, path: str, watcher: Watcher | None = None) -> list[str]:
        async with self._lock:
            self._node(path)
            if watcher is not None:
                self._child_watchers.setdefault(path, []).append(watcher)
            rows = self._database.execute("SELECT path FROM node WHERE parent = ? ORDER BY path", (path,))
            return [row[0].rpartition("/")[2] for row in rows]

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False) -> None:
        await self.multi((Create(path, data, ephemeral),))

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        return (await self._write((Set(path, data, version),)))[path]

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self.multi((Delete(path, version),))

    async def multi(self, operations: Sequence[Operation]) -> None:
        await self._write(operations)

    def add_session_listener(self, listener: SessionListener) -> None:
        """Nothing to tell: the session lasts as long as the process."""

    async def close(self) -> None:
        async with self._lock:
            with suppress(self._failure):  # of a disk that has failed; the next start drops them too
                self._database.execute("DELETE FROM node WHERE ephemeral")
            self._database.close()

    async def _write(self, operations: Sequence[Operation]) -> dict[str, int]:
        """Apply all in one transaction; versions of the nodes that were set. Then tell the watchers."""
        async with self._lock:
            versions = await self._run(lambda: self._transact(operations))
        if self._data_watchers or self._child_watchers:
            for operation in operations:
                self._tell(operation)
        return versions

    async def _run(self, work: Callable[[], T]) -> T:
        if self._executor is None:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def _transact(self, operations: Sequence[Operation]) -> dict[str, int]:
        versions: dict[str, int] = {}
        self._database.execute("BEGIN IMMEDIATE")
        try:
            for operation in operations:
                self._apply(operation, versions)
            self._database.execute("COMMIT")
        except BaseException as error:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            if isinstance(error, self._failure):
                raise StoreUnavailable(operations[0].path, str(error)) from error
            raise
        return versions

    def _apply(self, operation: Operation, versions: dict[str, int]) -> None:
        path = operation.path
        if isinstance(operation, Create):
            parent = path.rpartition("/")[0] or "/"
            self._node(parent)
            done = self._database.execute(
                "INSERT OR IGNORE INTO node VALUES (?, ?, ?, 0, ?)", (path, parent, operation.data, operation.ephemeral)
            )
            if not done.rowcount:
                raise NodeExists(path)
            return
        if isinstance(operation, Set) and operation.version != ANY_VERSION:
            done = self._database.execute(
                "UPDATE node SET data = ?, version = version + 1 WHERE path = ? AND version = ?",
                (operation.data, path, operation.version),
            )
            if done.rowcount:
                versions[path] = operation.version + 1
                return
        version = self._node(path).version
        if operation.version not in (ANY_VERSION, version):
            raise BadVersion(path)
        if isinstance(operation, Set):
            self._database.execute(
                "UPDATE node SET data = ?, version = version + 1 WHERE path = ?", (operation.data, path)
            )
            versions[path] = version + 1
        else:
            if self._database.execute("SELECT 1 FROM node WHERE parent = ? LIMIT 1", (path,)).fetchone():
                raise NotEmpty(path)
            self._database.execute("DELETE FROM node WHERE path = ?", (path,))

    def _node(self, path: str) -> Node:
        row = self._database.execute("SELECT data, version FROM node WHERE path = ?", (path,)).fetchone()
        if row is None:
            raise NoNode(path)
        return Node(row[0], row[1])

    def _tell(self, operation: Operation) -> None:
        path = operation.path
        kind = CREATED if isinstance(operation, Create) else CHANGED if isinstance(operation, Set) else DELETED
        for watcher in self._data_watchers.pop(path, ()):
            watcher(Event(kind, path))
        if kind is not CHANGED:
            parent = path.rpartition("/")[0] or "/"
            for watcher in self._child_watchers.pop(parent, ()):
                watcher(Event(CHILDREN, parent))
        if kind is DELETED:
            for watcher in self._child_watchers.pop(path, ()):
                watcher(Event(DELETED, path))
