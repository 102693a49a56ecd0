"""Calls in a daemon thread."""

import threading
from collections.abc import Iterator

import pytest

from headrace.monitoring.groups.worker import Worker


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker("test")
    yield worker
    worker.shutdown()


def test_calls_run_one_after_another(worker: Worker) -> None:
    done: list[int] = []
    futures = [worker.submit(done.append, number) for number in range(20)]
    assert futures[-1].result() is None
    assert done == list(range(20))


def test_a_call_that_fails_does_not_end_the_thread(worker: Worker) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        worker.submit(int, "x").result()
    assert worker.submit(int, "5").result() == 5


def test_shutdown_waits_for_calls_or_cancels_them(worker: Worker) -> None:
    gate, has_started = threading.Event(), threading.Event()

    def wait() -> str:
        has_started.set()
        gate.wait()
        return "done"

    running, waiting = worker.submit(wait), worker.submit(int, "5")
    has_started.wait()
    worker.shutdown(wait=False, cancel_futures=True)
    gate.set()
    assert running.result() == "done"
    assert waiting.cancelled()
    with pytest.raises(RuntimeError, match="was shut down"):
        worker.submit(int, "5")
