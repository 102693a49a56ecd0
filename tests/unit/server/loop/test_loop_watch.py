import asyncio
import logging
import time

import pytest

from headrace.server.context import ClientInfo
from headrace.server.loop import loop_watch
from headrace.server.loop.loop_watch import HOLD_NS, OTHER, LoopWatch
from headrace.wire.apis import ApiKey

CLIENT = ClientInfo(
    listener="PLAINTEXT", host="192.0.2.9", port=7, local_address=("192.0.2.1", 9092), client_id="greedy"
)


async def test_a_request_that_blocks_the_loop_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    watch = LoopWatch(asyncio.get_running_loop())
    for _ in range(3):
        watch.held_by(CLIENT, (ApiKey.METADATA, 12, 345), 1, HOLD_NS)

    (record,) = caplog.records
    assert "METADATA v12 of 345 bytes from client id greedy at 192.0.2.9:7" in record.getMessage()
    assert "blocked the event loop for 200 ms" in record.getMessage()
    assert watch.holds == {"METADATA": 3}


async def test_other_work_that_blocks_the_loop_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_watch, "BEAT_SECONDS", 0.01)
    watch = LoopWatch(asyncio.get_running_loop())
    watch.start()
    await asyncio.sleep(0.03)
    with caplog.at_level(logging.WARNING):
        asyncio.get_running_loop().call_soon(time.sleep, 0.25)
        await asyncio.sleep(0.02)
    watch.stop()

    assert watch.holds[OTHER] == 1
    assert "Work other than a single long request blocked the event loop" in caplog.text
    (longest,) = watch.quantiles(1.0)
    assert longest > 0.2


async def test_without_a_beat_there_is_no_delay() -> None:
    assert LoopWatch(asyncio.get_running_loop()).quantiles(0.5, 1.0) == [0.0, 0.0]
