"""A lake for tests: tables in a temporary directory, and topics in a broker of this process."""

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from headrace.pipeline import requirements
from headrace.pipeline.engine import session
from headrace.pipeline.engine.query import Query, Surroundings
from headrace.pipeline.engine.tables import lake as tables
from headrace.pipeline.engine.topics import Topics
from headrace.pipeline.errors import PipelineError
from headrace.pipeline.jobs.events import events
from headrace.pipeline.spec import client_settings
from headrace.pipeline.spec.client_settings import Cluster
from headrace.pipeline.spec.deployment import Deployment, JobSettings
from headrace.pipeline.spec.jobs import Additive, Changelog, Job, Publish, Table, TableOutput, job_of
from headrace.testing import Broker

Records: TypeAlias = Sequence[str | bytes | None] | DataFrame
"""Values of records of the source topic, or rows of the source table. For jobs that read `events`, lines of an access
log, which the job `events` parses first."""


KILL_POINTS: Final = ("before-ledger", "after-table", "mid-publish", "before-commit")
"""Points at which a batch can be killed. Only jobs that write to topics reach the last two."""
TOPIC: Final = "records"
"""The source topic."""
_EVENTS: Final = "events"
_TIMEOUT_S: Final = 30.0


class KilledError(Exception):
    """The job was killed, as the test requested."""


@dataclass(frozen=True, slots=True)
class Change:
    """A record of a changelog. Its value is the row; None if the row was deleted."""

    key: str | None
    value: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Result:
    """The contents of a job's tables and topics: rows by table, and changes by topic. The quarantine is not included.

    The order of rows is undefined. Rows of additive tables are totals, with estimates in place of sketches.
    """

    tables: Mapping[str, list[dict[str, Any]]]
    topics: Mapping[str, list[Change]]


class Lake:
    """An empty lake, deleted at the end of a `with` block. Jobs keep their progress from one run to the next.

    The first lake of a process starts Spark; all lakes share it.
    """

    def __init__(self, *, partitions: int = 2) -> None:
        """Create a lake; its source topic has `partitions` partitions. Raises PipelineError without pyspark or Java."""
        requirements.check()
        self._directory = Path(tempfile.mkdtemp(prefix="headrace-lake-"))
        self.partitions = partitions
        self._written = 0
        self._broker = Broker({"num.partitions": partitions})
        self.spark = SparkSession.getActiveSession() or _new_session()
        self.tables = tables.Lake(self.spark, str(self._directory))

    def __enter__(self) -> Self:
        self._broker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._broker.stop()
        shutil.rmtree(self._directory, ignore_errors=True)

    @property
    def cluster(self) -> Cluster:
        """The client settings for connecting to the broker."""
        return client_settings.plain(self._broker.bootstrap)

    @property
    def checkpoints(self) -> str:
        return f"{self._directory}/_checkpoints"

    def run_once(
        self,
        job: "Callable[..., Any] | Job",
        records: Records | None = None,
        *,
        params: object = None,
        kill_at: str | None = None,
    ) -> Result:
        """Add `records` to the job's source, run the job on the records it has not read yet, and return its results.

        `job` is the decorated function, `params` an instance of the job's parameter class. `kill_at` is one of
        KILL_POINTS: the first batch that reaches it ends with KilledError, and the next run repeats the batch. As in
        production, a stateful job leaves out late rows, and with `mode="append"` it writes a row only after the
        watermark has passed the row's window. Raises PipelineError, or whatever the job raises.
        """
        if kill_at is not None and kill_at not in KILL_POINTS:
            raise PipelineError(f"'{kill_at}' is not a kill point: use {', '.join(KILL_POINTS)}")
        definition = definition_of(job)
        if records is not None:
            self.add(definition, records)

        def reached(point: str) -> None:
            if point == kill_at:
                raise KilledError(point)

        self.run(definition, params, reached=reached)
        return self.result(definition)

    def add(self, job: "Callable[..., Any] | Job", records: Records) -> None:
        """Append records to the job's source in order; in a topic, to the partitions in turn.

        Raises PipelineError for records of the wrong kind.
        """
        source = definition_of(job).source
        if isinstance(records, DataFrame):
            if not isinstance(source, Table):
                raise PipelineError("records of a topic must be strings or bytes")
            self._append(source.name, records)
            return
        if isinstance(source, Table) and source.name != _EVENTS:
            raise PipelineError(f"rows of table {source.name} must be a DataFrame; only `events` accepts lines")
        self._produce(records)
        if isinstance(source, Table):
            self.run(definition_of(events))

    def result(self, job: "Callable[..., Any] | Job") -> Result:
        """Return the contents of a job's tables and topics."""
        definition = definition_of(job)
        return Result(
            tables={
                output.table: [row.asDict(recursive=True) for row in _readable(rows, output).collect()]
                for output in definition.outputs
                if not isinstance(output, Changelog | Publish) and (rows := self.stored(output)) is not None
            },
            topics={
                output.topic: self.changes(output.topic)
                for output in definition.outputs
                if isinstance(output, Changelog | Publish)
            },
        )

    def stored(self, output: TableOutput) -> DataFrame | None:
        """Return the rows of a table, or the totals of an additive one; None if nothing was written."""
        if not self.tables.exists(output.table):
            return None
        return self.tables.view(output)

    def changes(self, topic: str) -> list[Change]:
        """Return the committed records of a topic, partition by partition."""
        settings = {"bootstrap.servers": self._broker.bootstrap, "group.id": "test", "enable.auto.commit": False}
        consumer = Consumer({**settings, "enable.partition.eof": True, "isolation.level": "read_committed"})
        found: list[tuple[int, Change]] = []
        try:
            partitions = consumer.list_topics(topic, timeout=_TIMEOUT_S).topics[topic].partitions
            consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
            reading = set(partitions)
            while reading:
                message = consumer.poll(_TIMEOUT_S)
                if message is None:
                    raise TimeoutError(f"topic {topic} was not read to its end: no record for {_TIMEOUT_S:.0f} s")
                error, partition = message.error(), message.partition() or 0
                if error is None:
                    found.append((partition, Change(_text(message.key()), _row(message.value()))))
                elif error.code() == KafkaError._PARTITION_EOF:
                    reading.discard(partition)
                else:
                    raise KafkaException(error)
        finally:
            consumer.close()
        return [change for _, change in sorted(found, key=lambda each: each[0])]

    def run(
        self,
        job: Job,
        params: object = None,
        *,
        max_rows: int | None = None,
        reached: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Run a job on the records it has not read yet. Raises whatever the job raises.

        A batch has about `max_rows` rows, if given; batches of a table are whole files. `reached` is called with the
        name of each kill point.
        """
        around = Surroundings(spark=self.spark, lake=self.tables, cluster=self.cluster, checkpoints=self.checkpoints)
        self._create_topic()
        values = job.params() if params is None else params
        query = Query(job, values, JobSettings(topic=TOPIC, max_rows=max_rows), around, reached=reached)
        running = query.start(once=True)
        try:
            running.awaitTermination()
        except StreamingQueryException as error:
            raise query.failed(running) or error from None
        finally:
            query.stop(running)

    def _create_topic(self) -> None:
        client = {"bootstrap.servers": self._broker.bootstrap}
        Topics(client).create(TOPIC, {"retention.ms": "-1"}, partitions=self.partitions)

    def _produce(self, records: Sequence[str | bytes | None]) -> None:
        self._create_topic()
        producer = Producer({"bootstrap.servers": self._broker.bootstrap})
        for record in records:
            value = record.encode() if isinstance(record, str) else record
            producer.produce(TOPIC, value, partition=self._written % self.partitions)
            self._written += 1
        if producer.flush(_TIMEOUT_S):
            raise TimeoutError(f"the broker did not acknowledge all records within {_TIMEOUT_S:.0f} s")

    def _append(self, table: str, rows: DataFrame) -> None:
        last = self.tables.last_batch(table, "test")
        batch = 0 if last is None else last + 1
        self.tables.append(table, rows.coalesce(1), writer="test", batch=batch, metadata={})


def definition_of(job: "Callable[..., Any] | Job") -> Job:
    """Return the job of a decorated function. Raises PipelineError for any other object."""
    definition = job if isinstance(job, Job) else job_of(job)
    if definition is None:
        raise PipelineError(f"{job!r} is not a job: decorate it with @job")
    return definition


def _new_session() -> SparkSession:
    directory = tempfile.mkdtemp(prefix="headrace-spark-")
    return session.build(Deployment.default(lake=directory), name="headrace tests", few_rows=True)


def _readable(rows: DataFrame, output: TableOutput) -> DataFrame:
    sketches = output.sketches if isinstance(output, Additive) else ()
    return rows.withColumns({name: sf.hll_sketch_estimate(name) for name in sketches}) if sketches else rows


def _text(value: str | bytes | None) -> str | None:
    return value.decode() if isinstance(value, bytes) else value


def _row(value: str | bytes | None) -> dict[str, Any] | None:
    return None if value is None else json.loads(value)
