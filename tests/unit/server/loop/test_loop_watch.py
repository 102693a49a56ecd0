import asyncio
from unittest.mock import Mock

import pytest

from headrace.server.context import ClientInfo
from headrace.server.loop.loop_watch import BEAT_SECONDS, HOLD_NS, OTHER, LoopWatch
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


def test_other_work_that_blocks_the_loop_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    loop = Mock()
    loop.time.return_value = 0.0
    watch = LoopWatch(loop)
    watch.start()
    for now in (BEAT_SECONDS, 2 * BEAT_SECONDS + 0.25):
        loop.time.return_value = now
        loop.call_at.call_args.args[1]()
    watch.stop()

    assert watch.holds == {OTHER: 1}
    assert "Work other than a single long request blocked the event loop for 250 ms" in caplog.text
    assert watch.quantiles(0.0, 1.0) == [0, pytest.approx(0.25)]
    loop.call_at.return_value.cancel.assert_called_once_with()


async def test_without_a_beat_there_is_no_delay() -> None:
    assert LoopWatch(asyncio.get_running_loop()).quantiles(0.5, 1.0) == [0.0, 0.0]
