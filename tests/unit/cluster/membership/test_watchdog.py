import asyncio
import io
import logging
import threading
import time

import pytest

from headrace.cluster.membership.watchdog import Watchdog


async def test_a_loop_that_stands_still_ends_the_process() -> None:
    ended = threading.Event()
    watchdog = Watchdog(asyncio.get_running_loop(), timeout_s=0.05, end=ended.set)
    watchdog.start()
    assert ended.wait(20)  # the loop waits, too
    watchdog.stop()


async def test_the_log_shows_where_the_loop_is_blocked(caplog: pytest.LogCaptureFixture) -> None:
    ended = threading.Event()
    watchdog = Watchdog(asyncio.get_running_loop(), timeout_s=0.1, end=ended.set)
    watchdog.start()
    while not watchdog._loop_thread:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert ended.wait(20)
    watchdog.stop()
    assert "assert ended.wait(20)" in caplog.text


async def test_a_loop_that_its_log_blocks_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.cluster.membership.watchdog._LOG_S", 0.05)
    ended = threading.Event()
    blocking = logging.StreamHandler(io.StringIO())
    logging.getLogger().addHandler(blocking)
    watchdog = Watchdog(asyncio.get_running_loop(), timeout_s=0.05, end=ended.set)
    try:
        blocking.acquire()  # as while it writes to a pipe that nobody reads
        watchdog.start()
        assert ended.wait(20)
    finally:
        blocking.release()
        logging.getLogger().removeHandler(blocking)
    watchdog.stop()


async def test_a_loop_that_runs_is_left_alone() -> None:
    ended = threading.Event()
    watchdog = Watchdog(asyncio.get_running_loop(), timeout_s=0.2, end=ended.set)
    watchdog.start()
    deadline = time.monotonic() + 0.25
    while time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    watchdog.stop()
    assert not ended.is_set()
