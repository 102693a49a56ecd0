"""The file of the embedded store: its layout, its failures, and reading it without a broker."""

import os
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.cluster import znodes
from headrace.cluster.loading import decoded
from headrace.cluster.store import StoreLockedError, StoreUnavailableError

if TYPE_CHECKING:
    import sqlite3
    from uuid import UUID

LOCK_WAIT_S: Final = 3.0
"""Maximum wait for another process's lock: longer than a backup takes, shorter than clients wait."""
_LOCKED: Final = frozenset({5, 6})
"""SQLITE_BUSY, SQLITE_LOCKED."""
_REASONS: Final = {
    3: "this user has no access to the file: run the broker as its owner, or change the owner with chown",
    8: "the file or its file system is read-only: make it writable",
    10: "the disk failed: see the system log",
    11: "the file is damaged: stop the broker and restore it from a backup",
    13: "the disk is full: make room on it",
    14: "the file cannot be opened: check its permissions and the limit on open files",
    26: "this is not an SQLite file: stop the broker and restore it from a backup",
}
"""The cause and the remedy, by SQLite's error code."""

_LAYOUT: Final = 1
"""The current layout, stored as the file's `user_version`. The previous layout had no number and no zxids."""
_HISTORY: Final = ("czxid", "mzxid", "ctime_ms", "next_child")
_CREATE: Final = f"""
CREATE TABLE node (
    path TEXT PRIMARY KEY, parent TEXT NOT NULL, data BLOB NOT NULL, version INTEGER NOT NULL,
    ephemeral INTEGER NOT NULL, {", ".join(f"{column} INTEGER NOT NULL DEFAULT 0" for column in _HISTORY)}
) WITHOUT ROWID;
CREATE INDEX child ON node (parent);
INSERT INTO node (path, parent, data, version, ephemeral) VALUES ('/', '', x'', 0, 0);
"""
"""`ephemeral` is the owning session, `next_child` the number of the next sequential child."""
_ADD_HISTORY: Final = "".join(
    f"ALTER TABLE node ADD COLUMN {column} INTEGER NOT NULL DEFAULT 0;" for column in _HISTORY
)
_ADD_COUNTER: Final = f"""
CREATE TABLE last (zxid INTEGER NOT NULL);
INSERT INTO last VALUES (0);
PRAGMA user_version = {_LAYOUT};
"""


def open_database(path: Path, *, durable: bool) -> tuple["sqlite3.Connection", os.stat_result]:
    """Open the database; create or migrate it if necessary. Delete ephemeral nodes that an earlier process left.

    Returns the connection and the file's status. Raises StoreUnavailableError.
    """
    import sqlite3  # loaded only by a broker that uses this store

    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)  # it may contain passwords
        status = os.fstat(descriptor)
        os.close(descriptor)
        database = sqlite3.connect(path, timeout=LOCK_WAIT_S, isolation_level=None, check_same_thread=False)
        try:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute(f"PRAGMA synchronous = {'FULL' if durable else 'OFF'}")
            database.execute("PRAGMA cache_size = -256")
            database.execute("BEGIN IMMEDIATE")
            _migrate(path, database)
            database.execute("DELETE FROM node WHERE ephemeral")
            database.execute("COMMIT")
        except BaseException:
            database.close()
            raise
    except (OSError, sqlite3.Error) as error:
        raise failure_of(path, error) from error
    return database, status


def _migrate(path: Path, database: "sqlite3.Connection") -> None:
    layout = database.execute("PRAGMA user_version").fetchone()[0]
    if layout == _LAYOUT:
        return
    if layout != 0:
        raise StoreUnavailableError(str(path), "a newer version of Headrace wrote the file: start that version")
    is_old = database.execute("SELECT 1 FROM sqlite_master WHERE name = 'node'").fetchone() is not None
    for statement in ((_ADD_HISTORY if is_old else _CREATE) + _ADD_COUNTER).split(";"):
        database.execute(statement)  # executescript would commit first


def founded_cluster(path: Path) -> str | None:
    """Return the id of the cluster whose store is in the file `path`; None if the file or the id does not exist.

    Raises StoreUnavailableError if the file cannot be read, is not an SQLite database, or has a malformed id.
    """
    import sqlite3

    try:
        if not path.exists():
            return None
    except OSError:
        return None  # locking the directory will report it
    try:
        with closing(sqlite3.connect(path, timeout=LOCK_WAIT_S)) as database:
            tables = database.execute("SELECT 1 FROM sqlite_master WHERE name = 'node'").fetchone()
            if tables is None:
                return None
            row = database.execute("SELECT data FROM node WHERE path = ?", (znodes.CLUSTER_ID,)).fetchone()
        return None if row is None else znodes.decode_cluster_id(row[0])
    except (OSError, sqlite3.Error, LookupError, TypeError, ValueError) as error:
        raise failure_of(path, error) from error


def read_tree(path: Path) -> dict[str, bytes]:
    """Return the data of all nodes by path, except ephemeral ones. The broker must not be running.

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
    """Return the current topic ids by topic name. A broker may have the file open.

    Raises StoreError and OSError.
    """
    import shutil
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="headrace-") as directory:
        copy = Path(directory, path.name)  # SQLite may change even a file that it only reads
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
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # without the details of extended codes
    if code in _LOCKED:
        return StoreLockedError(str(path), "wait for that process, or end it")
    if isinstance(error, OSError):
        return StoreUnavailableError(str(path), error.strerror or str(error))
    reason = _REASONS.get(code)
    return StoreUnavailableError(str(path), f"{error}; {reason}" if reason else str(error))
