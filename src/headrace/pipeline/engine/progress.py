"""The progress of a job: its failures, and measurements of its last batch by Spark and the query. Pure."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from headrace.pipeline.engine.supervision import State


@dataclass(slots=True, kw_only=True)
class Measured:
    """A query's own measurements of a batch: milliseconds by phase, and rows."""

    published: int = 0
    late: int = 0
    quarantined: int = 0
    phases_ms: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.phases_ms[name] = self.phases_ms.get(name, 0) + round((time.perf_counter() - started) * 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The state of a job. Times are ISO 8601 in UTC; late and quarantined rows are counted from its first batch."""

    job: str
    version: int
    state: str
    updated: str = ""
    batch: int | None = None
    input_rows: int = 0
    rows_per_s: float = 0.0
    lag: int | None = None
    """Unread records in the source topics after the last batch; None if the source is a table."""
    lag_by_partition: Mapping[str, int] = field(default_factory=dict)
    """By `topic/partition`."""
    watermark: str | None = None
    state_rows: int = 0
    state_bytes: int = 0
    late_rows: int = 0
    quarantined_rows: int = 0
    published: int = 0
    durations_ms: Mapping[str, int] = field(default_factory=dict)
    """Phases of the last batch: `batch` (the whole batch), `compute`, `ledger`, `tables`, `topics`, and Spark's own."""
    failures: int = 0
    last_failure: str | None = None
    failed_at: str | None = None
    next_retry: str | None = None


_OF_SPARK: Final = {
    "latestOffset": "offsets",
    "queryPlanning": "planning",
    "walCommit": "log",
    "triggerExecution": "batch",
}


def advanced(before: Progress, batch: Mapping[str, Any], measured: Measured | None) -> Progress:
    """Return the progress after a batch, from Spark's report and the query's own measurements."""
    lags: dict[str, int] = {}
    has_topics = False
    for source in batch["sources"]:
        ends, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
        has_topics |= bool(latest)
        lags |= {place: max(0, end - ends.get(place, 0)) for place, end in latest.items()}
    operators = batch.get("stateOperators") or []
    durations = {name: int(batch["durationMs"][key]) for key, name in _OF_SPARK.items() if key in batch["durationMs"]}
    own = measured or Measured()
    return replace(
        before,
        batch=batch["batchId"],
        input_rows=batch["numInputRows"],
        rows_per_s=round(batch.get("processedRowsPerSecond") or 0.0, 1),
        lag=sum(lags.values()) if has_topics else None,
        lag_by_partition=lags,
        watermark=(batch.get("eventTime") or {}).get("watermark"),
        state_rows=sum(operator["numRowsTotal"] for operator in operators),
        state_bytes=sum(operator["memoryUsedBytes"] for operator in operators),
        late_rows=before.late_rows + own.late + sum(item["numRowsDroppedByWatermark"] for item in operators),
        quarantined_rows=before.quarantined_rows + own.quarantined,
        published=own.published,
        durations_ms={**durations, **own.phases_ms},
    )


def _offsets(value: Any) -> dict[str, int]:
    """Parse the offset of a Spark source. Return offsets by `topic/partition`; empty if the source is a table."""
    found = json.loads(value) if isinstance(value, str) and value.startswith("{") else value
    if not isinstance(found, dict) or not all(isinstance(at, dict) for at in found.values()):
        return {}
    return {f"{topic}/{partition}": end for topic, at in found.items() for partition, end in at.items()}


def metrics(jobs: Mapping[str, Progress]) -> str:
    """Return metrics of the jobs in the Prometheus text format."""
    registry = CollectorRegistry()
    values: dict[str, tuple[str, Any]] = {
        "batch": ("Number of the last batch.", lambda job: job.batch),
        "lag_records": ("Unread records in the source topics after the last batch.", lambda job: job.lag),
        "rows_per_second": ("Rate of the last batch.", lambda job: job.rows_per_s),
        "seconds_per_row": (
            "Duration of the last batch per input row.",
            lambda job: job.durations_ms.get("batch", 0) / (1000 * job.input_rows) if job.input_rows else None,
        ),
        "watermark_seconds": (
            "Watermark of the query, in seconds since 1970.",
            lambda job: datetime.fromisoformat(job.watermark).timestamp() if job.watermark else None,
        ),
        "batch_seconds": ("Duration of the last batch.", lambda job: job.durations_ms.get("batch", 0) / 1000),
        "state_rows": ("Rows in the state of the query.", lambda job: job.state_rows),
        "state_bytes": ("Memory of the state of the query.", lambda job: job.state_bytes),
        "late_rows": ("Rows that came later than the job permits.", lambda job: job.late_rows),
        "quarantined_rows": ("Rows that the job put into the quarantine.", lambda job: job.quarantined_rows),
        "recent_failures": ("Failures in the last ten minutes.", lambda job: job.failures),
        "failed": ("1 if the job failed and will not be restarted.", lambda job: int(job.state == State.FAILED)),
    }
    for name, (text, value) in values.items():
        gauge = Gauge(f"headrace_pipeline_{name}", text, ["job"], registry=registry)
        for job, progress in jobs.items():
            if (found := value(progress)) is not None:
                gauge.labels(job).set(found)
    return generate_latest(registry).decode()
