"""The file with the history of groups: SQLite, bounded in time and size. Its failures never stop the broker.

All methods block on the disk: call them in the history's own thread. A damaged file is renamed and replaced by an empty
one. A sample has a row for each group and topic that has changed since the last sample.
"""

import logging
import time
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from headrace.clock import now_ms
from headrace.monitoring.groups import pruning
from headrace.monitoring.groups.events import MAX_NAME, Event

if TYPE_CHECKING:
    import sqlite3

log = logging.getLogger(__name__)

T = TypeVar("T")

_VERSION: Final = 1
_PAGE_BYTES: Final = 4096
_ROW_BYTES: Final = 20
_MAX_LOCAL_BYTES: Final = 950
"""A longer row of a sample continues in pages of its own."""
_SLACK: Final = 64
"""Samples may be kept for 1/64 of the retention longer, because moving the states of idle groups costs writes."""
_VACUUM_PAGES: Final = 2000
_NOT_DAMAGED: Final = frozenset({3, 5, 6, 7, 8, 9, 10, 13, 14})
"""SQLite's codes of errors without damage: PERM, BUSY, LOCKED, NOMEM, READONLY, INTERRUPT, IOERR, FULL, CANTOPEN."""
_RAW, _DEFLATED = b"\x00", b"\x01"
_END: Final = _RAW
"""The row of a sample in which a series ends."""
_SCHEMA: Final = """
CREATE TABLE series (
    id INTEGER PRIMARY KEY AUTOINCREMENT, group_id TEXT NOT NULL, topic TEXT NOT NULL, seen_ms INTEGER NOT NULL,
    has_ended INTEGER NOT NULL DEFAULT 0, UNIQUE (group_id, topic)
);
CREATE TABLE tick (at_ms INTEGER PRIMARY KEY);
CREATE TABLE sample (
    at_ms INTEGER NOT NULL, series INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (at_ms, series)
) WITHOUT ROWID;
CREATE TABLE event (
    id INTEGER PRIMARY KEY, group_id TEXT NOT NULL, at_ms INTEGER NOT NULL, what TEXT NOT NULL,
    generation INTEGER NOT NULL, member_id TEXT NOT NULL, instance_id TEXT, client_id TEXT NOT NULL,
    client_host TEXT NOT NULL, reason TEXT NOT NULL
);
CREATE INDEX event_of_group ON event (group_id, id);
"""


class Change(NamedTuple):
    """A state of a group and topic that a sample has recorded; empty data means that it ended."""

    at_ms: int
    data: bytes


class _Fitting(NamedTuple):
    """Changes that fit into the file, compressed, the space that they need, and the series of the other changes."""

    rows: list[tuple[str, str, bytes]]
    size: int
    skipped: list[tuple[str, str]]


class HistoryStore:
    """The history in the file `path`, limited to `max_bytes` and `retention_ms`."""

    def __init__(self, path: Path, *, max_bytes: int, retention_ms: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._retention_ms = retention_ms
        self._connection: sqlite3.Connection | None = None
        self._ids: dict[tuple[str, str], int] = {}
        self._warned_at = 0.0
        self._is_stopping = False
        self.events_lost = 0
        self.resets = 0
        """Number of damaged files replaced."""

    # Writing

    def write_events(self, events: Iterable[Event]) -> bool:
        """Add events: the latest ones, if they do not fit into their share of the file. Others are counted as lost.

        Return False, and log the reason, if that fails.
        """
        wanted = list(events)
        rows, size = pruning.latest_events(wanted, self._max_bytes)
        self.events_lost += len(wanted) - len(rows)

        def insert(database: "sqlite3.Connection") -> None:
            columns = "group_id, at_ms, what, generation, member_id, instance_id, client_id, client_host, reason"
            database.executemany(f"INSERT INTO event ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)

        self._make_room(size)
        if self._write(insert):
            return True
        self.events_lost += len(rows)
        return False

    def write_sample(self, at_ms: int, changes: Iterable[tuple[str, str, bytes]]) -> list[tuple[str, str]]:
        """Add a sample: group, topic and data of all changes since the last one.

        Return the groups and topics to write again, and log the reason: those for which the file has no room, or all
        if writing fails.
        """
        wanted = [change for change in changes if len(change[0]) <= MAX_NAME]
        everything = [(group_id, topic) for group_id, topic, _ in wanted]
        fitting: list[_Fitting] = []
        if not self._write(lambda database: fitting.append(self._fitting(database, wanted))):
            return everything
        rows, size, skipped = fitting[-1]

        def insert(database: "sqlite3.Connection") -> None:
            database.execute("INSERT OR IGNORE INTO tick VALUES (?)", (at_ms,))
            for group_id, topic, data in rows:
                if data == _END:
                    series = self._end(database, group_id, topic)
                else:
                    series = self._series(database, group_id, topic, at_ms)
                if series is not None:
                    database.execute("INSERT OR REPLACE INTO sample VALUES (?, ?, ?)", (at_ms, series, data))

        # Pages are not always full.
        self._make_room(size * 5 // 4)
        return skipped if self._write(insert) else everything

    def touch(self, live: Iterable[tuple[str, str]], now_ms: int) -> list[tuple[str, str]]:
        """Record that these groups and topics still exist, so that `prune` keeps them. Return those not in the file."""
        rows = [(now_ms, *key) for key in live if len(key[0]) <= MAX_NAME]
        query = "UPDATE series SET seen_ms = ? WHERE group_id = ? AND topic = ?"
        self._write(lambda database: database.executemany(query, rows))
        known = set(self.series())
        return [key for _, *names in rows if (key := (names[0], names[1])) not in known]

    def prune(self, now_ms: int) -> None:
        """Delete expired data, and thin out old samples if the file is too large."""
        oldest = now_ms - self._retention_ms
        max_events = self._max_bytes // pruning.SHARE // pruning.EVENT_BYTES

        def expire(database: "sqlite3.Connection") -> None:
            if pruning.expire(database, oldest, max_events, self._retention_ms // _SLACK):
                self._ids.clear()

        self._write(expire)
        self._make_room(0)
        self._write(lambda database: database.execute(f"PRAGMA incremental_vacuum({_VACUUM_PAGES})").fetchall())

    def stop(self) -> None:
        """End pruning early. Call it from any thread."""
        self._is_stopping = True

    def interrupt(self) -> None:
        """Make the current statement fail. Call it from any thread."""
        import sqlite3

        connection = self._connection  # the thread may reset it
        if connection is not None:
            with suppress(sqlite3.ProgrammingError):  # it is being closed
                connection.interrupt()

    def _make_room(self, size: int) -> None:
        """Free space if the file is too large, or has no room for `size` more bytes."""
        target = self._max_bytes * 8 // 10 - size
        if self._used() <= (self._max_bytes - size if size else target):
            return
        for free in pruning.ways_to_free(self._max_bytes):
            while self._used() > target and not self._is_stopping and self._frees(free):
                pass
        self._ids.clear()

    def _frees(self, free: "Callable[[sqlite3.Connection], bool]") -> bool:
        freed: list[bool] = []
        return self._write(lambda database: freed.append(free(database))) and freed[-1]

    def _fitting(self, database: "sqlite3.Connection", changes: Iterable[tuple[str, str, bytes]]) -> _Fitting:
        """Compress the changes for which the file has room. Log the number of others."""
        share = self._max_bytes // pruning.SHARE
        rows: list[tuple[str, str, bytes]] = []
        skipped: list[tuple[str, str]] = []
        size = new = names = 0
        may_drop = True
        for group_id, topic, data in changes:
            new_names = 0
            if self._id(database, group_id, topic) is None:
                if not data:
                    continue
                names = names or pruning.size_of_series(database)
                new_names = pruning.series_size(group_id, topic)
                if names + new_names > share and may_drop:
                    may_drop = False
                    pruning.drop_ended(database)
                    names = pruning.size_of_series(database) + new
                if names + new_names > share:
                    skipped.append((group_id, topic))
                    continue
            packed = _packed(data)
            needed = _space(packed)
            if size + needed > share:
                skipped.append((group_id, topic))
                continue
            names += new_names
            size += needed
            rows.append((group_id, topic, packed))
            new += new_names
        if skipped:
            advice = "increase headrace.group.history.max.bytes"
            self._warn("The history of groups in %s has no room for %s states: %s", self._path, len(skipped), advice)
        return _Fitting(rows, size + new, skipped)

    # Reading

    def events(self, group_id: str, from_ms: int, to_ms: int, limit: int) -> list[Event]:
        """Return the group's latest `limit` events between the two times, oldest first."""

        def select(database: "sqlite3.Connection") -> list[Event]:
            columns = ", ".join(Event._fields)
            rows = database.execute(
                f"SELECT {columns} FROM event WHERE group_id = ? AND at_ms BETWEEN ? AND ? ORDER BY id DESC LIMIT ?",
                (group_id, from_ms, to_ms, limit),
            ).fetchall()
            return [Event(*row) for row in reversed(rows)]

        return self._run(select, [])

    def series(self) -> list[tuple[str, str]]:
        """Return all pairs of group and topic that were sampled and have neither ended nor expired."""
        query = "SELECT group_id, topic FROM series WHERE NOT has_ended"
        return self._run(lambda database: database.execute(query).fetchall(), [])

    def topics_of(self, group_id: str) -> list[str]:
        """Return the topics of which the history may have samples of the group."""

        def select(database: "sqlite3.Connection") -> list[str]:
            rows = database.execute("SELECT topic FROM series WHERE group_id = ? ORDER BY topic", (group_id,))
            return [row[0] for row in rows]

        return self._run(select, [])

    def ticks(self, from_ms: int, to_ms: int, most: int) -> list[int]:
        """Return the times of at most `most` evenly spaced samples between the two times, including the last one."""

        def select(database: "sqlite3.Connection") -> list[int]:
            range_ = "FROM tick WHERE at_ms BETWEEN ? AND ?"
            (count,) = database.execute(f"SELECT count(*) {range_}", (from_ms, to_ms)).fetchone()
            step = max(-(-count // most), 1)
            rows = database.execute(
                f"SELECT at_ms FROM (SELECT at_ms, row_number() OVER (ORDER BY at_ms DESC) AS place {range_})"
                " WHERE (place - 1) % ? = 0 ORDER BY at_ms",
                (from_ms, to_ms, step),
            )
            return [row[0] for row in rows]

        return self._run(select, [])

    def last_change(self, group_id: str, topic: str, after_ms: int, to_ms: int) -> Change | None:
        """Return the last change later than `after_ms` and not later than `to_ms`."""
        return self._change(group_id, topic, (after_ms + 1, to_ms), "DESC")

    def first_change(self, group_id: str, topic: str, from_ms: int, to_ms: int) -> Change | None:
        """Return the first change between the two times."""
        return self._change(group_id, topic, (from_ms, to_ms), "ASC")

    def _change(self, group_id: str, topic: str, between: tuple[int, int], order: str) -> Change | None:
        def select(database: "sqlite3.Connection") -> Change | None:
            # Samples are ordered by time, so that writing and expiring touch few pages. Reading takes a probe per tick.
            row = database.execute(
                "SELECT tick.at_ms, sample.data FROM tick CROSS JOIN sample"
                " ON sample.at_ms = tick.at_ms AND sample.series = ?"
                f" WHERE tick.at_ms BETWEEN ? AND ? ORDER BY tick.at_ms {order} LIMIT 1",
                (self._id(database, group_id, topic), *between),
            ).fetchone()
            return None if row is None else Change(row[0], _unpacked(row[1]))

        return self._run(select, None)

    def size(self) -> int:
        return self._used()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # The file

    def _database(self) -> "sqlite3.Connection":
        if self._connection is None:
            import sqlite3

            self._ids.clear()
            connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
            try:
                self._prepare(connection)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _prepare(self, database: "sqlite3.Connection") -> None:
        import sqlite3

        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version not in (0, _VERSION):
            raise sqlite3.DatabaseError(f"its format is {version}, expected {_VERSION}")
        database.execute("PRAGMA auto_vacuum = INCREMENTAL")
        database.execute("PRAGMA journal_mode = WAL")
        # A power failure may lose the last seconds, but the file remains consistent.
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute(f"PRAGMA journal_size_limit = {1024 * _PAGE_BYTES}")
        database.execute("PRAGMA cache_size = -1024")
        if version == 0:
            database.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {_VERSION}; COMMIT;")
        elif "has_ended" not in {column[1] for column in database.execute("PRAGMA table_info(series)")}:
            # Earlier versions, which can also use a file with this column, recorded groups with too long ids. Their
            # states would no longer change.
            database.executescript(
                "BEGIN; ALTER TABLE series ADD COLUMN has_ended INTEGER NOT NULL DEFAULT 0;"
                f" DELETE FROM series WHERE length(group_id) > {MAX_NAME}; COMMIT;"
            )
        database.execute(f"PRAGMA max_page_count = {self._max_bytes // _PAGE_BYTES}")

    def _id(self, database: "sqlite3.Connection", group_id: str, topic: str) -> int | None:
        found = self._ids.get((group_id, topic))
        if found is None:
            query = "SELECT id FROM series WHERE group_id = ? AND topic = ?"
            (found,) = database.execute(query, (group_id, topic)).fetchone() or (None,)
        return found

    def _series(self, database: "sqlite3.Connection", group_id: str, topic: str, now_ms: int) -> int:
        found = self._ids.get((group_id, topic))
        if found is None:
            database.execute(
                "INSERT INTO series (group_id, topic, seen_ms) VALUES (?, ?, ?)"
                " ON CONFLICT DO UPDATE SET seen_ms = excluded.seen_ms, has_ended = 0",
                (group_id, topic, now_ms),
            )
            found = self._id(database, group_id, topic)
            assert found is not None
            self._ids[group_id, topic] = found
        return found

    def _end(self, database: "sqlite3.Connection", group_id: str, topic: str) -> int | None:
        """Mark a series as ended. Leaves the time when it was last seen, so that it expires."""
        found = self._id(database, group_id, topic)
        self._ids.pop((group_id, topic), None)
        database.execute("UPDATE series SET has_ended = 1 WHERE id = ?", (found,))
        return found

    def _used(self) -> int:
        def count(database: "sqlite3.Connection") -> int:
            (pages,) = database.execute("PRAGMA page_count").fetchone()
            (free,) = database.execute("PRAGMA freelist_count").fetchone()
            return int(pages - free) * _PAGE_BYTES

        return self._run(count, 0)

    # Failures

    def _write(self, work: "Callable[[sqlite3.Connection], object]") -> bool:
        """Run `work` in a transaction. Return False, and log the reason, if that fails."""

        def transact(database: "sqlite3.Connection") -> bool:
            database.execute("BEGIN IMMEDIATE")
            try:
                work(database)
                database.execute("COMMIT")
            except BaseException:
                self._ids.clear()
                if database.in_transaction:
                    database.execute("ROLLBACK")
                raise
            return True

        resets = self.resets
        # If the file was damaged, write to the new one.
        return self._run(transact, False) or (self.resets > resets and self._run(transact, False))

    def _run(self, work: "Callable[[sqlite3.Connection], T]", otherwise: T) -> T:
        import sqlite3

        try:
            return work(self._database())
        except sqlite3.Error as error:
            # The low byte is the primary error code.
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in _NOT_DAMAGED:
                self._warn("Cannot read or write the history of groups in %s: %s", self._path, error)
            else:
                self._set_aside(error)
        except (zlib.error, UnicodeDecodeError) as error:
            self._set_aside(error)
        return otherwise

    def _set_aside(self, error: Exception) -> None:
        self.close()
        aside = self._path.with_name(f"{self._path.name}.damaged-{now_ms() // 1000}")
        log.error(
            "The history of groups in %s is damaged (%s): renaming it to %s and starting a new one",
            self._path,
            error,
            aside,
        )
        self.resets += 1
        try:
            self._path.rename(aside)
            for suffix in ("-wal", "-shm"):
                self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
        except OSError as failure:
            self._warn("Cannot rename the damaged history of groups in %s: %s", self._path, failure)

    def _warn(self, message: str, *details: object) -> None:
        """Log a warning, at most once a minute."""
        if time.monotonic() - self._warned_at > 60 or not self._warned_at:
            self._warned_at = time.monotonic()
            log.warning(message, *details)


def _packed(data: bytes) -> bytes:
    deflated = zlib.compress(data, 1)
    return _DEFLATED + deflated if len(deflated) < len(data) else _RAW + data


def _space(packed: bytes) -> int:
    """Return the space that a row of a sample needs, at most."""
    more = -(-len(packed) // _PAGE_BYTES) * _PAGE_BYTES if len(packed) > _MAX_LOCAL_BYTES else 0
    return min(len(packed), _MAX_LOCAL_BYTES) + _ROW_BYTES + more


def _unpacked(data: bytes) -> bytes:
    return zlib.decompress(data[1:]) if data[:1] == _DEFLATED else data[1:]
