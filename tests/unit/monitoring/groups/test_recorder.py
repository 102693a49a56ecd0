"""Events on their way to the file, and the end of the history's thread."""

import asyncio
import concurrent.futures.thread
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.coordinator.groups.effects import Happening, Note
from headrace.monitoring.groups import recorder
from headrace.monitoring.groups.recorder import GroupHistory
from headrace.slices import Steps

NOW = 1_700_000_000_000


@pytest.fixture
async def history(tmp_path: Path) -> GroupHistory:
    return GroupHistory(tmp_path / "history.db", interval_ms=1000, retention_ms=10**9, max_bytes=10**8)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What a thread waits for, as for a disk that hangs."""
    gate = threading.Event()
    yield gate
    gate.set()


def joined(member_id: str = "m") -> Note:
    return Note(what=Happening.JOINED, generation=1, member_id=member_id)


async def test_stopping_gives_up_on_a_busy_thread_and_counts_the_events_that_wait(
    history: GroupHistory, gate: threading.Event, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recorder, "_STOP_S", 0.01)
    busy = history._thread.submit(gate.wait)
    history.observe("g", joined(), NOW)
    history._start_write()
    for _ in range(10):
        history.observe("g", joined(), NOW)
    await history.stop()
    assert not busy.done()
    assert "still busy" in caplog.text
    assert history.events_lost == 11
    # Pruning ends, too.
    assert history.store._is_stopping


async def test_the_process_does_not_wait_for_a_busy_thread(history: GroupHistory) -> None:
    thread = history._thread.submit(threading.current_thread).result()
    # At exit, Python waits for other threads, and for those of a ThreadPoolExecutor.
    assert thread.daemon
    assert thread not in concurrent.futures.thread._threads_queues
    await history.stop()


async def test_events_wait_for_a_busy_thread_up_to_the_limit(
    history: GroupHistory, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "_MAX_EVENTS", 20)
    monkeypatch.setattr(recorder, "_EVENT_DELAY_S", 0)
    history._thread.submit(gate.wait)
    for number in range(200):
        history.observe("g", joined(f"m{number}"), NOW)
        if number % 10 == 9:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
    assert 140 < history.events_lost < 180
    gate.set()
    await history.flush()
    stored = history.store.events("g", 0, NOW, 9999)
    assert len(stored) == 200 - history.events_lost
    # Later events are written, too.
    history.observe("g", joined("later"), NOW)
    await history.stop()
    assert history.store.events("g", 0, NOW, 1)[0].member_id == "later"
    history.store.close()


async def test_rebalances_are_counted_even_if_their_events_are_lost(
    history: GroupHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "_MAX_EVENTS", 10)
    for _ in range(15):
        history.observe("g", Note(what=Happening.REBALANCING, generation=1), NOW)
    assert history.events_lost == 5
    assert history.rebalances == {"g": 15}
    await history.stop()


async def test_a_cancelled_flush_loses_no_events(history: GroupHistory, gate: threading.Event) -> None:
    history._thread.submit(gate.wait)
    history.observe("g", joined(), NOW)
    flush = asyncio.create_task(history.flush())
    await asyncio.sleep(0)
    flush.cancel()
    await asyncio.gather(flush, return_exceptions=True)
    gate.set()
    await history.flush()
    assert len(history.store.events("g", 0, NOW, 9)) == 1
    await history.stop()


async def test_a_statement_that_runs_for_long_ends_when_the_broker_stops(
    history: GroupHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "_STOP_S", 0.01)
    has_started = threading.Event()

    def endless(database: sqlite3.Connection) -> None:
        database.create_function("started", 0, has_started.set)
        query = (
            "WITH RECURSIVE n(x) AS (SELECT ifnull(started(), 1) UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"
        )
        database.execute(query).fetchall()

    busy = asyncio.get_running_loop().run_in_executor(history._thread, lambda: history.store._write(endless))
    await asyncio.to_thread(has_started.wait)
    await history.stop()
    assert not await busy


async def test_long_names_are_shortened_and_long_group_ids_have_no_history(history: GroupHistory) -> None:
    history.observe("g" * 501, joined(), NOW)
    history.observe("g", joined("client" * 100 + "-unique"), NOW)
    await history.flush()
    assert history.store.events("g" * 501, 0, NOW, 9) == []
    (event,) = history.store.events("g", 0, NOW, 9)
    assert len(event.member_id) == 500
    assert event.member_id.startswith("client")
    assert event.member_id.endswith("-unique")
    assert history.events_lost == 0
    await history.stop()


async def test_long_work_in_the_thread_lets_other_work_run_in_between(history: GroupHistory) -> None:
    is_done = threading.Event()

    def steps() -> Steps[str]:
        while not is_done.is_set():
            yield
        return "done"

    answer, _ = await asyncio.gather(history.steps_in_thread(steps()), history.in_thread(is_done.set))
    assert answer == "done"
    await history.stop()
