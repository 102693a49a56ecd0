"""Write the results of a batch to the tables of a job, and return the changes."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from headrace.pipeline.engine.exactly_once.ledger import Entry, Offsets
from headrace.pipeline.engine.progress import Measured
from headrace.pipeline.engine.quality import quarantine
from headrace.pipeline.engine.tables import additive, partials
from headrace.pipeline.engine.tables.lake import Lake
from headrace.pipeline.engine.tables.snapshot import SnapshotTable
from headrace.pipeline.engine.tables.totals import Totals
from headrace.pipeline.spec.jobs import Additive, Append, Job, Snapshot, Stateful, TableOutput


@dataclass(frozen=True, slots=True)
class Changes:
    """The rows of a table that a batch has changed, their number if known, and the rows whose keys are `gone`."""

    rows: DataFrame
    gone: DataFrame | None = None
    count: int | None = None


class TableWriter:
    """The tables of one job. Write batches in order. A repeated batch changes nothing, but returns the same changes."""

    def __init__(
        self,
        lake: Lake,
        job: Job,
        tables: Mapping[str, TableOutput],
        *,
        origin: str | None,
        published: Collection[str],
    ) -> None:
        """`origin` is the topic that the rows come from. `published` are the tables with a changelog."""
        self.name = f"{job.name}-{job.version}"
        self._lake = lake
        self._job = job
        self._origin = origin
        self._tables = tables
        outputs = tables.values()
        self._totals = {
            item.table: Totals(lake, item) for item in outputs if isinstance(item, Additive) and item.table in published
        }
        self._snapshots = {item.table: SnapshotTable(lake, item) for item in outputs if isinstance(item, Snapshot)}

    def write(
        self,
        frames: Mapping[str, DataFrame],
        rejected: Sequence[tuple[str, DataFrame]],
        entry: Entry,
        positions: Offsets,
        measured: Measured,
    ) -> dict[str, Changes]:
        """Write the rows of all tables, and the rejected rows by cause: `late` or `expectations`.

        Returns the changes by table, without the quarantine and unchanged snapshots.
        """
        batch = entry.batch
        about = {
            name: getattr(entry, name) for name in ("job", "version", "batch", "query", "source_from", "source_to")
        } | {"positions": positions}
        changes: dict[str, Changes] = {}
        for table, output in self._tables.items():
            rows = frames[table]
            if table == quarantine.TABLE:
                measured.quarantined += self._quarantine(rows, self.name, about)
            elif isinstance(output, Additive):
                changes[table] = self._append_additive(output, rows, batch, about)
            elif isinstance(output, Snapshot):
                changed = self._snapshots[table].write(rows, writer=self.name, batch=batch, metadata=about)
                if changed is not None:
                    changes[table] = Changes(*changed)
            else:
                changes[table] = Changes(rows)
                if isinstance(output, Stateful) and output.keys:
                    rows = rows.withColumn(partials.BATCH, sf.lit(batch).cast("bigint"))
                partition_by = output.partition_by if isinstance(output, Append) else ()
                self._lake.append(table, rows, writer=self.name, batch=batch, metadata=about, partition_by=partition_by)
        for what, rows in rejected:
            if what == "late" and self._job.late == "counted":
                measured.late += rows.count()
                continue
            count = self._quarantine(rows, f"{self.name}/{what}", about)
            measured.quarantined += count
            measured.late += count if what == "late" else 0
        return changes

    def _append_additive(self, output: Additive, rows: DataFrame, batch: int, about: Mapping[str, object]) -> Changes:
        """Append partial aggregates. Return the totals that they change if the table has a changelog."""
        totals = self._totals.get(output.table)
        count = None if totals is None else totals.prepare(rows)
        appended = additive.append(self._lake, output, rows, writer=self.name, batch=batch, metadata=about)
        if totals is None:
            return Changes(rows)
        is_changed = self._lake.was_changed_by_others(output.table, self.name)
        if appended and not is_changed:
            return Changes(totals.after(rows), count=count)
        # The totals in memory lack rows of other writers, or already contain the rows of the first attempt.
        totals.forget()
        return Changes(additive.totals(self._lake, output, rows, once=not appended), count=count)

    def _quarantine(self, bad: DataFrame, writer: str, about: Mapping[str, Any]) -> int:
        """Append the rows to the quarantine, and return their number."""
        rows = quarantine.rows(bad, job=self._job.name, version=self._job.version, origin=self._origin).persist()
        try:
            count = rows.count()
            if count:
                self._lake.append(quarantine.TABLE, rows, writer=writer, batch=about["batch"], metadata=about)
        finally:
            rows.unpersist()
        return count
