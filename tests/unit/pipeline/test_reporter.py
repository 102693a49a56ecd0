"""The progress of a job that fails, with files in memory and a cluster that nobody reaches."""

import json
from itertools import count
from typing import Any

import pytest

from headrace.pipeline.engine.monitoring import reporter
from headrace.pipeline.engine.monitoring.reporter import Reporter
from headrace.pipeline.engine.supervision import Standing, State
from tests.unit.pipeline.memory_files import MemoryFiles


class Unreached:
    """A cluster, its producer, and the table `runs`, which take everything."""

    def confluent(self, _: str) -> Any:
        return {}

    def produce(self, *_: object, **__: object) -> None:
        pass

    def poll(self, _: float) -> None:
        pass

    def flush_if_due(self) -> None:
        pass


def test_every_failure_has_its_time_even_if_an_earlier_one_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    files: Any = MemoryFiles({})
    anything: Any = Unreached()
    monkeypatch.setattr(reporter, "Producer", lambda *_, **__: anything)
    times = count()
    monkeypatch.setattr(reporter, "_iso", lambda _: next(times))
    report = Reporter(files, "/lake", anything, {"events": 1}, runs=anything)

    def written(*failures: float, retry_at: float | None = None) -> tuple[Any, ...]:
        standing = Standing(State.RUNNING, failures=[*failures], reason="broken", retry_at=retry_at)
        report.watch("events", standing, None, None)
        (path,) = (path for path in files if path.endswith("events.json"))
        progress = json.loads(files[path])
        return progress["failures"], progress["failed_at"], progress["next_retry"]

    first = written(1.0, retry_at=2.0)
    assert written(1.0, retry_at=2.0) == first
    second = written(700.0, retry_at=702.0)
    assert second[0] == first[0] == 1
    assert second[1] > first[2] > first[1]
    assert second[2] > second[1]
    assert written() == (0, second[1], None)
