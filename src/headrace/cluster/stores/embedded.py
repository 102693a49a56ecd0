"""The embedded metadata store: one SQLite file, one process, no other service.

A write is on disk before it returns. All that may wait, for the disk or for another process's lock, runs on the
executor, where there is one, off the event loop. A failure of SQLite or of the file is a StoreError, whatever it is.
"""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from headrace.cluster import znodes
from headrace.cluster.loading import decoded
from headrace.cluster.store import (
    ANY_VERSION,
    CHANGED,
    CHILDREN,
    CREATED,
    DELETED,
    BadVersionError,
    Create,
    Delete,
    Event,
    Node,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Operation,
    SessionListener,
    Set,
    StoreLockedError,
    StoreUnavailableError,
    Watcher,
)

if TYPE_CHECKING:
    import sqlite3
    from uuid import UUID

T = TypeVar("T")

LOCK_WAIT_S: Final = 3.0
"""How long a request waits for another process that has the file locked: a backup takes less, and clients wait more."""
_NEXT_LOCK_WAIT_S: Final = 0.1
"""The same for requests that come, or waited their turn, while the lock has just outlasted a whole LOCK_WAIT_S."""
_LOCKED: Final = frozenset({5, 6})
"""SQLite's codes for a lock: SQLITE_BUSY, SQLITE_LOCKED."""
_REASONS: Final = {
    3: "this user may not use the file: let the broker run as its owner, or use chown",
    8: "the file, or its file system, is read-only: make it writable",
    10: "the disk fails: see the system's log",
    11: "the file is damaged: stop the broker and restore it from a backup",
    13: "the disk is full: free space",
    14: "the file cannot be opened: see the rights and the limit of open files",
    26: "this is no SQLite file: stop the broker and restore it from a backup",
}
"""What SQLite's codes mean to who has to act."""

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

    Raises StoreUnavailableError for a file that is no store, or that cannot be read.
    """
    import sqlite3

    try:
        if not path.exists():
            return None
    except OSError:
        return None  # whoever locks the directory says what is wrong with it
    try:
        with closing(sqlite3.connect(path, timeout=LOCK_WAIT_S)) as database:
            tables = database.execute("SELECT 1 FROM sqlite_master WHERE name = 'node'").fetchone()
            if tables is None:
                return None  # nothing was founded in it
            row = database.execute("SELECT data FROM node WHERE path = ?", (znodes.CLUSTER_ID,)).fetchone()
        return None if row is None else znodes.decode_cluster_id(row[0])
    except (OSError, sqlite3.Error, LookupError, TypeError, ValueError) as error:
        raise failure_of(path, error) from error


def read_tree(path: Path) -> dict[str, bytes]:
    """Every node, by its path, of the store in the file `path`, whose broker does not run.

    Raises StoreUnavailableError.
    """
    import sqlite3

    try:
        with closing(sqlite3.connect(path, timeout=LOCK_WAIT_S)) as database:
            rows = database.execute("SELECT path, data FROM node WHERE NOT ephemeral AND path != '/'").fetchall()
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.Error as error:
        raise failure_of(path, error) from error
    return dict(rows)


def topic_ids(path: Path) -> "dict[str, UUID]":
    """The ids of the topics in the store in the file `path`, by name, as of the last change; a broker may have it open.

    Raises StoreError; OSError.
    """
    import shutil
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="headrace-") as directory:
        copy = Path(directory, path.name)  # for SQLite changes a file that it only reads
        for suffix in ("", "-wal"):
            with suppress(FileNotFoundError):
                shutil.copyfile(f"{path}{suffix}", f"{copy}{suffix}")
        try:
            tree = read_tree(copy)
        except StoreUnavailableError as error:
            raise StoreUnavailableError(str(path), str(error.__cause__)) from error
    return {
        path.rpartition("/")[2]: topic_id
        for path, data in tree.items()
        if path.rpartition("/")[0] == znodes.TOPICS and (topic_id := decoded(path, znodes.decode_topic, data)[0])
    }


def failure_of(path: Path, error: Exception) -> StoreUnavailableError:
    """The error of a store in the file `path` that failed with `error`: what is wrong, and what to do about it."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the upper bytes say more than anybody can act on
    if code in _LOCKED:
        return StoreLockedError(str(path), "end that process, or wait until it has done its work")
    if isinstance(error, OSError):
        return StoreUnavailableError(str(path), error.strerror or str(error))
    reason = _REASONS.get(code)
    return StoreUnavailableError(str(path), f"{error}; {reason}" if reason else str(error))


class EmbeddedStore:
    """A metadata store in the file `path`. One process may have it open; ephemeral nodes of a dead one are dropped.

    `durable=False` leaves fsync out, for tests. Raises StoreUnavailableError for a file that cannot be used.
    """

    def __init__(self, path: Path, *, executor: Executor | None = None, durable: bool = True) -> None:
        import sqlite3  # loaded only by a broker that uses this store

        self._path = path
        self._executor = executor
        self._lock = asyncio.Lock()
        self._data_watchers: dict[str, list[Watcher]] = {}
        self._child_watchers: dict[str, list[Watcher]] = {}
        self._failure = sqlite3.Error
        self._lock_wait_s = LOCK_WAIT_S
        self._locked_at: float | None = None
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)  # settings in it may be secret
            self._identity = _identity(os.fstat(descriptor))
            os.close(descriptor)
            self._database: sqlite3.Connection = sqlite3.connect(
                path, timeout=LOCK_WAIT_S, isolation_level=None, check_same_thread=False
            )
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute(f"PRAGMA synchronous = {'FULL' if durable else 'OFF'}")
            self._database.execute("PRAGMA cache_size = -256")
            self._database.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
        except (OSError, sqlite3.Error) as error:
            raise failure_of(path, error) from error

    async def get(self, path: str, watcher: Watcher | None = None) -> Node:
        async with self._lock:
            node = await self._run(lambda: self._node(path))
            if watcher is not None:
                self._data_watchers.setdefault(path, []).append(watcher)
            return node

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        def read() -> list[Node | None]:
            rows = (
                self._database.execute("SELECT data, version FROM node WHERE path = ?", (path,)).fetchone()
                for path in paths
            )
            return [None if row is None else Node(row[0], row[1]) for row in rows]

        async with self._lock:
            return await self._run(read)

    async def exists(self, path: str, watcher: Watcher | None = None) -> int | None:
        def read() -> int | None:
            row = self._database.execute("SELECT version FROM node WHERE path = ?", (path,)).fetchone()
            return row[0] if row else None

        async with self._lock:
            if watcher is not None:
                self._data_watchers.setdefault(path, []).append(watcher)
            return await self._run(read)

    async def children(self, path: str, watcher: Watcher | None = None) -> list[str]:
        def read() -> list[str]:
            self._node(path)
            rows = self._database.execute("SELECT path FROM node WHERE parent = ? ORDER BY path", (path,))
            return [row[0].rpartition("/")[2] for row in rows]

        async with self._lock:
            names = await self._run(read)
            if watcher is not None:
                self._child_watchers.setdefault(path, []).append(watcher)
            return names

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
            if self._why_gone() is not None:
                _leave_open(self._database)
                return
            with suppress(self._failure):  # of a disk that has failed; the next start drops them too
                self._database.execute("PRAGMA busy_timeout = 0")
                self._database.execute("DELETE FROM node WHERE ephemeral")
            with suppress(self._failure):
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
        """Do `work` where it may wait. Raises StoreUnavailableError for whatever SQLite or the disk has against it."""

        def run() -> T:
            why_gone = self._why_gone()
            if why_gone is not None:
                raise StoreUnavailableError(str(self._path), why_gone)
            try:
                self._limit_lock_wait()
                return work()
            except (OSError, self._failure) as error:
                failure = failure_of(self._path, error)
                if isinstance(failure, StoreLockedError):
                    self._locked_at = time.monotonic()
                raise failure from error

        if self._executor is None:
            return run()
        return await asyncio.get_running_loop().run_in_executor(self._executor, run)

    def _limit_lock_wait(self) -> None:
        """Let SQLite wait for a lock, but not each request in turn for one that has just proved to last."""
        lasts = self._locked_at is not None and time.monotonic() - self._locked_at < LOCK_WAIT_S
        wait_s = _NEXT_LOCK_WAIT_S if lasts else LOCK_WAIT_S
        if wait_s != self._lock_wait_s:
            self._database.execute(f"PRAGMA busy_timeout = {int(wait_s * 1000)}")
            self._lock_wait_s = wait_s

    def _why_gone(self) -> str | None:
        """Why what is written now would not be found again, which SQLite does not notice; None where it would be."""
        try:
            found = _identity(self._path.stat())
        except (FileNotFoundError, NotADirectoryError):
            return "the file was removed, or its directory was renamed, while the broker runs: restart it"
        except OSError as error:
            return error.strerror or str(error)
        return None if found == self._identity else "the file was replaced while the broker runs: restart it"

    def _transact(self, operations: Sequence[Operation]) -> dict[str, int]:
        versions: dict[str, int] = {}
        self._database.execute("BEGIN IMMEDIATE")
        try:
            for operation in operations:
                self._apply(operation, versions)
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:
                with suppress(self._failure):  # what went wrong before says more
                    self._database.execute("ROLLBACK")
            raise
        self._locked_at = None
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
                raise NodeExistsError(path)
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
            raise BadVersionError(path)
        if isinstance(operation, Set):
            self._database.execute(
                "UPDATE node SET data = ?, version = version + 1 WHERE path = ?", (operation.data, path)
            )
            versions[path] = version + 1
        else:
            if self._database.execute("SELECT 1 FROM node WHERE parent = ? LIMIT 1", (path,)).fetchone():
                raise NotEmptyError(path)
            self._database.execute("DELETE FROM node WHERE path = ?", (path,))

    def _node(self, path: str) -> Node:
        row = self._database.execute("SELECT data, version FROM node WHERE path = ?", (path,)).fetchone()
        if row is None:
            raise NoNodeError(path)
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


def _leave_open(database: "sqlite3.Connection") -> None:
    """Keep a connection to a file that is gone until the process ends, and from being closed then.

    SQLite ends with deleting the write-ahead log by its name, which may be another broker's by now.
    """
    import ctypes

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(database))


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
