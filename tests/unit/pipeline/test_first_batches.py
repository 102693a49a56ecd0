"""Which jobs have the first batches of a driver: those whose results come soonest."""

import json
from collections.abc import Collection
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

pytest.importorskip("pyspark")

from headrace.pipeline.engine.scheduling import opening
from headrace.pipeline.engine.scheduling.opening import FirstBatches
from headrace.pipeline.spec import registry
from headrace.pipeline.spec.jobs import Job
from tests.unit.pipeline.memory_files import MemoryFiles

if TYPE_CHECKING:
    from headrace.pipeline.engine.tables.lake import Lake

QUICK = ("events", "traffic", "status_codes")


@cache
def _jobs() -> dict[str, Job]:
    known = registry.find()
    return {name: known.named(name) for name in (*QUICK, "raw", "sessions")}


def first_batches(
    monkeypatch: pytest.MonkeyPatch, files: MemoryFiles, tables: Collection[str] = ("events",)
) -> FirstBatches:
    lake = SimpleNamespace(spark=None, exists=lambda table: table in tables, path=lambda table: f"lake/{table}")
    monkeypatch.setattr(opening, "Files", lambda _: files)
    return FirstBatches(_jobs(), cast("Lake", lake), "checkpoints")


def stored(commits: int, **read: int) -> MemoryFiles:
    """Return a table with commits, and the checkpoints of jobs that have read some of them."""
    files = {f"lake/events/_delta_log/{number:020}.json": "{}" for number in range(commits)}
    for job, version in read.items():
        offset = json.dumps({"reservoirVersion": version, "index": -1})
        files[f"checkpoints/{job}-1/offsets/0"] = f"v1\n{{}}\n{offset}"
        files[f"checkpoints/{job}-1/commits/0"] = "v1\n{}"
    return MemoryFiles(files)


def waiting(*, has_rows: bool = False) -> Any:
    status = SimpleNamespace(message=lambda: "Waiting for next trigger", isDataAvailable=lambda: has_rows)
    return SimpleNamespace(_jsq=SimpleNamespace(status=lambda: status))


def test_without_tables_all_jobs_start_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert first_batches(monkeypatch, stored(0), tables=()).stages(QUICK) == []


def test_quick_jobs_with_unread_rows_start_before_the_job_that_writes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    start = first_batches(monkeypatch, stored(3, traffic=3, status_codes=2))
    assert start.stages(QUICK) == [{"traffic", "status_codes"}, {"events"}]


def test_if_everything_is_read_the_job_that_writes_the_next_rows_starts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    start = first_batches(monkeypatch, stored(3, traffic=3, status_codes=3))
    assert start.stages(QUICK) == [{"events", "traffic", "status_codes"}, set()]


def test_a_job_has_nothing_unless_rows_are_stored_or_about_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    start = first_batches(monkeypatch, stored(3, traffic=3, status_codes=2))
    assert not start.has_nothing("traffic", None, ())
    assert not start.has_nothing("traffic", waiting(has_rows=True), ())
    assert start.has_nothing("traffic", waiting(), ("status_codes",))
    assert not start.has_nothing("traffic", waiting(), ("events",))
    assert not start.has_nothing("status_codes", waiting(), ())
    assert start.has_nothing("events", waiting(), ())
