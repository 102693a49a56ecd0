"""The streaming query of one job.

Every batch is written in the same order: ledger, tables, topics. Each step detects if an earlier attempt has
completed it, so that a batch can be repeated after a crash at any point.
"""

import json
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headrace.pipeline.engine import sources, stateful
from headrace.pipeline.engine.compiling import Compiling
from headrace.pipeline.engine.exactly_once import changelog, positions, topic_ids
from headrace.pipeline.engine.exactly_once.checkpoint import Checkpoint
from headrace.pipeline.engine.exactly_once.claims import Claims
from headrace.pipeline.engine.exactly_once.ledger import Entry, Ledger, Offsets
from headrace.pipeline.engine.exactly_once.losses import AcceptedLosses
from headrace.pipeline.engine.exactly_once.publishing import Batch, LedgerPublisher, Publisher, TransactionalPublisher
from headrace.pipeline.engine.exactly_once.source_topics import SourceTopics
from headrace.pipeline.engine.files import Files
from headrace.pipeline.engine.java import has_stopped
from headrace.pipeline.engine.progress import Measured
from headrace.pipeline.engine.quality import lateness
from headrace.pipeline.engine.quality.expectations import split
from headrace.pipeline.engine.reached import Reached
from headrace.pipeline.engine.scheduling.turns import Opening, Turns
from headrace.pipeline.engine.tables import partials, pruning
from headrace.pipeline.engine.tables.delta_log import FollowedTable
from headrace.pipeline.engine.tables.lake import Lake
from headrace.pipeline.engine.topics import Topics, UnknownTopicError
from headrace.pipeline.engine.writing import Changes, TableWriter
from headrace.pipeline.errors import PipelineError, TemporaryError
from headrace.pipeline.spec import shape, sharing
from headrace.pipeline.spec.client_settings import Cluster
from headrace.pipeline.spec.deployment import JobSettings
from headrace.pipeline.spec.jobs import Append, Changelog, Job, Publish, Snapshot, Stateful, Table, TableOutput
from headrace.pipeline.spec.params import seconds_of

_GRACE_S: Final = 20.0
_POLL_S: Final = 0.05
_MEASURED: Final = 100
"""Batches whose measurements are kept: the number of progress reports that Spark keeps."""
_STATE_CHANGED: Final = re.compile(
    "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA|STATE_STORE_COLUMN_FAMILY_SCHEMA_INCOMPATIBLE|"
    "STATE_STORE_(?:KEY|VALUE)_(?:SCHEMA_NOT_COMPATIBLE|ROW_FORMAT_VALIDATION_FAILURE)|"
    "STATE_STORE_INVALID_(?:CONFIG_AFTER_RESTART|VALUE_SCHEMA_EVOLUTION|VARIABLE_TYPE_CHANGE)"
)
"""Spark's errors if a function's aggregates or operators differ from those in the checkpoint."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The session, tables and cluster that all queries of a driver share."""

    spark: SparkSession
    lake: Lake
    cluster: Cluster
    checkpoints: str
    prefix: str = ""
    """Precedes the names of changelogs, groups and transactional ids."""
    transactions: bool = True
    """False to publish with the ledger, as on clusters without transactions."""
    accepted: topic_ids.Accepted = field(default_factory=lambda: topic_ids.Accepted(()))
    losses: AcceptedLosses = field(default_factory=lambda: AcceptedLosses(()))
    claims: Claims | None = None
    """The claims of this driver; None if every query acts as a driver of its own."""
    turns: Turns | None = None
    """The turns of the jobs that read tables. If None, all batches run at once."""
    opening: Opening = field(default_factory=lambda: Opening(()))


def _pass(_: str) -> None:
    """Do nothing at a kill point."""


class Query:
    """One job's query. After a failure, create a new object instead of starting this one again."""

    def __init__(
        self,
        job: Job,
        params: object,
        settings: JobSettings,
        around: Surroundings,
        *,
        origin: str | None = None,
        source_output: TableOutput | None = None,
        reached: Callable[[str], None] = _pass,
    ) -> None:
        """`origin` is the topic that a source table's rows come from. `source_output` is the output that writes it.

        `reached` is called with the name of each kill point: before-ledger, after-table, mid-publish, before-commit.
        """
        self.job = job
        self.failure: Exception | None = None
        self.measured: dict[int, Measured] = {}
        """Measurements of the last batches, by number."""
        self._params = params
        self._settings = settings
        self._trigger = settings.trigger or job.trigger
        self._around = around
        self._source_output = source_output
        self._reached = reached
        self._compiling = Compiling()
        self._files = Files(around.spark)
        self._checkpoint = Checkpoint(self._files, around.checkpoints, job.name, job.version)
        self._ledger = Ledger(self._files, around.checkpoints, job.name)
        self._topics = Topics(around.cluster.confluent("admin"))
        self._sources = SourceTopics(
            job.name,
            job.version,
            () if isinstance(job.source, Table) else tuple((settings.topic or "").split(",")),
            topics=self._topics,
            ledger=self._ledger,
            checkpoint=self._checkpoint,
            accepted=around.accepted,
            losses=around.losses,
        )
        self._query_id = ""
        self._kinds: Sequence[tuple[str, str]] = ()
        """Columns of the source table and their types, if the batches have only some of them."""
        self._tables = {output.table: output for output in job.outputs if not isinstance(output, Changelog | Publish)}
        self._topics_only = {output.topic: output for output in job.outputs if isinstance(output, Publish)}
        self._outputs = {**self._tables, **self._topics_only}
        self._changelogs = {
            around.prefix + output.topic: output.of for output in job.outputs if isinstance(output, Changelog)
        } | {around.prefix + topic: topic for topic in self._topics_only}
        """By topic: the name of its table, or of its output without a table."""
        self._source: FollowedTable | None = None
        """The source table of a snapshot."""
        self._publisher: Publisher | None = None
        self._writer = TableWriter(
            around.lake, job, self._tables, origin=origin, published=frozenset(self._changelogs.values())
        )
        self._stateful = next((output for output in self._tables.values() if isinstance(output, Stateful)), None)

    def start(self, *, once: bool) -> StreamingQuery:
        """Start from the checkpoint, or from the beginning. With `once`, end after processing everything available now.

        Raises PipelineError if the checkpoint does not match the job, its tables or its topics, if another driver has
        claimed the job, or if Spark has stopped. Raises TemporaryError for a missing topic; but with `once`,
        PipelineError if the job has not read the topic before.
        """
        if has_stopped(self._around.spark):
            raise PipelineError("Spark has stopped, perhaps because it lost its master: start the driver again")
        self._check()
        if self._around.claims is not None:
            self._around.claims.claim(self._writer.name)
        for topic, table in self._changelogs.items():
            output = self._outputs[table]
            # Rows with the same key replace each other, so new consumers need only the last one.
            policy = "delete" if isinstance(output, Append) or not output.keys else "compact"
            self._topics.create(topic, {"cleanup.policy": policy, "retention.ms": "-1"})
        self._sources.check(once=once)
        most = self._settings.rows_of(self.job)
        if isinstance(self.job.source, Table):
            new = self._checkpoint.query_id() is None
            rows = sources.rows(self._around.lake, self.job.source.name, most, new=new)
            rows = rows.select(*self._needed(self.job.source.name))
        else:
            options = self._around.cluster.spark_options()
            rows = sources.records(self._around.spark, options, self._sources.names, self._sources.ids, most)
        mode = "append"
        if self._stateful is not None:
            rows, mode = stateful.stream(rows, self.job, self._stateful, self._params), self._stateful.mode
        trigger: dict[str, Any] = {"availableNow": True} if once else {"processingTime": self._trigger}
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
        stored = self._around.lake.columns_of(table)
        if self._stateful is not None or self.job.expects:
            return stored.columns
        self._kinds = stored.dtypes
        if any(isinstance(output, Snapshot) for output in self._tables.values()):
            # A snapshot is computed from the whole table, not from the batch.
            return stored.columns[:1]
        return pruning.needed(stored, lambda rows: self.job.function(rows, self._params)) or stored.columns[:1]

    def _check(self) -> None:
        if not isinstance(self.job.source, Table) and not self._settings.topic:
            raise PipelineError(
                f'job {self.job.name} reads a topic, but the deployment names none: write topic = "NAME" under '
                f"[jobs.{self.job.name}]"
            )
        uri, now = f"{self._around.checkpoints}/{shape.DIRECTORY}/{self._writer.name}.json", shape.shape_of(self.job)
        stored = self._files.read(uri)
        if stored is not None:
            shape.check_resumable(shape.from_json(json.loads(stored)), now)
        if self._checkpoint.query_id() is None:
            for table in self._tables:
                if self._around.lake.last_batch(table, self._writer.name) is not None:
                    raise PipelineError(
                        f"table {table} has batches of job {self.job.name}, version {self.job.version}, whose "
                        f"checkpoint {self._checkpoint.uri} is gone. Restore it, or raise the version of the job and "
                        "rename its tables"
                    )
            last = self._ledger.last()
            if not self._tables and last is not None and last.version == self.job.version:
                raise PipelineError(
                    f"job {self.job.name}, version {self.job.version}, has published batches, but its checkpoint "
                    f"{self._checkpoint.uri} is gone. Restore it, or raise the version of the job to publish all "
                    "results again"
                )
        self._files.write(uri, json.dumps(now.as_json(), indent=1))

    def _write(self, rows: DataFrame, number: int) -> None:
        self._around.opening.wait_for_others(self.job.name)
        measured = Measured()
        turns = self._around.turns if isinstance(self.job.source, Table) else None
        try:
            with turns.turn(seconds_of(self._trigger)) if turns is not None else nullcontext():
                self._write_batch(rows, number, measured)
        except Exception as error:
            # Spark passes on only the text of an error.
            self.failure = error
            raise
        self.measured[number] = measured
        self.measured.pop(number - _MEASURED, None)

    def _write_batch(self, rows: DataFrame, number: int, measured: Measured) -> None:
        self._reached("before-ledger")
        publisher = self._publisher or self._opened()
        if publisher.is_published(number):
            log.info("%s: batch %d was complete before the restart", self.job.name, number)
            return
        with sharing.batch() as kept:
            with measured.phase("compute"):
                frames, bad = self._computed(self._fitted(rows, number), kept)
                before = self._reached_before(number)
                frames, after = self._with_lateness(frames, before, kept)
            with measured.phase("ledger"):
                entry = self._recorded(number, after)
                places = self._positions(entry)
            with measured.phase("tables"):
                changes = self._writer.write(frames, bad, entry, places, measured)
                changes |= {topic: Changes(frames[topic]) for topic in self._topics_only}
            self._reached("after-table")
            with measured.phase("topics"):
                # Without source offsets, commit the proof with the end offset of the first changelog before the batch.
                for topic in list(self._changelogs)[: 0 if places else 1]:
                    places = {topic: {0: entry.output_ends[topic][0]}}
                if places:
                    batch = Batch(number=number, query=self._query_id, positions=places, output_ends=entry.output_ends)
                    measured.published = self._publish(publisher, batch, changes)
        self._around.opening.finished(self.job.name)

    def _fitted(self, rows: DataFrame, number: int) -> DataFrame:
        """Run a small batch without compilation and parallel tasks, which pay off only for large batches."""
        before, after = self._checkpoint.source_offsets(number)
        if isinstance(self.job.source, Table):
            count = sources.rows_between(self._files, self._around.lake.path(self.job.source.name), before, after)
        else:
            count = sources.records_between(before, after)
        self._compiling.choose(rows.sparkSession, count)
        # A batch with state needs a task for each partition of the state.
        return rows if self._stateful is not None else sources.in_one_task(rows, count)

    def _opened(self) -> Publisher:
        """Open the publisher, which fences older drivers of the job, and return it.

        The first batch calls this, because Spark chooses the query's id when the query starts.
        """
        self._query_id = self._checkpoint.query_id() or ""
        self._publisher = self._published_by(self._around.cluster)
        return self._publisher

    def _published_by(self, cluster: Cluster) -> Publisher:
        if self._around.transactions:
            claims = self._around.claims
            transactional = TransactionalPublisher(
                cluster,
                self.job.name,
                self.job.version,
                prefix=self._around.prefix,
                reached=self._reached,
                fenced=None if claims is None else partial(claims.fenced, self._writer.name),
            )
            try:
                transactional.open(self._query_id)
                return transactional
            except KafkaException as error:
                if error.args[0].code() != KafkaError._UNSUPPORTED_FEATURE:
                    raise
            log.warning(
                "%s: the cluster does not support transactions. Results are published exactly once only if you run the "
                "job in one driver: a second driver cannot be fenced",
                self.job.name,
            )
        plain = LedgerPublisher(cluster, self.job.name, prefix=self._around.prefix, reached=self._reached)
        plain.open(self._query_id)
        return plain

    def _computed(
        self, rows: DataFrame, kept: sharing.Kept
    ) -> tuple[dict[str, DataFrame], Sequence[tuple[str, DataFrame]]]:
        """Return the rows of each table, and the rejected rows by cause: `late` or `expectations`."""
        if self._stateful is not None:
            kept.keep(rows)  # computing the rows twice would also update the state twice
            results, late = stateful.parted(rows)
            results, bad = split(results, self.job.expects)
            rejected = [("late", late)] if late is not None else []
            return {self._stateful.table: results}, [*rejected, ("expectations", bad)] if self.job.expects else rejected
        if any(isinstance(output, Snapshot) for output in self._tables.values()):
            rows = self._view()
        elif self._kinds:
            rows = pruning.restored(rows, self._kinds)
        rejected = []
        source = rows
        if self.job.expects:
            kept.keep(source)
            rows, bad = split(rows, self.job.expects)
            rejected = [("expectations", bad)]
        result = self.job.function(rows, self._params)
        frames = result if isinstance(result, dict) else dict.fromkeys(self._outputs, result)
        if frames.keys() != self._outputs.keys():
            raise PipelineError(
                f"job {self.job.name} returned rows for {', '.join(frames) or 'no table'}, but its outputs are "
                f"{', '.join(self._outputs)}: return rows for each of them"
            )
        if len(self._outputs) > 1 and not kept.shared:
            kept.keep(source)
        for table, output in self._outputs.items():
            if table in self._changelogs.values() and not isinstance(output, Snapshot):
                kept.keep(frames[table])
        return frames, rejected

    def _view(self) -> DataFrame:
        """Return the current view of the source table, from which a snapshot is computed."""
        if self._source is None:
            source = self.job.source
            self._source = self._around.lake.followed(source.name if isinstance(source, Table) else "")
        stored = self._source.rows()
        return stored if self._source_output is None else partials.current(stored, self._source_output)

    def _reached_before(self, number: int) -> Reached:
        earlier = self._ledger.read(number - 1) if number else None
        return earlier.reached if earlier is not None and earlier.query == self._query_id else Reached()

    def _with_lateness(
        self, frames: dict[str, DataFrame], before: Reached, kept: sharing.Kept
    ) -> tuple[dict[str, DataFrame], Reached]:
        """Add lateness to rows with an event time and a position in a topic. Also return the reached event times."""
        after = before
        for table in self._tables:
            rows = frames[table]
            if set(rows.columns) >= lateness.COLUMNS and "late_by_s" not in rows.columns:
                if not kept.shared:
                    kept.keep(rows)
                after, count = lateness.reached(rows, before)
                late = lateness.with_lateness(rows, before.latest, count)
                frames = {**frames, table: lateness.with_settled(late, before, after, count)}
        return frames, after

    def _recorded(self, number: int, after: Reached) -> Entry:
        # A topic may also be re-created while the query runs.
        self._sources.check_unchanged()
        source_from, source_to = self._checkpoint.source_offsets(number)
        try:
            ends = self._topics.end_offsets(self._changelogs)
        except UnknownTopicError as error:
            raise TemporaryError(str(error)) from error  # the next start creates the topic if it was deleted
        entry = Entry(
            job=self.job.name,
            version=self.job.version,
            query=self._query_id,
            batch=number,
            source_from=source_from,
            source_to=source_to,
            topic_ids=self._sources.ids,
            output_ends=ends,
            reached=after,
        )
        return self._ledger.record(entry)

    def _positions(self, entry: Entry) -> Offsets:
        """Return the offsets to commit to the job's consumer group, which show its lag and carry the batch's proof."""
        if isinstance(self.job.source, Table):
            return positions.of_table(self._files, self._around.lake.path(self.job.source.name), entry.source_to)
        return positions.of_topics(entry.source_to)

    def _publish(self, publisher: Publisher, batch: Batch, changes: Mapping[str, Changes]) -> int:
        found: list[DataFrame] = []
        count = 0
        for topic, table in self._changelogs.items():
            if (change := changes.get(table)) is None:
                continue
            output = self._outputs[table]
            count += change.rows.count() if change.count is None else change.count
            found.append(changelog.records(change.rows, topic, output))
            if change.gone is not None and isinstance(output, Snapshot):
                found.append(changelog.tombstones(change.gone, topic, output))
        if not found:
            return publisher.publish(batch, (), 0)
        return publisher.publish(batch, changelog.collected(changelog.united(found), count), count)

    def failed(self, running: StreamingQuery) -> Exception | None:
        """Return the error that ended a query; None if it is complete. After a PipelineError, a person must act."""
        error = self.failure or running.exception()
        text = "" if error is None else str(error)
        if "CONCURRENT_STREAM_LOG_UPDATE" in text:
            return TemporaryError("another driver runs this job with the same checkpoint")
        changed = _STATE_CHANGED.search(text)
        if changed is None:
            return error
        return shape.refusal(self.job.name, self.job.version, f"the state of its function has changed ({changed[0]})")

    def stop(self, running: StreamingQuery | None) -> None:
        """Stop after the running batch, but wait at most 20 s. The next start repeats an interrupted batch."""
        deadline = time.monotonic() + _GRACE_S
        while running is not None and running.isActive and running.status["isTriggerActive"]:
            if time.monotonic() > deadline:
                log.warning("%s: stopped during a batch; the next start repeats it", self.job.name)
                break
            time.sleep(_POLL_S)
        if running is not None:
            running.stop()
        if self._publisher is not None:
            self._publisher.close()
