"""Keep the file of the history within its limits: delete expired data, and free space. Block on the disk.

All functions run in a transaction of the caller. Every function that frees space deletes at least one row, or returns
False, so that repeating it ends.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from headrace.monitoring.groups.events import Event

if TYPE_CHECKING:
    import sqlite3

SHARE: Final = 4
"""Events, series (their names) and a single sample may each use 1/4 of the space."""
EVENT_BYTES: Final = 400
"""Generous estimate of the size of an event."""
_NO_ID: Final = 2**62
_MERGES_PER_STEP: Final = 200
_LIMIT: Final = "LIMIT (SELECT count(*) / 8 + 1 FROM series)"
"""One step deletes 1/8 of the series."""
_SERIES_BYTES: Final = 60
_EVENT_OVERHEAD: Final = 60


def series_size(group_id: str, topic: str) -> int:
    """Return a generous estimate of the space for a series: its table and its index contain both names."""
    return 2 * (len(group_id.encode()) + len(topic.encode())) + _SERIES_BYTES


def size_of_series(database: "sqlite3.Connection") -> int:
    """Return the estimated space that all series use."""
    size = f"2 * ({_bytes('group_id')} + {_bytes('topic')}) + {_SERIES_BYTES}"
    return int(database.execute(f"SELECT total({size}) FROM series").fetchone()[0])


def latest_events(events: Sequence[Event], max_bytes: int) -> tuple[Sequence[Event], int]:
    """Return the latest events that fit into their share of the file, and a generous estimate of their size."""
    size = 0
    for place in range(len(events) - 1, -1, -1):
        event = events[place]
        texts = (event.group_id, *(value for value in event if isinstance(value, str)))
        # Pages with long events are not full.
        more = 2 * (sum(len(text.encode()) for text in texts) + _EVENT_OVERHEAD)
        if size + more > max_bytes // SHARE:
            return events[place + 1 :], size
        size += more
    return events, size


def expire(database: "sqlite3.Connection", oldest: int, max_events: int, slack_ms: int = 0) -> bool:
    """Delete data older than `oldest`, and the oldest of too many events. Return True if series were deleted.

    Samples are deleted once the oldest of them is older by `slack_ms`.
    """
    (first_tick,) = database.execute("SELECT min(at_ms) FROM tick").fetchone()
    if first_tick is not None and first_tick < oldest - slack_ms:
        _expire_samples(database, oldest)
    first = database.execute("SELECT id FROM event WHERE at_ms >= ? ORDER BY id LIMIT 1", (oldest,)).fetchone()
    database.execute("DELETE FROM event WHERE id < ?", (_NO_ID if first is None else first[0],))
    database.execute("DELETE FROM event WHERE id <= (SELECT max(id) FROM event) - ?", (max_events,))
    return database.execute("DELETE FROM series WHERE seen_ms < ?", (oldest,)).rowcount > 0


def _expire_samples(database: "sqlite3.Connection", oldest: int) -> None:
    """Delete samples older than `oldest`. The last state of each live series moves to the first sample that is kept."""
    (kept,) = database.execute("SELECT min(at_ms) FROM tick WHERE at_ms >= ?", (oldest,)).fetchone()
    if kept is not None:
        is_live = "(SELECT seen_ms FROM series AS live WHERE live.id = sample.series) >= ?"
        # A later state has moved already: that of an earlier sample is ignored.
        for (at_ms,) in database.execute(
            "SELECT at_ms FROM tick WHERE at_ms < ? ORDER BY at_ms DESC", (oldest,)
        ).fetchall():
            database.execute(
                f"UPDATE OR IGNORE sample SET at_ms = ? WHERE at_ms = ? AND {is_live}", (kept, at_ms, oldest)
            )
    for table in ("sample", "tick"):
        database.execute(f"DELETE FROM {table} WHERE at_ms < ?", (oldest,))


def ways_to_free(max_bytes: int) -> "Sequence[Callable[[sqlite3.Connection], bool]]":
    """Return functions that free some space in a file of `max_bytes`, in the order to use them.

    Each returns False if it has nothing left to free. When all do, the file is nearly empty.
    """
    share = max_bytes // SHARE
    return (
        lambda database: _size_of_events(database) > share and _halve_events(database),
        lambda database: size_of_series(database) > share and _drop_series(database),
        _merge_samples,
        _halve_events,
        _drop_series,
    )


def _size_of_events(database: "sqlite3.Connection") -> int:
    columns = ("group_id", "group_id", "member_id", "instance_id", "client_id", "client_host", "reason")
    size = f"{' + '.join(_bytes(column) for column in columns)} + {_EVENT_OVERHEAD}"
    return int(database.execute(f"SELECT total({size}) FROM event").fetchone()[0])


def _bytes(column: str) -> str:
    return f"ifnull(length(CAST({column} AS BLOB)), 0)"


def _halve_events(database: "sqlite3.Connection") -> bool:
    """Delete the older half of the events."""
    older = database.execute("DELETE FROM event WHERE id <= (SELECT (min(id) + max(id)) / 2 FROM event)")
    return older.rowcount > 0


def _drop_series(database: "sqlite3.Connection") -> bool:
    """Delete some series and their samples: first those of groups and topics that disappeared the longest ago."""
    some = f"ORDER BY has_ended DESC, seen_ms, id {_LIMIT}"
    if not database.execute(f"DELETE FROM series WHERE id IN (SELECT id FROM series {some})").rowcount:
        return False
    database.execute("DELETE FROM sample WHERE series NOT IN (SELECT id FROM series)")
    return True


def drop_ended(database: "sqlite3.Connection") -> None:
    """Delete some series that have ended, to make room for other names. Their samples remain until they expire."""
    some = f"WHERE has_ended ORDER BY seen_ms, id {_LIMIT}"
    database.execute(f"DELETE FROM series WHERE id IN (SELECT id FROM series {some})")


def _merge_samples(database: "sqlite3.Connection") -> bool:
    """Merge the closest pairs of samples in the older half: changes move to the later sample of a pair."""
    ticks = [row[0] for row in database.execute("SELECT at_ms FROM tick ORDER BY at_ms")]
    if len(ticks) < 2:
        return False
    for earlier, later in _closest(ticks[: max(len(ticks) // 2 & ~1, 2)]):
        database.execute("UPDATE OR IGNORE sample SET at_ms = ? WHERE at_ms = ?", (later, earlier))
        database.execute("DELETE FROM sample WHERE at_ms = ?", (earlier,))
        database.execute("DELETE FROM tick WHERE at_ms = ?", (earlier,))
    return True


def _closest(ticks: list[int]) -> list[tuple[int, int]]:
    """Return the pairs of adjacent samples that one step merges: those closest in time."""
    pairs = sorted(zip(ticks[::2], ticks[1::2], strict=True), key=lambda pair: pair[1] - pair[0])
    return pairs[: min(_MERGES_PER_STEP, len(pairs) // 4 + 1)]
