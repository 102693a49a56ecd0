"""Show what the jobs do: in a topic, in a file for each job, and as metrics for Prometheus.

Topic `headrace.pipeline.progress` is compacted and keyed by job; `<checkpoints>/status/<job>.json` is what
`headrace pipeline status` prints, and `<checkpoints>/status/metrics.prom` is for the node exporter's textfile
collector.
"""

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, Message, Producer
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from headrace.pipeline.engine.files import Files
from headrace.pipeline.engine.query import Measured, Query
from headrace.pipeline.engine.status import directory
from headrace.pipeline.engine.supervision import ENDED, Standing, State
from headrace.pipeline.spec.client_settings import Cluster

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

TOPIC: Final = "headrace.pipeline.progress"
_HEARTBEAT_S: Final = 5.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The state of a job. Times are ISO 8601 in UTC; late and quarantined rows count from the job's first batch."""

    job: str
    version: int
    state: str
    updated: str = ""
    batch: int | None = None
    input_rows: int = 0
    rows_per_s: float = 0.0
    lag: int | None = None
    """Records in the source topics after the last batch; None for a table as source."""
    lag_by_partition: Mapping[str, int] = field(default_factory=dict)
    """By `topic/partition`."""
    watermark: str | None = None
    state_rows: int = 0
    state_bytes: int = 0
    late_rows: int = 0
    quarantined_rows: int = 0
    published: int = 0
    durations_ms: Mapping[str, int] = field(default_factory=dict)
    """Of the last batch: `batch` for all of it, `compute`, `ledger`, `tables`, `topics`, and Spark's own parts."""
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
    """Return the progress after a batch, from Spark's report of it and what the query measured itself."""
    lags: dict[str, int] = {}
    has_topics = False
    for source in batch["sources"]:
        ends, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
        has_topics |= bool(latest)
        lags |= {place: max(0, end - ends.get(place, 0)) for place, end in latest.items()}
    operators = batch.get("stateOperators") or []
    durations = {name: int(batch["durationMs"][key]) for key, name in _OF_SPARK.items() if key in batch["durationMs"]}
    own = measured if measured is not None and measured.batch == batch["batchId"] else Measured(batch=-1)
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
        late_rows=before.late_rows + sum(operator["numRowsDroppedByWatermark"] for operator in operators),
        quarantined_rows=before.quarantined_rows + own.quarantined,
        published=own.published,
        durations_ms={**durations, **own.phases_ms},
    )


def _offsets(value: Any) -> dict[str, int]:
    """Return offsets of topics by `topic/partition`; nothing for those of a table."""
    found = json.loads(value) if isinstance(value, str) and value.startswith("{") else value
    if not isinstance(found, dict) or not all(isinstance(at, dict) for at in found.values()):
        return {}
    return {f"{topic}/{partition}": end for topic, at in found.items() for partition, end in at.items()}


class Reporter:
    """Writes the progress of all jobs whenever it changes, and every 5 s as a sign of life."""

    def __init__(self, files: Files, checkpoints: str, cluster: Cluster, versions: Mapping[str, int]) -> None:
        """`versions` are those of the driver's jobs. Counts go on from the files of an earlier driver."""
        self._files = files
        self._directory = directory(checkpoints)
        self._producer = Producer(cluster.confluent("producer"), logger=log)
        self._written: dict[str, tuple[Progress, float]] = {}
        self._seen: dict[str, tuple[str, int]] = {}
        self._failed_at: dict[str, tuple[int, str]] = {}
        self._now = {job: self._resumed(job, version) for job, version in versions.items()}

    def _resumed(self, job: str, version: int) -> Progress:
        text = self._files.read(f"{self._directory}/{job}.json")
        new = Progress(job=job, version=version, state=State.BLOCKED)
        try:
            earlier = Progress(**json.loads(text)) if text else new
        except (ValueError, TypeError):
            log.warning("%s/%s.json is damaged: late and quarantined rows count from 0", self._directory, job)
            return new
        return replace(earlier, state=State.BLOCKED) if earlier.version == version else new

    def watch(self, job: str, standing: Standing, query: Query | None, running: "StreamingQuery | None") -> None:
        """Write the job's progress if it has changed."""
        now = self._now[job]
        if running is not None and query is not None:
            now = self._with_batches(now, query, running)
        now = self._with_standing(now, standing)
        self._now[job] = now
        written, at = self._written.get(job, (None, 0.0))
        if now != written or (standing.state not in ENDED and time.monotonic() - at > _HEARTBEAT_S):
            self._write(now)
            self._written[job] = (now, time.monotonic())

    def _with_batches(self, now: Progress, query: Query, running: "StreamingQuery") -> Progress:
        last: Any = running.lastProgress
        run, seen = self._seen.get(now.job, ("", -1))
        if last is None or (run, seen) == (str(running.runId), last["batchId"]):
            return now
        after = seen if run == str(running.runId) else -1
        missed = last["batchId"] > after + 1
        batches: list[Any] = running.recentProgress if missed else [last]
        for batch in batches:
            # Spark also reports triggers without data, with the number of the next batch.
            if after < batch["batchId"] and batch["numInputRows"]:
                now = advanced(now, batch, query.measured)
                after = batch["batchId"]
        self._seen[now.job] = (str(running.runId), after)
        return now

    def _with_standing(self, now: Progress, standing: Standing) -> Progress:
        failures, failed_at = self._failed_at.get(now.job, (0, now.failed_at))
        if len(standing.failures) != failures:
            failures, failed_at = len(standing.failures), _iso(datetime.now(UTC))
            self._failed_at[now.job] = (failures, failed_at)
        retry = None
        if standing.retry_at is not None:
            retry = now.next_retry or _iso(datetime.now(UTC) + timedelta(seconds=standing.retry_at - time.monotonic()))
        return replace(
            now,
            state=standing.state,
            failures=failures,
            last_failure=standing.reason or now.last_failure,
            failed_at=failed_at,
            next_retry=retry,
        )

    def _write(self, progress: Progress) -> None:
        text = json.dumps(asdict(replace(progress, updated=_iso(datetime.now(UTC)))))
        self._files.write(f"{self._directory}/{progress.job}.json", text)
        self._files.write(f"{self._directory}/metrics.prom", metrics(self._now))
        try:
            self._producer.produce(TOPIC, text.encode(), progress.job.encode(), on_delivery=_delivered)
        except BufferError:
            log.warning("The progress of %s is not published: the cluster does not answer", progress.job)
        self._producer.poll(0)

    def close(self) -> None:
        """Publish what is waiting; give up after 5 s."""
        self._producer.flush(5.0)


def _delivered(error: KafkaError | None, message: Message) -> None:
    if error is not None:
        log.warning("The progress of a job is not published: %s", error)


def metrics(jobs: Mapping[str, Progress]) -> str:
    """Return metrics of the jobs in Prometheus' text format."""
    registry = CollectorRegistry()
    values: dict[str, tuple[str, Any]] = {
        "batch": ("Number of the last batch.", lambda job: job.batch),
        "lag_records": ("Records in the source topics after the last batch.", lambda job: job.lag),
        "rows_per_second": ("Rate of the last batch.", lambda job: job.rows_per_s),
        "batch_seconds": ("Duration of the last batch.", lambda job: job.durations_ms.get("batch", 0) / 1000),
        "state_rows": ("Rows in the state of the query.", lambda job: job.state_rows),
        "state_bytes": ("Memory of the state of the query.", lambda job: job.state_bytes),
        "late_rows": ("Rows dropped because they came after the watermark.", lambda job: job.late_rows),
        "quarantined_rows": ("Rows in the quarantine.", lambda job: job.quarantined_rows),
        "recent_failures": ("Failures in the last ten minutes.", lambda job: job.failures),
        "failed": ("1 if the job is not started again.", lambda job: int(job.state == State.FAILED)),
    }
    for name, (text, value) in values.items():
        gauge = Gauge(f"headrace_pipeline_{name}", text, ["job"], registry=registry)
        for job, progress in jobs.items():
            if (found := value(progress)) is not None:
                gauge.labels(job).set(found)
    return generate_latest(registry).decode()


def _iso(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
