"""Jobs as running queries: started from their checkpoints, watched, told apart by name."""

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
    """What one job has done: the number of its last batch, the next offsets to read, records published so far.

    `published` counts since the start of this process; `offsets` is absolute.
    """

    job: str
    batch: int
    offsets: dict[int, int]
    published: int


class Runner:
    """The queries of several jobs over one topic."""

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
        """Start every job where its checkpoint says, from the beginning of the topic where there is none."""
        for job in jobs:
            self._create_topics(job)
            self._late_rows_possible |= Path(self._place.checkpoint(job.name)).exists()
            self._queries[job.name] = self._start(job)

    def _create_topics(self, job: Job) -> None:
        for output in job.outputs:
            if output.topic:
                # Rows with keys replace each other; only the last of each is of use to a reader who comes later.
                policy = "compact" if output.keys else "delete"
                config = {"cleanup.policy": policy, "retention.ms": "-1"}
                self._topics.create(self._cluster.prefix + output.topic, partitions=_PARTITIONS, config=config)

    def _start(self, job: Job) -> StreamingQuery:
        sinks = [
            Sink(output, f"{job.name}/{output.table}", self._place.table(output.table), self._cluster)
            for output in job.outputs
        ]

        def write(rows: DataFrame, batch: int) -> None:
            # Without the cache every table and topic would read the batch, and its state, again.
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
        """The topic as a stream. A batch takes all there is: a limit would cut partitions at different event times."""
        return (
            self._spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self._cluster.bootstrap)
            .option("subscribe", self._cluster.prefix + self._topic)
            .option("startingOffsets", "earliest")
            .load()
        )

    def poll(self) -> Iterator[Progress]:
        """What is new since the last call, committed to each job's consumer group; raises what ended a query."""
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
        """For people who watch lag. The checkpoint is what counts, so a failure is told and no more."""
        try:
            group = self._cluster.prefix + GROUP_PREFIX + job
            self._topics.commit(group, self._cluster.prefix + self._topic, offsets)
        except KafkaException as error:
            log.warning("The progress of %s is not committed to its consumer group: %s", job, error)

    @property
    def late_rows_possible(self) -> bool:
        """Whether some rows may have come too late for a query's state: what ran before this process is not known."""
        return self._late_rows_possible

    def drain(self) -> threading.Thread:
        """Start waiting until all that is in the topic now has been processed; the thread ends when it has."""

        def wait() -> None:
            for query in self._queries.values():
                try:
                    query.processAllAvailable()
                except StreamingQueryException:
                    return  # `poll` raises it to whoever can act on it

        thread = threading.Thread(target=wait, name="drain", daemon=True)
        thread.start()
        return thread

    def stop(self) -> None:
        """End all queries after what they are doing; a batch cut short here is repeated at the next start."""
        for query in self._queries.values():
            query.stop()
        self._queries.clear()


def _end_offsets(offset: str | dict[str, dict[str, int]]) -> dict[int, int]:
    """Spark's `{topic: {partition: offset}}` of a source with one topic."""
    value: dict[str, dict[str, int]] = json.loads(offset) if isinstance(offset, str) else offset
    return {int(partition): end for partitions in value.values() for partition, end in partitions.items()}
