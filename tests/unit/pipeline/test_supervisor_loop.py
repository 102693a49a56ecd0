"""The loop around the machine that starts, repeats and gives up jobs."""

import threading
from collections.abc import Mapping
from typing import Any, Literal

import pytest

pytest.importorskip("pyspark")
from py4j.protocol import Py4JError, Py4JNetworkError

from headrace.pipeline.engine import supervisor
from headrace.pipeline.engine.supervision import Standing
from headrace.pipeline.engine.supervisor import Supervisor
from headrace.pipeline.errors import PipelineError, TemporaryError


class Watcher:
    """Cannot write, and stops the supervisor after some attempts."""

    def __init__(self, stopping: threading.Event, attempts: int) -> None:
        self._stopping = stopping
        self._left = attempts

    def watch(self, job: str, standing: Standing, query: Any, running: Any) -> None:
        self._left -= 1
        if self._left <= 0:
            self._stopping.set()
        raise OSError(28, "No space left on device")

    def close(self) -> None: ...


def supervised(readiness: Literal["ready", "later"], watcher: Watcher, failure: Exception | None = None) -> Supervisor:
    """Return the supervisor of a job that fails when it starts."""

    def ready(_: str, __: Mapping[str, Standing]) -> Literal["ready", "later", "never"]:
        return readiness

    def fail() -> Any:
        assert failure is not None
        raise failure

    return Supervisor({"views": fail}, ready, watcher, once=False)


def test_it_is_said_once_that_progress_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor, "_POLL_S", 0.001)
    stopping = threading.Event()
    supervised("later", Watcher(stopping, 3)).run(stopping)
    assert [record.getMessage() for record in caplog.records] == [
        "The progress of job views could not be written: [Errno 28] No space left on device"
    ]


class _Gateway:
    """The connection to a Java process that has ended."""

    @property
    def jvm(self) -> Any:
        raise ConnectionRefusedError(111, "Connection refused")


@pytest.mark.parametrize("failure", [Py4JError("while calling o91"), ConnectionRefusedError(111, "Connection refused")])
def test_a_job_is_not_restarted_without_the_java_process(failure: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.SparkContext._gateway", _Gateway())
    stopping = threading.Event()
    with pytest.raises(Py4JNetworkError):
        supervised("ready", Watcher(stopping, 100), failure).run(stopping)


def test_the_end_of_the_java_process_ends_the_run() -> None:
    stopping = threading.Event()
    with pytest.raises(Py4JNetworkError):
        supervised("ready", Watcher(stopping, 100), Py4JNetworkError("connection refused")).run(stopping)


@pytest.mark.parametrize(
    ("failure", "traced"),
    [
        (PipelineError("no such column"), False),
        (TemporaryError("no such topic yet"), False),
        (ZeroDivisionError("in the function of the job"), True),
    ],
)
def test_a_stack_trace_is_logged_only_if_it_helps(
    failure: Exception, traced: bool, caplog: pytest.LogCaptureFixture
) -> None:
    stopping = threading.Event()
    supervised("ready", Watcher(stopping, 1), failure).run(stopping)
    [record] = [record for record in caplog.records if record.levelname == "ERROR"]
    assert f"Job views failed (failure 1 in ten minutes): {failure}; " in record.getMessage()
    assert (record.exc_info is not None) == traced
