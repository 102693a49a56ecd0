"""Report the progress of jobs: to a topic, a file for each job, the table `runs`, and Prometheus.

The topic `headrace.pipeline.progress` is compacted and keyed by job. `headrace pipeline status` prints the files
`<checkpoints>/status/<job>.json`; `job-<job>.prom` beside them is for the node exporter's textfile collector.
"""

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, Message, Producer
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from headrace.pipeline.engine.files import Files
from headrace.pipeline.engine.monitoring import runs
from headrace.pipeline.engine.monitoring.runs import Runs
from headrace.pipeline.engine.monitoring.status import directory
from headrace.pipeline.engine.progress import Progress, advanced, metrics
from headrace.pipeline.engine.query import Query
from headrace.pipeline.engine.supervision import ENDED, Standing, State
from headrace.pipeline.spec.client_settings import Cluster

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

TOPIC: Final = "headrace.pipeline.progress"
_HEARTBEAT_S: Final = 5.0

log = logging.getLogger(__name__)


class Reporter:
    """Writes the progress of each job when it changes, and every 5 s as a heartbeat."""

    def __init__(
        self,
        files: Files,
        checkpoints: str,
        cluster: Cluster,
        versions: Mapping[str, int],
        *,
        runs: Runs,
        topic: str = TOPIC,
    ) -> None:
        """`versions` are the versions of the driver's jobs. Counts continue from the files of an earlier driver."""
        self._files = files
        self._runs = runs
        self._topic = topic
        self._directory = directory(checkpoints)
        self._producer = Producer(cluster.confluent("producer"), logger=log)
        self._written: dict[str, tuple[Progress, float]] = {}
        self._seen: dict[str, tuple[str, int]] = {}
        self._failed_at: dict[str, tuple[float, str]] = {}
        self._now = {job: self._resumed(job, version) for job, version in versions.items()}

    def _resumed(self, job: str, version: int) -> Progress:
        text = self._files.read(f"{self._directory}/{job}.json")
        new = Progress(job=job, version=version, state=State.BLOCKED)
        try:
            earlier = Progress(**json.loads(text)) if text else new
        except (ValueError, TypeError):
            log.warning("%s/%s.json is damaged: late and quarantined rows are counted from 0", self._directory, job)
            return new
        return replace(earlier, state=State.BLOCKED) if earlier.version == version else new

    def watch(self, job: str, standing: Standing, query: Query | None, running: "StreamingQuery | None") -> None:
        """Write the job's progress if it has changed or is 5 s old. Raises OSError, KafkaException or Spark's error."""
        now = self._now[job]
        if running is not None and query is not None:
            now = self._with_batches(now, query, running)
        now = self._with_standing(now, standing)
        self._now[job] = now
        written, at = self._written.get(job, (None, 0.0))
        if now != written or (standing.state not in ENDED and time.monotonic() - at > _HEARTBEAT_S):
            self._write(now)
            self._written[job] = (now, time.monotonic())
        self._runs.flush_if_due()

    def _with_batches(self, now: Progress, query: Query, running: "StreamingQuery") -> Progress:
        # PySpark would convert the Java object with a hundred calls.
        java: Any = running._jsq
        last = java.lastProgress()
        if last is None:
            return now
        run, seen = self._seen.get(now.job, ("", -1))
        this_run, number = str(last.runId().toString()), int(last.batchId())
        if (run, seen) == (this_run, number):
            return now
        after = seen if run == this_run else -1
        for report in java.recentProgress() if number > after + 1 else [last]:
            batch = json.loads(report.json())
            # Spark also reports triggers without a batch, with the number of the next one.
            if after < batch["batchId"] and "addBatch" in batch["durationMs"]:
                before, now = now, advanced(now, batch, query.measured.get(batch["batchId"]))
                self._runs.add(before, now, batch)
                after = batch["batchId"]
        self._seen[now.job] = (this_run, after)
        return now

    def _with_standing(self, now: Progress, standing: Standing) -> Progress:
        seen, failed_at = self._failed_at.get(now.job, (None, now.failed_at))
        has_failed = bool(standing.failures) and standing.failures[-1] != seen
        if has_failed:
            failed_at = _iso(datetime.now(UTC))
            self._failed_at[now.job] = (standing.failures[-1], failed_at)
        retry = None
        if standing.retry_at is not None:
            retry = (None if has_failed else now.next_retry) or _iso(
                datetime.now(UTC) + timedelta(seconds=standing.retry_at - time.monotonic())
            )
        return replace(
            now,
            state=standing.state,
            failures=len(standing.failures),
            last_failure=standing.reason or now.last_failure,
            failed_at=failed_at,
            next_retry=retry,
        )

    def _write(self, progress: Progress) -> None:
        text = json.dumps(asdict(replace(progress, updated=_iso(datetime.now(UTC)))))
        self._files.write(f"{self._directory}/{progress.job}.json", text)
        # A file for each job, because several drivers may share the lake.
        self._files.write(f"{self._directory}/job-{progress.job}.prom", metrics({progress.job: progress}))
        try:
            delivered = partial(_delivered, progress.job)
            self._producer.produce(self._topic, text.encode(), progress.job.encode(), on_delivery=delivered)
        except BufferError:
            log.warning("The progress of job %s cannot be published: the producer's queue is full", progress.job)
        self._producer.poll(0)

    def close(self) -> None:
        """Publish and store pending progress. Stop waiting for brokers after 5 s."""
        self._producer.flush(5.0)
        try:
            self._runs.flush()
        except (Py4JError, PySparkException) as error:
            log.warning("The last batches are missing from the table %s: %s", runs.TABLE, error)


def _delivered(job: str, error: KafkaError | None, _: Message) -> None:
    if error is not None:
        log.warning("The progress of job %s could not be published: %s", job, error)


def _iso(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
