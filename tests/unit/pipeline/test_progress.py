"""Progress of a job, from Spark's report of a batch; metrics; status files."""

import json
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from headrace.pipeline.engine.monitoring import runs, status
from headrace.pipeline.engine.progress import Measured, Progress, advanced, metrics
from headrace.pipeline.errors import PipelineError

NEW = Progress(job="views", version=1, state="running")
BATCH: dict[str, Any] = {
    "batchId": 7,
    "numInputRows": 500,
    "processedRowsPerSecond": 1234.56,
    "durationMs": {"triggerExecution": 405, "latestOffset": 12, "queryPlanning": 30, "addBatch": 320},
    "eventTime": {"watermark": "2015-05-17T10:05:00.000Z"},
    "stateOperators": [{"numRowsTotal": 40, "memoryUsedBytes": 2_000, "numRowsDroppedByWatermark": 3}],
    "sources": [
        {
            "startOffset": '{"log": {"0": 100, "1": 100}}',
            "endOffset": '{"log": {"0": 350, "1": 350}}',
            "latestOffset": '{"log": {"0": 360, "1": 350}}',
        }
    ],
}


def test_a_table_as_source_has_no_lag_in_records() -> None:
    offset = {"sourceVersion": 1, "reservoirId": "x", "reservoirVersion": 4}
    batch = {**BATCH, "sources": [{"endOffset": offset, "latestOffset": None}]}
    assert advanced(NEW, batch, None).lag is None


def test_lag_rate_watermark_and_state_are_those_of_the_batch() -> None:
    progress = advanced(NEW, BATCH, None)
    assert (progress.batch, progress.input_rows, progress.rows_per_s) == (7, 500, 1234.6)
    assert (progress.lag, progress.lag_by_partition) == (10, {"log/0": 10, "log/1": 0})
    assert progress.watermark == "2015-05-17T10:05:00.000Z"
    assert (progress.state_rows, progress.state_bytes) == (40, 2_000)


def test_late_and_quarantined_rows_add_up() -> None:
    measured = Measured(late=4, quarantined=2)
    progress = advanced(replace(NEW, late_rows=10, quarantined_rows=5), BATCH, measured)
    assert (progress.late_rows, progress.quarantined_rows) == (17, 7)


def test_the_row_of_a_batch_has_its_own_counts_and_its_cost() -> None:
    before = replace(NEW, late_rows=10, quarantined_rows=5)
    batch = {**BATCH, "id": "q", "timestamp": "2026-01-01T00:00:00.000Z"}
    found = runs.row(before, advanced(before, batch, Measured(quarantined=2)), batch)
    assert (found["batch"], found["late_rows"], found["quarantined_rows"]) == (7, 3, 2)
    assert (found["duration_ms"], found["us_per_row"]) == (405, 810)
    assert found["source_to"] == BATCH["sources"][0]["endOffset"]


def test_durations_name_the_phases_of_the_batch() -> None:
    measured = Measured(phases_ms={"ledger": 5, "tables": 250, "topics": 15})
    of_spark = {"offsets": 12, "planning": 30, "batch": 405}
    assert advanced(NEW, BATCH, measured).durations_ms == of_spark | measured.phases_ms


def test_metrics_name_job_and_value() -> None:
    lines = metrics({"views": advanced(NEW, BATCH, None)}).splitlines()
    assert 'headrace_pipeline_lag_records{job="views"} 10.0' in lines
    assert 'headrace_pipeline_failed{job="views"} 0.0' in lines
    assert 'headrace_pipeline_seconds_per_row{job="views"} 0.00081' in lines
    assert 'headrace_pipeline_watermark_seconds{job="views"} 1.4318571e+09' in lines
    assert 'headrace_pipeline_lag_records{job="views"}' not in metrics({"views": NEW})  # unknown


def write(directory: Path, progress: Progress) -> None:
    (directory / "status").mkdir(exist_ok=True)
    (directory / "status" / f"{progress.job}.json").write_text(json.dumps(asdict(progress)))


def test_a_running_job_without_a_sign_of_life_is_lost(tmp_path: Path) -> None:
    for job, state, updated in (
        ("alive", "running", "11:59:55"),
        ("dead", "running", "11:59:00"),
        ("dead while waiting", "waiting", "11:00:00"),
        ("stopped", "stopped", "11:00:00"),
        ("failed", "failed", "11:00:00"),
    ):
        write(tmp_path, replace(NEW, job=job, state=state, updated=f"2026-01-01T{updated}Z"))
    found = status.read(str(tmp_path), datetime(2026, 1, 1, 12, tzinfo=UTC))
    assert {job["job"]: job["state"] for job in found} == {
        "alive": "running",
        "dead": "lost",
        "dead while waiting": "lost",
        "stopped": "stopped",
        "failed": "failed",
    }


def test_status_reads_local_checkpoints_by_path_and_by_uri(tmp_path: Path) -> None:
    assert status.read(str(tmp_path), datetime.now(UTC)) == []
    write(tmp_path, replace(NEW, updated="2026-01-01T12:00:00Z"))
    for prefix in ("", "file:", "file://"):
        assert [job["job"] for job in status.read(f"{prefix}{tmp_path}", datetime.now(UTC))] == ["views"], prefix


def test_a_damaged_progress_is_named(tmp_path: Path) -> None:
    file = tmp_path / "status" / "views.json"
    file.parent.mkdir()
    for text in (
        "[]",
        "7",
        '{"updated": "2026-01-01T12:00:00Z"}',
        json.dumps({**asdict(NEW), "updated": "yesterday"}),
        json.dumps({**asdict(NEW), "updated": 5}),
        "[" * 100_000,
    ):
        file.write_text(text)
        with pytest.raises(PipelineError, match=f"^cannot read {file}: "):
            status.read(str(tmp_path), datetime.now(UTC))


def test_status_of_remote_checkpoints_names_the_topic() -> None:
    with pytest.raises(PipelineError, match=r"headrace consume team-headrace\.pipeline\.progress"):
        status.read("s3a://bucket/checkpoints", datetime.now(UTC), prefix="team-")
