import signal
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")
from py4j.protocol import Py4JError
from pyspark.errors import IllegalArgumentException

from headrace.pipeline.engine import run
from headrace.pipeline.errors import PipelineError
from headrace.pipeline.spec import deployment
from headrace.pipeline.spec.jobs import Topic
from tests.unit.pipeline.example_jobs import SESSIONS
from tests.unit.pipeline.java_errors import JavaError
from tests.unit.pipeline.memory_files import MemoryFiles


def check(files: Any) -> None:
    run._check_writable(files, ("/lake", "/checkpoints"))


def test_a_check_leaves_nothing() -> None:
    files = MemoryFiles({})
    check(files)
    assert files.names("/lake") == files.names("/checkpoints") == []


class RefusedFiles(MemoryFiles):
    """Files that cannot be written because of this error."""

    def __init__(self, error: Exception) -> None:
        super().__init__({})
        self._error = error

    def write(self, uri: str, text: str) -> None:
        raise self._error


def refusal(error: Exception) -> str:
    with pytest.raises(PipelineError) as raised:
        check(RefusedFiles(error))
    return str(raised.value)


def test_a_lake_that_cannot_be_written_is_named() -> None:
    denied = "java.nio.file.AccessDeniedException: s3a://b/lake"
    java_error = JavaError(f"An error occurred while calling o57.create.\n: {denied}")
    assert refusal(OSError(30, "Read-only file system")) == "cannot write to /lake: read-only file system"
    assert refusal(java_error) == f"cannot write to /lake: {denied}"
    assert refusal(IllegalArgumentException("bucket is null/empty")) == "cannot write to /lake: bucket is null/empty"


def test_the_end_of_spark_is_not_a_fault_of_the_lake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "has_ended", lambda _: True)
    for error in (Py4JError("no answer"), ConnectionRefusedError(111, "Connection refused")):
        with pytest.raises(type(error)):
            check(RefusedFiles(error))


def test_an_unusable_certificate_is_reported_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "pipeline.toml"
    path.write_text(
        '[cluster]\nbootstrap = "h:1"\nsecurity.protocol = "SSL"\nssl.ca.location = "missing.pem"\n'
        '[jobs.archive]\ntopic = "a"\n'
    )

    monkeypatch.setattr("headrace.pipeline.engine.session.build", lambda *_, **__: pytest.fail("Spark starts"))
    archive = replace(SESSIONS, name="archive", source=Topic())
    with pytest.raises(PipelineError, match=r"ssl\.ca\.location: cannot read .*missing\.pem"):
        run.run(deployment.load(path), {"archive": archive})


@pytest.mark.parametrize(("handler", "stops"), [(lambda *_: None, True), (signal.SIG_IGN, False)])
def test_a_closed_terminal_stops_the_jobs_unless_nohup_ignores_it(handler: Any, stops: bool) -> None:
    before = signal.signal(signal.SIGHUP, handler)
    try:
        with run._until_signal() as stopping:
            signal.raise_signal(signal.SIGHUP)
            assert stopping.is_set() == stops
        assert signal.getsignal(signal.SIGHUP) == handler
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("stopped", [False, True])
def test_a_run_fails_if_spark_stops_before_its_jobs(stopped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    context = SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: stopped))
    spark = SimpleNamespace(sparkContext=SimpleNamespace(_jsc=context), stop=lambda: None)
    monkeypatch.setattr("headrace.pipeline.engine.session.build", lambda *_, **__: spark)
    monkeypatch.setattr(run, "supervisor", lambda *_, **__: SimpleNamespace(run=lambda _: True))
    ended = pytest.raises(PipelineError, match="Spark stopped before the jobs") if stopped else nullcontext()
    with ended:
        assert run.run(deployment.Deployment.default(), {"sessions": SESSIONS})
