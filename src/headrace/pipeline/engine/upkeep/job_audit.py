"""Audit the tables of a job: compare their offsets with the log, up to the job's position in its checkpoint."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from pyspark.sql import functions as sf

from headrace.pipeline.engine.exactly_once.checkpoint import Checkpoint
from headrace.pipeline.engine.exactly_once.ledger import Ledger
from headrace.pipeline.engine.files import Files
from headrace.pipeline.engine.quality import quarantine
from headrace.pipeline.engine.tables.delta_log import TableVersion
from headrace.pipeline.engine.tables.lake import Lake
from headrace.pipeline.engine.upkeep import offsets_present
from headrace.pipeline.engine.upkeep.audit import Gap, Log, audit
from headrace.pipeline.engine.upkeep.presence import Present, merged
from headrace.pipeline.errors import PipelineError
from headrace.pipeline.spec.jobs import Append, Job, Topic


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """The combined audit of all of a job's tables."""

    job: str
    tables: tuple[str, ...]
    files: int
    files_read: int
    """Files whose statistics did not determine their offsets."""
    present: tuple[Present, ...]
    gaps: tuple[Gap, ...]

    @property
    def missing(self) -> tuple[Gap, ...]:
        return tuple(gap for gap in self.gaps if gap.verdict == "missing")

    @property
    def is_complete(self) -> bool:
        return not self.missing and not any(item.duplicates for item in self.present)


def keeps_all(job: Job) -> bool:
    """True for a job that, by its definition, writes every record to one of its tables or the quarantine."""
    tables = {output.table for output in job.outputs if isinstance(output, Append)}
    return isinstance(job.source, Topic) and (quarantine.TABLE in tables or tables == {"raw"})


def audit_job(lake: Lake, checkpoints: str, job: Job, ids: Mapping[str, str], log: Log) -> Audited | None:
    """Return the audit of a job; None if it has written nothing. `ids` are the current ids of its topics, by name.

    The job may be running: the audit covers the batches that are complete when the audit starts. Raises PipelineError
    for a job that cannot be audited, and KafkaException.
    """
    files = Files(lake.spark)
    read_to, stored_ids = _read_to(files, checkpoints, job)
    # The position was read before the tables, so these contain at least everything before it.
    tables = [output.table for output in job.outputs if isinstance(output, Append) and output.table != quarantine.TABLE]
    _check(job, tables)
    found = [_found(lake, table) for table in tables if lake.exists(table)]
    if not found and not read_to:
        return None
    pieces = [piece for item in found for piece in item.pieces]
    if lake.exists(quarantine.TABLE):
        of_job = lake.read(quarantine.TABLE).where(sf.col("job") == job.name)
        rejected = offsets_present.in_rows(of_job, offsets_present.columns(of_job.columns) or {})
        pieces += rejected
        tables += [quarantine.TABLE] if rejected else []
    names = {topic_id: topic for topic, topic_id in [*stored_ids.items(), *ids.items()]}
    present = merged(pieces, names)
    # Offsets of a deleted topic are meaningless in a new topic of the same name.
    known = {
        (topic, int(partition)): end
        for topic, ends in read_to.items()
        if stored_ids.get(topic, "") == ids.get(topic)
        for partition, end in ends.items()
    }
    return Audited(
        job=job.name,
        tables=tuple(tables),
        files=sum(item.files for item in found),
        files_read=sum(item.files_read for item in found),
        present=tuple(present),
        gaps=tuple(audit(present, log, known)),
    )


def metrics(audits: Sequence[Audited], now: datetime) -> str:
    """Return the results in the Prometheus text format."""
    registry = CollectorRegistry()
    missing = Gauge(
        "headrace_pipeline_missing_records", "Offsets without a row or a reason.", ["job"], registry=registry
    )
    twice = Gauge(
        "headrace_pipeline_duplicate_records", "Rows that repeat the offset of another row.", ["job"], registry=registry
    )
    audited = Gauge("headrace_pipeline_audit_timestamp_seconds", "Time of the last audit.", registry=registry)
    for item in audits:
        missing.labels(item.job).set(sum(gap.last - gap.first + 1 for gap in item.missing))
        twice.labels(item.job).set(sum(there.duplicates for there in item.present))
    audited.set(now.timestamp())
    return generate_latest(registry).decode()


def _check(job: Job, tables: Collection[str]) -> None:
    if not isinstance(job.source, Topic) or not tables:
        raise PipelineError(f"job {job.name} cannot be audited: it does not append the records of a topic to a table")
    if any(expect.otherwise == "drop" for expect in job.expects):
        raise PipelineError(
            f"job {job.name} cannot be audited: it drops records that do not meet an expectation. "
            "Quarantine them instead: Expect(..., otherwise='quarantine')"
        )


def _found(lake: Lake, table: str) -> offsets_present.Found:
    version = TableVersion(lake.spark, lake.path(table))
    position = offsets_present.columns(version.columns)
    if position is None:
        raise PipelineError(
            f"table {table} cannot be audited: its rows must have topic_id, partition and offset "
            "(or topic_id, source_partition and source_offset)"
        )
    return offsets_present.in_table(version, position)


def _read_to(files: Files, checkpoints: str, job: Job) -> tuple[Mapping[str, Mapping[str, int]], Mapping[str, str]]:
    """Return the next offsets after the last complete batch, and the ids of their topics by name."""
    checkpoint = Checkpoint(files, checkpoints, job.name, job.version)
    complete = [int(name) for name in files.names(f"{checkpoint.uri}/commits") if name.isdigit()]
    if not complete:
        return {}, {}
    after: Any = checkpoint.source_offsets(max(complete))[1]
    entry = Ledger(files, checkpoints, job.name).last()
    return after or {}, entry.topic_ids if entry is not None else {}
