"""Run jobs as streaming queries."""

import json
import logging
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headrace.pipeline.jobs.job import Job
from headrace.pipeline.jobs.place import Place
from headrace.pipeline.jobs.sink import Cluster, Sink
from headrace.pipeline.topics import Topics
from headrace.pipeline.transforms import lines

GROUP_PREFIX: Final = "headrace-"
_TRIGGER: Final = "1 second"
_PARTITIONS: Final = 2

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of a job: its last batch, the next offsets to read, and the records published by this process."""

    job: str
    batch: int
    offsets: dict[int, int]
    published: int


class Runner:
    """The queries of several jobs on one topic."""

    def __init__(self, spark: SparkSession, cluster: Cluster, topic: str, place: Place) -> None:
        self._spark = spark
        self._cluster = cluster
        self._topic = topic
        self._place = place
        self._topics = Topics(cluster.bootstrap)
        self._queries: dict[str, StreamingQuery] = {}
        self._published: dict[str, int] = {}
        self._seen: dict[str, int] = {}
        self._late_rows_possible = False

    def start(self, jobs: Iterable[Job]) -> None:
        """Start all jobs from their checkpoints, or from the beginning of the topic."""
        for job in jobs:
            self._create_topics(job)
            self._late_rows_possible |= Path(self._place.checkpoint(job.name)).exists()
            self._queries[job.name] = self._start(job)

    def _create_topics(self, job: Job) -> None:
        for output in job.outputs:
            if output.topic:
                # Rows with keys replace each other: late readers need only the last one.
                policy = "compact" if output.keys else "delete"
                config = {"cleanup.policy": policy, "retention.ms": "-1"}
                self._topics.create(self._cluster.prefix + output.topic, partitions=_PARTITIONS, config=config)

    def _start(self, job: Job) -> StreamingQuery:
        sinks = [
            Sink(output, f"{job.name}/{output.table}", self._place.table(output.table), self._cluster)
            for output in job.outputs
        ]

        def write(rows: DataFrame, batch: int) -> None:
            # Without the cache, every table and topic would compute the batch again.
            rows.persist()
            try:
                for sink, output in zip(sinks, job.outputs, strict=True):
                    written = sink.write(output.select(rows), batch)
                    self._published[job.name] = self._published.get(job.name, 0) + written
            finally:
                rows.unpersist()

        return (
            job.transform(lines.parsed(self._records()))
            .writeStream.queryName(job.name)
            .outputMode(job.output_mode)
            .option("checkpointLocation", self._place.checkpoint(job.name))
            .trigger(processingTime=_TRIGGER)
            .foreachBatch(write)
            .start()
        )

    def _records(self) -> DataFrame:
        """Read the topic as a stream. Batches have no limit, which would cut partitions at different event times."""
        return (
            self._spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self._cluster.bootstrap)
            .option("subscribe", self._cluster.prefix + self._topic)
            .option("startingOffsets", "earliest")
            .load()
        )

    def poll(self) -> Iterator[Progress]:
        """Yield new progress, committed to the job's consumer group. Raises the exception that ended a query."""
        for name, query in self._queries.items():
            failure = query.exception()
            if failure is not None:
                raise failure
            progress = query.lastProgress
            if progress is None or self._seen.get(name) == progress["batchId"] or not progress["numInputRows"]:
                continue
            missed_one = progress["batchId"] > self._seen.get(name, -1) + 1
            dropped = sum(operator["numRowsDroppedByWatermark"] for operator in progress["stateOperators"])
            self._late_rows_possible |= missed_one or dropped > 0
            self._seen[name] = progress["batchId"]
            offsets = _end_offsets(progress["sources"][0]["endOffset"])
            self._commit(name, offsets)
            yield Progress(job=name, batch=progress["batchId"], offsets=offsets, published=self._published.get(name, 0))

    def _commit(self, job: str, offsets: dict[int, int]) -> None:
        """Commit offsets for monitoring. The checkpoint is what counts, so a failure is only logged."""
        try:
            group = self._cluster.prefix + GROUP_PREFIX + job
            self._topics.commit(group, self._cluster.prefix + self._topic, offsets)
        except KafkaException as error:
            log.warning("Cannot commit the progress of %s to its consumer group: %s", job, error)

    @property
    def late_rows_possible(self) -> bool:
        """True if rows may have come too late for a query; unknown for earlier processes, hence True."""
        return self._late_rows_possible

    def drain(self) -> threading.Thread:
        """Return a thread that ends when everything now in the topic has been processed."""

        def wait() -> None:
            for query in self._queries.values():
                try:
                    query.processAllAvailable()
                except StreamingQueryException:
                    return  # raised by `poll`

        thread = threading.Thread(target=wait, name="drain", daemon=True)
        thread.start()
        return thread

    def stop(self) -> None:
        """Stop all queries. Interrupted batches are repeated at the next start."""
        for query in self._queries.values():
            query.stop()
        self._queries.clear()


def _end_offsets(offset: str | dict[str, dict[str, int]]) -> dict[int, int]:
    """Parse Spark's `{topic: {partition: offset}}` of a source with one topic."""
    value: dict[str, dict[str, int]] = json.loads(offset) if isinstance(offset, str) else offset
    return {int(partition): end for partitions in value.values() for partition, end in partitions.items()}
