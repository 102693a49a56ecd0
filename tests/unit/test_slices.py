import asyncio
import time
from collections import Counter

import pytest

from headrace import slices
from headrace.slices import SLICE_S, Finished, Pace, Steps, chunks, counted, finish, in_slices, run_slice


def work(slices_wanted: int) -> Steps[str]:
    for _ in range(slices_wanted):
        time.sleep(SLICE_S)
        yield
    return "done"


def test_work_of_one_slice_is_done_at_once() -> None:
    assert in_slices(work(0)) == "done"
    done = run_slice(work(0))
    assert isinstance(done, Finished)
    assert done.result == "done"


async def test_other_tasks_run_between_slices() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    assert await finish(work(2)) == "done"
    assert turns >= 2
    task.cancel()


async def test_a_failure_ends_the_work() -> None:
    def failing() -> Steps[None]:
        time.sleep(SLICE_S)
        yield
        raise ValueError("why")

    steps = failing()
    assert run_slice(steps) is None
    with pytest.raises(ValueError, match="why"):
        await finish(steps)


async def test_a_pace_rests_once_its_slice_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(slices, "_clock", lambda: now)
    pace = Pace()
    turned = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(turned.set_result, None)
    await pace.rest()
    assert not turned.done()
    now = 1.0
    await pace.rest()
    assert turned.done()


async def test_chunks_and_counts() -> None:
    assert list(chunks(range(5), 2)) == [[0, 1], [2, 3], [4]]
    assert await counted("abca") == Counter("abca")
