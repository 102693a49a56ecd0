import random
import sqlite3
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.monitoring.groups.events import Event
from headrace.monitoring.groups.store import HistoryStore
from tests.unit.monitoring.groups.stored import Samples, samples

NOW = 1_700_000_000_000
HOUR = 3_600_000
SMALL = 256 * 1024
"""Size of a file that fills up quickly, in bytes."""
NOISE = random.Random(0).randbytes(500)
"""Does not become smaller by compression."""


def event(at_ms: int = NOW, what: str = "JOINED", group_id: str = "g") -> Event:
    return Event(group_id, at_ms, what, 1, "m", None, "app", "/127.0.0.1", "because")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.db"


@pytest.fixture
def store(path: Path) -> Iterator[HistoryStore]:
    store = open_store(path)
    yield store
    store.close()


@pytest.fixture
def small(path: Path) -> Iterator[HistoryStore]:
    store = open_store(path, SMALL)
    yield store
    store.close()


def open_store(path: Path, max_bytes: int = 256 * SMALL) -> HistoryStore:
    return HistoryStore(path, max_bytes=max_bytes, retention_ms=24 * HOUR)


def test_events_of_one_group_are_returned_in_order_of_time(store: HistoryStore) -> None:
    store.write_events([event(NOW + place) for place in range(5)] + [event(group_id="other")])
    assert store.events("g", NOW + 1, NOW + 3, 100) == [event(NOW + place) for place in (1, 2, 3)]
    assert store.events("g", NOW, NOW + 9, 2) == [event(NOW + 3), event(NOW + 4)]


def test_samples_are_returned_with_the_change_before_them(store: HistoryStore) -> None:
    for place, data in enumerate((b"a", b"b", None, b"d")):
        store.write_sample(NOW + place, [] if data is None else [("g", "t", data)])
    assert samples(store, "g", "t", NOW, NOW + 9) == Samples(
        [NOW, NOW + 1, NOW + 2, NOW + 3], [(NOW, b"a"), (NOW + 1, b"b"), (NOW + 3, b"d")]
    )
    assert samples(store, "g", "t", NOW + 2, NOW + 2) == Samples([NOW + 2], [(NOW + 1, b"b")])
    assert samples(store, "g", "other", NOW, NOW + 1) == Samples([NOW, NOW + 1], [])
    assert store.topics_of("g") == ["t"]


def test_written_data_survives_a_crash(store: HistoryStore, path: Path) -> None:
    store.write_sample(NOW, [("g", "t", b"a" * 1000)])
    store.write_events([event()])
    # The first store is not closed, as after a SIGKILL.
    again = open_store(path)
    assert samples(again, "g", "t", NOW, NOW).changes == [(NOW, b"a" * 1000)]
    assert again.events("g", NOW, NOW, 1) == [event()]
    again.close()


def test_data_older_than_the_retention_is_removed(store: HistoryStore) -> None:
    for place in range(4):
        store.write_sample(NOW + place * HOUR, [("g", "t", b"%d" % place)])
        store.write_events([event(NOW + place * HOUR)])
    store.prune(NOW + 26 * HOUR)
    assert samples(store, "g", "t", NOW, NOW + 9 * HOUR).ticks == [NOW + 2 * HOUR, NOW + 3 * HOUR]
    assert len(store.events("g", NOW, NOW + 9 * HOUR, 100)) == 2
    store.prune(NOW + 99 * HOUR)
    assert samples(store, "g", "t", NOW, NOW + 9 * HOUR) == Samples([], [])
    assert store.events("g", NOW, NOW + 9 * HOUR, 100) == []
    assert store.series() == []


def test_a_stuck_group_stays_in_the_history_after_the_retention(store: HistoryStore) -> None:
    store.write_sample(NOW, [("stuck", "t", b"earlier"), ("gone", "t", b"last")])
    store.write_sample(NOW + HOUR, [("stuck", "t", b"last")])
    for hour in range(2, 40):
        store.write_sample(NOW + hour * HOUR, [("busy", "t", b"%d" % hour)])
        store.touch([("stuck", "t"), ("busy", "t")], NOW + hour * HOUR)
        store.prune(NOW + hour * HOUR)
    end = NOW + 39 * HOUR
    ticks, changes = samples(store, "stuck", "t", 0, end)
    assert changes == [(end - 24 * HOUR, b"last")]
    assert ticks == [end - hours * HOUR for hours in range(24, -1, -1)]
    assert samples(store, "busy", "t", 0, end).changes[0] == (end - 24 * HOUR, b"15")
    assert sorted(store.series()) == [("busy", "t"), ("stuck", "t")]
    assert samples(store, "gone", "t", 0, end).changes == []


def test_live_groups_that_are_not_in_the_file_are_found(store: HistoryStore) -> None:
    store.write_sample(NOW, [("g", "t", b"a"), ("again", "t", b"a")])
    store.write_sample(NOW + 1, [("again", "t", b"")])
    live = [("g", "t"), ("g", "dropped"), ("again", "t"), ("g" * 501, "t")]
    assert store.touch(live, NOW + 2) == [("g", "dropped"), ("again", "t")]


def test_live_groups_are_kept_after_a_failure(store: HistoryStore) -> None:
    store.write_sample(NOW, [("stuck", "t", b"last")])
    store._database().execute("PRAGMA max_page_count = 1")
    assert not store.write_events([event(NOW)] * 1000)
    store._database().execute("PRAGMA max_page_count = 1000")
    store.write_sample(NOW + 30 * HOUR, [])
    store.touch([("stuck", "t")], NOW + 30 * HOUR)
    store.prune(NOW + 30 * HOUR)
    assert store.series() == [("stuck", "t")]
    assert samples(store, "stuck", "t", 0, NOW + 30 * HOUR).changes == [(NOW + 30 * HOUR, b"last")]


def test_the_states_of_idle_groups_are_not_rewritten_for_each_expired_sample(store: HistoryStore) -> None:
    minute = HOUR // 60
    store.write_sample(NOW, [("stuck", "t", b"last")])
    for place in range(20, 24 * 60, 20):
        store.write_sample(NOW + place * minute, [])
    store.touch([("stuck", "t")], NOW + 24 * HOUR)
    store.prune(NOW + 24 * HOUR + 19 * minute)
    assert samples(store, "stuck", "t", 0, NOW + HOUR).changes == [(NOW, b"last")]
    store.prune(NOW + 24 * HOUR + 40 * minute)
    assert samples(store, "stuck", "t", 0, NOW + HOUR).changes == [(NOW + 40 * minute, b"last")]


def test_a_file_over_its_limit_keeps_the_whole_period_at_lower_resolution(small: HistoryStore, path: Path) -> None:
    small.write_sample(NOW, [("still", "t", b"first")])
    small.write_sample(NOW + 1, [("still", "t", b"last")])
    for place in range(2, 100):
        assert not small.write_sample(NOW + place, [(f"g{number}", "t", NOISE) for number in range(8)])
        if place % 10 == 0:
            small.prune(NOW)
    small.prune(NOW)
    assert small.size() <= SMALL
    ticks = samples(small, "g1", "t", NOW, NOW + 9999).ticks
    assert ticks[0] < NOW + 20
    assert ticks[-1] == NOW + 99
    assert 20 < len(ticks) < 80
    # Recent samples are denser than old ones.
    assert ticks[-1] - ticks[-9] < ticks[8] - ticks[0]
    # The last state of an unchanged series is kept.
    assert samples(small, "still", "t", NOW + 90, NOW + 99).changes[0][1] == b"last"
    small.close()
    assert path.stat().st_size <= SMALL


def test_events_use_at_most_a_quarter_of_the_space(small: HistoryStore) -> None:
    small.write_events(event(NOW + place) for place in range(500))
    small.prune(NOW)
    kept = small.events("g", NOW, NOW + 9999, 9999)
    assert len(kept) == SMALL // 4 // 400
    assert kept[-1].at_ms == NOW + 499


@pytest.mark.parametrize("damage", ["not a database", "overwritten", "truncated", "not text", "newer"])
def test_a_damaged_file_is_moved_away_and_replaced(path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    store = open_store(path)
    for place in range(20):
        store.write_sample(NOW + place, [("g", "t", bytes(range(200)))])
    store.close()
    content = path.read_bytes()
    if damage == "not a database":
        path.write_bytes(b"something else" * 1000)
    elif damage == "overwritten":
        path.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))
    elif damage == "truncated":
        path.write_bytes(content[: len(content) // 3])
    elif damage == "not text":
        path.write_bytes(content.replace(b"TABLE series (", b"TABLE series \xff"))
    else:
        path.write_bytes(content[:60] + (99).to_bytes(4, "big") + content[64:])

    store = open_store(path)
    assert store.write_events([event(NOW)])
    assert len(store.events("g", NOW, NOW, 9)) == 1
    for _ in range(3):
        store.write_sample(NOW + 1000, [("g", "t", b"new")])
        store.prune(NOW)
    assert samples(store, "g", "t", NOW + 1000, NOW + 1000).changes == [(NOW + 1000, b"new")]
    assert store.resets == 1
    assert "renaming it to" in caplog.text
    assert list(path.parent.glob("*.damaged-*"))
    store.close()


def test_a_full_disk_leaves_a_gap_and_is_logged_once(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = open_store(path)
    noise = random.Random(0).randbytes(25_000)
    assert not store.write_sample(NOW, [("g", "t", noise)])
    store._database().execute("PRAGMA max_page_count = 20")
    results = [store.write_sample(NOW + place, [("g", "t", noise)]) for place in range(1, 6)]
    assert results[-1] == [("g", "t")]
    assert caplog.text.count("Cannot read or write") == 1
    assert not store.write_events([event()] * 2000)
    assert store.events_lost == 2000
    store._database().execute("PRAGMA max_page_count = 10000")
    assert not store.write_sample(NOW + 100, [("g", "t", b"again")])
    assert samples(store, "g", "t", NOW, NOW).changes == [(NOW, noise)]
    store.close()


def state(number: int) -> bytes:
    """The state of a group in a partition: each number's is different."""
    return array("q", [number, number + 1, NOW]).tobytes()


def write_groups(store: HistoryStore, count: int, name: str, *, first: int = 0) -> int:
    """Write a sample with `count` new groups. Return the number of those that were written."""
    rows = [(f"{number}-{name}", "orders", state(number)) for number in range(first, first + count)]
    return count - len(store.write_sample(NOW + first, rows))


def test_the_names_of_many_groups_do_not_fill_the_file(small: HistoryStore, caplog: pytest.LogCaptureFixture) -> None:
    written = 0
    for first in range(0, 800, 200):
        written += write_groups(small, 200, "g" * 80, first=first)
        small.prune(NOW)
    assert 250 < len(small.series()) < 500
    assert len(small.series()) == written
    assert "has no room for" in caplog.text
    # Known groups still have a history.
    assert not small.write_sample(NOW + 9999, [(f"0-{'g' * 80}", "orders", b"later")])
    assert samples(small, f"0-{'g' * 80}", "orders", NOW + 9999, NOW + 9999).changes[-1] == (NOW + 9999, b"later")
    assert small.size() <= SMALL * 8 // 10


def test_pruning_ends_in_a_file_that_is_full_of_names(path: Path) -> None:
    store = open_store(path, 16 * SMALL)
    assert write_groups(store, 1000, "g" * 300) == 1000
    assert store.size() > 2 * SMALL
    gone = [f"{number}-{'g' * 300}" for number in range(750, 1000)]
    store.touch([(group, "orders") for group, _ in store.series() if group not in gone], NOW + HOUR)
    store.close()
    store = open_store(path, SMALL)
    store.prune(NOW + HOUR)
    assert store.size() <= SMALL * 8 // 10
    # The groups that disappeared the longest ago are deleted first.
    left = {group for group, _ in store.series()}
    assert left
    assert not left.intersection(gone)
    assert not store.write_sample(NOW + HOUR, [(left.pop(), "orders", state(1))])
    store.close()


def test_pruning_ends_if_the_latest_states_alone_are_too_large(path: Path) -> None:
    store = open_store(path, 16 * SMALL)
    noise = random.Random(0)
    for number in range(40):
        assert not store.write_sample(NOW + number, [(f"g{number}", "t", noise.randbytes(12_000))])
    store.close()
    store = open_store(path, SMALL)
    store.prune(NOW)
    assert store.size() <= SMALL * 8 // 10
    assert not store.write_sample(NOW + 99, [("later", "t", b"fits")])
    assert ("later", "t") in store.series()
    store.close()


def test_a_sample_larger_than_the_free_space_makes_room(small: HistoryStore) -> None:
    noise = random.Random(0)
    for place in range(40):
        assert not small.write_sample(
            NOW + place, [("g", "t", noise.randbytes(25_000)), ("h", "t", noise.randbytes(9000))]
        )
    assert samples(small, "g", "t", NOW + 39, NOW + 39).changes[-1][0] == NOW + 39
    assert len(samples(small, "g", "t", NOW, NOW + 39).ticks) > 3


def test_a_sample_that_cannot_fit_is_written_in_part(small: HistoryStore, caplog: pytest.LogCaptureFixture) -> None:
    noise = random.Random(0)
    rows = [(f"g{number}", "t", noise.randbytes(5000)) for number in range(60)]
    skipped = small.write_sample(NOW, [*rows, ("ended", "t", b"")])
    assert sorted([*skipped, *small.series()]) == sorted((group, topic) for group, topic, _ in rows)
    assert 5 <= len(small.series()) < 60
    # The next sample has room for others.
    others = [row for row in rows if row[:2] in skipped]
    assert len(small.write_sample(NOW + 1, others)) < len(skipped)
    assert "has no room for" in caplog.text


def test_large_events_use_at_most_a_quarter_of_a_full_file(small: HistoryStore) -> None:
    for place in range(30):
        small.write_events(event(NOW + place)._replace(reason="r" * 500, client_id="c" * 500) for _ in range(5))
        assert not small.write_sample(NOW + place, [("g", "t", random.Random(place).randbytes(6000))])
    small.prune(NOW)
    assert small.size() <= SMALL * 8 // 10
    assert 12 < len(small.events("g", NOW, NOW + 99, 9999)) < 75
    assert len(samples(small, "g", "t", NOW, NOW + 99).ticks) > 5


def test_the_latest_of_a_burst_of_large_events_are_stored(small: HistoryStore) -> None:
    for place in range(60):
        small.write_sample(NOW, [(f"g{place}", "t", random.Random(place).randbytes(3000))])
    large = event(group_id="g" * 500)._replace(member_id="m" * 500, client_id="c" * 500, reason="r" * 500)
    events = [large._replace(generation=number) for number in range(100)]
    assert small.write_events(events)
    stored = small.events("g" * 500, NOW, NOW, 9999)
    assert 10 < len(stored) < 20
    assert stored == events[-len(stored) :]
    assert small.events_lost == 100 - len(stored)
    assert len(samples(small, "g1", "t", NOW, NOW).ticks) == 1


def test_pruning_ends_early_when_the_broker_stops(path: Path) -> None:
    store = open_store(path, 16 * SMALL)
    for place in range(20):
        assert not store.write_sample(NOW + place, [("g", "t", random.Random(place).randbytes(25_000))])
    store.close()
    store = open_store(path, SMALL)
    store.stop()
    store.prune(NOW)
    assert store.size() > SMALL
    store.close()


def test_a_file_that_is_closed_meanwhile_is_not_interrupted(path: Path) -> None:
    connection = sqlite3.connect(":memory:")

    class Closing(HistoryStore):
        """Another thread closes the file after it has been read from `_connection`."""

        def __getattribute__(self, name: str) -> object:
            value = super().__getattribute__(name)
            if name == "_connection" and value is connection:
                connection.close()
                self._connection = None
            return value

    store = Closing(path, max_bytes=SMALL, retention_ms=HOUR)
    store._connection = connection
    store.interrupt()
    assert store._connection is None


def test_a_missing_directory_does_not_stop_the_broker(tmp_path: Path) -> None:
    store = open_store(tmp_path / "gone" / "history.db")
    assert not store.write_events([event()])
    assert store.events("g", 0, NOW, 10) == []


def test_deleted_groups_expire_although_the_broker_restarts(path: Path) -> None:
    store = open_store(path)
    store.write_sample(NOW, [("gone", "t", b"last"), ("live", "t", b"last")])
    store.write_sample(NOW + HOUR, [("gone", "t", b"")])
    store.close()
    store = open_store(path)
    assert store.series() == [("live", "t")]
    # An end that is reported again, too, does not make the group younger.
    store.write_sample(NOW + 20 * HOUR, [("gone", "t", b""), ("unknown", "t", b"")])
    store.prune(NOW + 20 * HOUR)
    assert store.topics_of("gone") == ["t"]
    assert store.topics_of("unknown") == []
    store.prune(NOW + 25 * HOUR)
    assert store.topics_of("gone") == []
    store.close()


def test_a_group_that_is_created_again_has_not_ended(store: HistoryStore) -> None:
    for place, data in enumerate((b"first", b"", b"second")):
        store.write_sample(NOW + place * HOUR, [("g", "t", data)])
    assert store.series() == [("g", "t")]
    store.prune(NOW + 25 * HOUR)
    assert samples(store, "g", "t", NOW, NOW + 9 * HOUR).changes[-1] == (NOW + 2 * HOUR, b"second")


def test_names_of_deleted_groups_make_room_for_new_groups(small: HistoryStore) -> None:
    write_groups(small, 500, "g" * 80)
    known = small.series()
    assert len(known) < 500
    small.write_sample(NOW + 500, [(*key, b"") for key in known[:125]])
    assert write_groups(small, 25, "later", first=501) == 25
    assert len([group for group, _ in small.series() if group.endswith("later")]) == 25
    assert set(known[125:]) < set(small.series())
    # Most of the deleted groups still have their history.
    assert len([group for group, _ in known[:125] if small.topics_of(group)]) > 50


def test_series_that_have_ended_are_deleted_first(path: Path) -> None:
    store = open_store(path, 16 * SMALL)
    write_groups(store, 800, "g" * 80)
    ended = store.series()[160:]
    store.write_sample(NOW + 800, [(*key, b"") for key in ended])
    live = store.series()
    store.close()
    store = open_store(path, SMALL)
    store.prune(NOW)
    assert store.topics_of(ended[0][0]) == []
    assert store.series() == live
    store.close()


def test_a_file_of_an_earlier_version_is_kept_without_groups_with_too_long_names(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.monitoring.groups.store.MAX_NAME", 1000)
    store = open_store(path)
    assert not store.write_sample(NOW, [("g", "t", b"a"), ("g" * 501, "t", b"a"), ("g" * 500, "t", b"b")])
    store._database().execute("ALTER TABLE series DROP COLUMN has_ended")
    store.close()
    monkeypatch.undo()
    store = open_store(path)
    assert store.series() == [("g", "t"), ("g" * 500, "t")]
    store.write_sample(NOW + 1, [("g", "t", b""), ("g" * 501, "t", b"a")])
    assert store.series() == [("g" * 500, "t")]
    assert store.topics_of("g" * 501) == []
    assert store.resets == 0
    assert samples(store, "g", "t", NOW, NOW + 1).changes == [(NOW, b"a"), (NOW + 1, b"")]
    store.close()
