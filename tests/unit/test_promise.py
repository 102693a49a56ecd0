import asyncio

import pytest

from headrace.promise import Promise


def test_callbacks_run_in_the_call_that_sets_the_result() -> None:
    promise: Promise[int] = Promise()
    results: list[int] = []
    promise.add_done_callback(lambda done: results.append(done.result()))
    assert not promise.done()

    promise.set_result(3)
    assert results == [3]
    promise.add_done_callback(lambda done: results.append(done.result()))
    assert results == [3, 3]


def test_only_the_first_outcome_counts() -> None:
    promise: Promise[int] = Promise()
    promise.cancel()
    promise.set_result(1)
    promise.set_exception(ValueError())

    assert promise.done()
    assert promise.cancelled()
    with pytest.raises(asyncio.CancelledError):
        promise.result()


def test_a_callback_that_fails_harms_neither_the_others_nor_the_caller(caplog: pytest.LogCaptureFixture) -> None:
    promise: Promise[int] = Promise()
    results: list[int] = []

    def failing(_: object) -> None:
        raise ValueError("a defect")

    promise.add_done_callback(failing)
    promise.add_done_callback(lambda done: results.append(done.result()))
    promise.set_result(3)
    promise.add_done_callback(failing)

    assert results == [3]
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["a defect"] * 2


def test_a_conversion_may_fail_or_handle_an_error() -> None:
    promise: Promise[int] = Promise()
    double = promise.then(lambda done: 2 * done.result())
    handled = double.then(lambda done: str(done.exception()))

    promise.set_exception(ValueError("it is odd"))

    assert isinstance(double.exception(), ValueError)
    assert handled.result() == "it is odd"
    assert not double.cancelled()


def test_a_conversion_is_cancelled_with_its_source_and_cancels_it() -> None:
    for cancels_source in (True, False):
        promise: Promise[int] = Promise()
        double = promise.then(lambda done: 2 * done.result())

        (promise if cancels_source else double).cancel()

        assert promise.cancelled()
        assert double.cancelled()


async def test_a_promise_can_be_awaited() -> None:
    promise: Promise[int] = Promise()
    asyncio.get_running_loop().call_soon(promise.set_result, 3)
    assert await promise == 3
    assert await promise == 3


async def test_a_cancelled_caller_cancels_the_promise() -> None:
    promise: Promise[int] = Promise()
    task = asyncio.ensure_future(promise)
    await asyncio.sleep(0)

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert promise.cancelled()
