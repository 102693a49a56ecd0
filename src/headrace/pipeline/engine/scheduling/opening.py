"""Choose which jobs run first when a driver starts, so that the first results appear early."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from headrace.pipeline.engine import sources
from headrace.pipeline.engine.exactly_once.checkpoint import Checkpoint
from headrace.pipeline.engine.files import Files
from headrace.pipeline.engine.tables.lake import Lake
from headrace.pipeline.spec.jobs import Job, Table

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_BETWEEN_TRIGGERS: Final = "Waiting for next trigger"
"""Spark's description of a query that has completed a batch, or has found no rows for one."""


class FirstBatches:
    """The first batches of jobs that start together."""

    def __init__(self, jobs: Mapping[str, Job], lake: Lake, checkpoints: str) -> None:
        self._jobs = jobs
        self._lake = lake
        self._files = Files(lake.spark)
        self._checkpoints = checkpoints

    def stages(self, quick: Collection[str]) -> Sequence[Collection[str]]:
        """Return the stages in which jobs start: the quick jobs whose source tables exist, then the other quick jobs.

        If the first stage has read all stored rows, the jobs that write its source tables start with it. If no quick
        job has an existing source table, there are no stages, because most jobs wait for their tables anyway.
        """
        first = {name for name in quick if (table := self._table(name)) is not None and self._lake.exists(table)}
        if not first:
            return []
        if not any(map(self._has_unread, first)):
            first |= {writer for name in first if (writer := self._writer(name)) is not None}
        return [first, set(quick) - first]

    def has_nothing(self, name: str, running: "StreamingQuery | None", unfinished: Collection[str]) -> bool:
        """Return True if a job has found no rows, and no `unfinished` job will write rows for it."""
        if not found_nothing(running) or self._writer(name) in unfinished:
            return False
        return self._table(name) is None or not self._has_unread(name)

    def _table(self, name: str) -> str | None:
        source = self._jobs[name].source
        return source.name if isinstance(source, Table) else None

    def _writer(self, name: str) -> str | None:
        table = self._table(name)
        return None if table is None else writer_of(table, self._jobs)

    def _has_unread(self, name: str) -> bool:
        checkpoint = Checkpoint(self._files, self._checkpoints, name, self._jobs[name].version)
        table = self._lake.path(self._table(name) or "")
        return sources.has_unread(self._files, table, checkpoint.last_offsets())


def found_nothing(running: "StreamingQuery | None") -> bool:
    """Return True if a query has found no rows to read."""
    if running is None:
        return False
    status = cast("Any", running)._jsq.status()
    return str(status.message()) == _BETWEEN_TRIGGERS and not status.isDataAvailable()


def writer_of(table: str, jobs: Mapping[str, Job]) -> str | None:
    """Return the name of the job that writes a table; None if it is not in `jobs`."""
    return next((name for name, job in jobs.items() if table in job.tables), None)
