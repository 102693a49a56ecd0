"""The streaming query of one job.

Every batch is written in the same order: ledger, tables, topics. Each step finds out by itself if an earlier attempt
has done it already, so that a batch can be repeated after a crash at any point.
"""

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

from headrace.pipeline.engine import additive, changelog, lateness, pruning, quarantine, snapshot, sources, topic_ids
from headrace.pipeline.engine.checkpoint import Checkpoint
from headrace.pipeline.engine.expectations import split
from headrace.pipeline.engine.files import Files
from headrace.pipeline.engine.lake import Lake
from headrace.pipeline.engine.ledger import Entry, Ledger, Offsets
from headrace.pipeline.engine.progress import Measured
from headrace.pipeline.engine.publishing import Batch, LedgerPublisher, Publisher, TransactionalPublisher
from headrace.pipeline.engine.topics import Topics
from headrace.pipeline.errors import PipelineError
from headrace.pipeline.spec import shape
from headrace.pipeline.spec.client_settings import Cluster
from headrace.pipeline.spec.deployment import JobSettings
from headrace.pipeline.spec.jobs import Additive, Append, Changelog, Job, Snapshot, Stateful, Table
from headrace.pipeline.spec.sharing import sharing

_GRACE_S: Final = 20.0
_POLL_S: Final = 0.05
_PLACE: Final = ("source_partition", "source_offset")
_LATE_COLUMNS: Final = frozenset({"topic_id", "source_partition", "source_offset", "event_time"})

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What all queries of a driver share. Without `transactions`, batches are published with the ledger, as they are if
    the cluster has no transactions.
    """

    spark: SparkSession
    lake: Lake
    cluster: Cluster
    checkpoints: str
    transactions: bool = True


def _pass(_: str) -> None:
    """Stand for a kill point at which nothing happens."""


class Query:
    """One job's query. A failed one is not started again: make a new object, as a new driver would."""

    def __init__(
        self,
        job: Job,
        params: object,
        settings: JobSettings,
        around: Surroundings,
        *,
        origin: str | None = None,
        source_output: Additive | None = None,
        reached: Callable[[str], None] = _pass,
    ) -> None:
        """`origin` is the topic to whose records the rows of a source table belong, `source_output` an additive one.

        `reached` is called with the name of each kill point: before-ledger, after-table, mid-publish, before-commit.
        Raises PipelineError for a job that cannot run.
        """
        self.job = job
        self.failure: Exception | None = None
        self.measured: Measured | None = None
        self._params = params
        self._settings = settings
        self._around = around
        self._origin = origin
        self._source_output = source_output
        self._reached = reached
        self._files = Files(around.spark)
        self._checkpoint = Checkpoint(self._files, around.checkpoints, job.name, job.version)
        self._ledger = Ledger(self._files, around.checkpoints, job.name)
        self._topics = Topics(around.cluster.confluent("admin"))
        self._ids: Mapping[str, str] = {}
        self._query_id = ""
        self._shares_rows = False
        self._kinds: Sequence[tuple[str, str]] = ()
        """Columns of the source table, if the batches have only some."""
        self._writer = f"{job.name}-{job.version}"
        self._tables = {output.table: output for output in job.outputs if not isinstance(output, Changelog)}
        self._changelogs = {output.topic: output.of for output in job.outputs if isinstance(output, Changelog)}
        self._publisher: Publisher | None = None
        self._stateful = any(isinstance(output, Stateful) for output in self._tables.values())
        if self._stateful and (job.expects or len(self._tables) > 1):
            raise PipelineError(
                f"job {job.name} is stateful: it has one table and no expectations. "
                "Put the expectations on the job that writes its source"
            )

    @property
    def source_topics(self) -> Sequence[str]:
        return () if isinstance(self.job.source, Table) else tuple((self._settings.topic or "").split(","))

    def start(self, *, once: bool) -> StreamingQuery:
        """Start from the checkpoint, or from the beginning. With `once`, end after everything available now.

        Raises PipelineError if the checkpoint does not belong to the job, its tables and its topics.
        """
        self._check()
        for topic, table in self._changelogs.items():
            output = self._tables[table]
            # Rows with keys replace each other: late readers need only the last one.
            policy = "delete" if isinstance(output, Append) or not output.keys else "compact"
            self._topics.create(topic, {"cleanup.policy": policy, "retention.ms": "-1"})
        self._ids = self._topics.ids(self.source_topics)
        last = self._ledger.last()
        if last is not None and last.version == self.job.version:
            topic_ids.check(last.topic_ids, self._ids, job=self.job.name)
        if isinstance(self.job.source, Table):
            rows = sources.rows(self._around.lake, self.job.source.name, self._settings.max_rows)
            rows = rows.select(*self._needed(self.job.source.name))
        else:
            options = self._around.cluster.spark_options()
            rows = sources.records(self._around.spark, options, self.source_topics, self._ids, self._settings.max_rows)
        mode = "append"
        for output in self._tables.values():
            if isinstance(output, Stateful):
                result = self.job.function(rows, self._params)
                rows, mode = result[output.table] if isinstance(result, dict) else result, output.mode
        trigger: dict[str, Any] = {"availableNow": True} if once else {"processingTime": self._settings.trigger}
        return (
            rows.writeStream.queryName(self.job.name)
            .outputMode(mode)
            .option("checkpointLocation", self._checkpoint.uri)
            .trigger(**trigger)
            .foreachBatch(self._write)
            .start()
        )

    def _needed(self, table: str) -> Sequence[str]:
        """Return the columns of the source table that a batch needs."""
        stored = self._around.lake.read(table)
        if self._stateful or self.job.expects:
            return stored.columns
        self._kinds = stored.dtypes
        if any(isinstance(output, Snapshot) for output in self._tables.values()):
            # A function of the table as it is then, not of the batch.
            return stored.columns[:1]
        used = {*pruning.needed(stored, lambda rows: self.job.function(rows, self._params)), *_PLACE}
        return [name for name in stored.columns if name in used]

    def _check(self) -> None:
        if not isinstance(self.job.source, Table) and not self._settings.topic:
            raise PipelineError(
                f'job {self.job.name} reads a topic, but the deployment names none: write topic = "NAME" under '
                f"[jobs.{self.job.name}]"
            )
        uri, now = f"{self._around.checkpoints}/shapes/{self._writer}.json", shape.shape_of(self.job)
        stored = self._files.read(uri)
        if stored is not None:
            shape.check_resumable(shape.from_json(json.loads(stored)), now)
        if self._checkpoint.query_id() is None:
            for table in self._tables:
                if self._around.lake.last_batch(table, self._writer) is not None:
                    raise PipelineError(
                        f"table {table} has batches of job {self.job.name}, version {self.job.version}, whose "
                        f"checkpoint {self._checkpoint.uri} is gone. Restore it, or raise the version of the job and "
                        "rename its tables"
                    )
        self._files.write(uri, json.dumps(now.as_json(), indent=1))

    def _write(self, rows: DataFrame, number: int) -> None:
        measured = Measured(batch=number)
        try:
            self._write_batch(rows, number, measured)
        except Exception as error:
            # Spark passes on only the text.
            self.failure = error
            raise
        self.measured = measured

    def _write_batch(self, rows: DataFrame, number: int, measured: Measured) -> None:
        self._reached("before-ledger")
        publisher = self._publisher or self._opened()
        if publisher.is_published(number):
            log.info("%s: batch %d was complete before the restart", self.job.name, number)
            return
        with ExitStack() as cached:
            if self._uses_rows_twice():
                _cache(cached, rows)
            with measured.phase("compute"):
                frames, bad = self._computed(rows, cached)
                before = self._latest_before(number)
                frames, latest = self._with_lateness(frames, before, cached)
            with measured.phase("ledger"):
                entry = self._recorded(number, latest)
                positions = self._positions(rows, entry)
            with measured.phase("tables"):
                gone = self._write_tables(frames, bad, entry, measured)
            self._reached("after-table")
            with measured.phase("topics"):
                if positions:
                    batch = Batch(
                        number=number, query=self._query_id, positions=positions, output_ends=entry.output_ends
                    )
                    measured.published = self._publish(publisher, batch, frames, gone)

    def _uses_rows_twice(self) -> bool:
        # Computing stateful rows twice would also update the state twice.
        has_positions = self._origin is not None and isinstance(self.job.source, Table)
        return self._stateful or has_positions or bool(self.job.expects)

    def _opened(self) -> Publisher:
        """Fence older drivers of the job. The query's id is known only now: Spark chooses it when the query starts."""
        self._query_id = self._checkpoint.query_id() or ""
        self._publisher = self._published_by(self._around.cluster)
        return self._publisher

    def _published_by(self, cluster: Cluster) -> Publisher:
        if self._around.transactions:
            transactional = TransactionalPublisher(cluster, self.job.name, self.job.version, reached=self._reached)
            try:
                transactional.open(self._query_id)
                return transactional
            except KafkaException as error:
                if error.args[0].code() != KafkaError._UNSUPPORTED_FEATURE:
                    raise
            log.warning(
                "%s: the cluster has no transactions. Results are still published once, but run the job in one driver "
                "only: nothing stops a second one",
                self.job.name,
            )
        plain = LedgerPublisher(cluster, self.job.name, reached=self._reached)
        plain.open(self._query_id)
        return plain

    def _computed(self, rows: DataFrame, cached: ExitStack) -> tuple[dict[str, DataFrame], DataFrame | None]:
        """Return the rows of each table, and the rows that do not meet the expectations."""
        if self._stateful:
            return dict.fromkeys(self._tables, rows), None
        if any(isinstance(output, Snapshot) for output in self._tables.values()):
            rows = self._view()
        elif self._kinds:
            rows = pruning.restored(rows, self._kinds)
        bad = None
        if self.job.expects:
            rows, bad = split(rows, self.job.expects)
        with sharing() as shared:
            result = self.job.function(rows, self._params)
        for each in shared:
            cached.callback(each.unpersist)
        self._shares_rows = bool(shared)
        if len(self._tables) > 1 and not shared:
            _cache(cached, rows)
        frames = result if isinstance(result, dict) else dict.fromkeys(self._tables, result)
        if frames.keys() != self._tables.keys():
            raise PipelineError(
                f"job {self.job.name} returned rows for {', '.join(frames) or 'no table'}; its outputs are "
                f"{', '.join(self._tables)}"
            )
        for table, output in self._tables.items():
            if table in self._changelogs.values() or isinstance(output, Snapshot):
                _cache(cached, frames[table])
        return frames, bad

    def _view(self) -> DataFrame:
        """Return the source table as it is now, which a snapshot is a function of."""
        lake, source = self._around.lake, self.job.source
        if self._source_output is not None:
            return lake.view(self._source_output)
        return lake.read(source.name if isinstance(source, Table) else "")

    def _latest_before(self, number: int) -> Mapping[str, int]:
        earlier = self._ledger.read(number - 1) if number else None
        return earlier.latest if earlier is not None and earlier.query == self._query_id else {}

    def _with_lateness(
        self, frames: dict[str, DataFrame], before: Mapping[str, int], cached: ExitStack
    ) -> tuple[dict[str, DataFrame], Mapping[str, int]]:
        """Add `late_by_s` to the rows that have an event time and a place in a topic."""
        latest: dict[str, int] = dict(before)
        for table, rows in frames.items():
            if set(rows.columns) >= _LATE_COLUMNS and "late_by_s" not in rows.columns:
                if not self._shares_rows:
                    _cache(cached, rows)
                latest |= lateness.latest(rows, before)
                frames = {**frames, table: lateness.with_lateness(rows, before)}
        return frames, latest

    def _recorded(self, number: int, latest: Mapping[str, int]) -> Entry:
        source_from, source_to = self._checkpoint.source_offsets(number)
        entry = Entry(
            job=self.job.name,
            version=self.job.version,
            query=self._query_id,
            batch=number,
            source_from=source_from,
            source_to=source_to,
            topic_ids=self._ids,
            output_ends=self._topics.end_offsets(self._changelogs),
            latest=latest,
        )
        return self._ledger.record(entry)

    def _positions(self, rows: DataFrame, entry: Entry) -> Offsets:
        """Return the offsets for the job's consumer group: the lag of the job, and the carrier of the proof."""
        if not isinstance(self.job.source, Table):
            ends: Any = entry.source_to
            return {topic: {int(partition): end for partition, end in at.items()} for topic, at in ends.items()}
        if self._origin and set(_PLACE) <= set(rows.columns):
            reached = rows.groupBy("source_partition").agg(sf.max("source_offset"))
            if ends := {partition: offset + 1 for partition, offset in reached.collect()}:
                return {self._origin: ends}
        # Rows without a place in a topic: the end of the first changelog before the batch.
        return {topic: {0: entry.output_ends[topic][0]} for topic in list(self._changelogs)[:1]}

    def _write_tables(
        self, frames: dict[str, DataFrame], bad: DataFrame | None, entry: Entry, measured: Measured
    ) -> Mapping[str, DataFrame]:
        """Write the rows of all tables. Replace those of a snapshot by the changed ones, and return those gone."""
        gone: dict[str, DataFrame] = {}
        lake, writer, batch = self._around.lake, self._writer, entry.batch
        about = {
            name: getattr(entry, name) for name in ("job", "version", "batch", "query", "source_from", "source_to")
        }
        for table, rows in list(frames.items()):
            output = self._tables[table]
            if table == quarantine.TABLE:
                self._quarantine(rows, writer, about, measured)
            elif isinstance(output, Additive):
                additive.append(lake, output, rows, writer=writer, batch=batch, metadata=about)
            elif isinstance(output, Snapshot):
                frames[table], gone[table] = snapshot.write(
                    lake, output, rows, writer=writer, batch=batch, metadata=about
                )
            elif isinstance(output, Append):
                lake.append(table, rows, writer=writer, batch=batch, metadata=about, partition_by=output.partition_by)
            elif output.keys:
                lake.merge(table, rows, output.keys, writer=writer, batch=batch, metadata=about)
            else:
                lake.append(table, rows, writer=writer, batch=batch, metadata=about)
        if bad is not None:
            self._quarantine(bad, f"{writer}/expectations", about, measured)
        return gone

    def _quarantine(self, bad: DataFrame, writer: str, about: Mapping[str, Any], measured: Measured) -> None:
        rows = quarantine.rows(bad, job=self.job.name, version=self.job.version).persist()
        try:
            count = rows.count()
            measured.quarantined += count
            if count:
                self._around.lake.append(quarantine.TABLE, rows, writer=writer, batch=about["batch"], metadata=about)
        finally:
            rows.unpersist()

    def _publish(
        self, publisher: Publisher, batch: Batch, frames: Mapping[str, DataFrame], gone: Mapping[str, DataFrame]
    ) -> int:
        changes: list[DataFrame] = []
        count = 0
        for topic, table in self._changelogs.items():
            output, rows = self._tables[table], frames[table]
            count += rows.count()
            if isinstance(output, Additive):
                rows = additive.totals(self._around.lake, output, rows)
            changes.append(changelog.records(rows, topic, output))
            if isinstance(output, Snapshot):
                changes.append(changelog.tombstones(gone[table], topic, output))
        if not changes:
            return publisher.publish(batch, (), 0)
        return publisher.publish(batch, changelog.collected(changelog.united(changes), count), count)

    def stop(self, running: StreamingQuery | None) -> None:
        """Stop after the running batch; after 20 s in the middle of it, so that the next start repeats it."""
        deadline = time.monotonic() + _GRACE_S
        while running is not None and running.isActive and running.status["isTriggerActive"]:
            if time.monotonic() > deadline:
                log.warning("%s: stopped in a batch, which the next start repeats", self.job.name)
                break
            time.sleep(_POLL_S)
        if running is not None:
            running.stop()
        if self._publisher is not None:
            self._publisher.close()


def _cache(stack: ExitStack, rows: DataFrame) -> None:
    """Keep the rows until the end of the batch; without that, every output would compute them again."""
    rows.persist()
    stack.callback(rows.unpersist)
