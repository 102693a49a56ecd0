"""Follow one record from its topic through the tables, to the rows and changelog records that include it.

To find these rows, the trace calls the functions of jobs again: of additive jobs with the record alone, of stateful
jobs with all rows, and with all but the record.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any, Final, TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from headrace.pipeline.engine.exactly_once import changelog
from headrace.pipeline.engine.exactly_once.ledger import Ledger
from headrace.pipeline.engine.files import Files
from headrace.pipeline.engine.quality import quarantine
from headrace.pipeline.engine.quality.expectations import split
from headrace.pipeline.engine.tables import additive
from headrace.pipeline.engine.tables.lake import Lake
from headrace.pipeline.engine.upkeep import offsets_present
from headrace.pipeline.spec.jobs import Additive, Append, Changelog, Job, Publish, Snapshot, Stateful, Table

Written: TypeAlias = Append | Additive | Stateful | Snapshot | Publish

_SHOWN: Final = 100
"""Maximum number of rows to show for each table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The position of a record."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """A row of a table that contains the record, or that was computed from it and other records."""

    job: str
    table: str | None
    """None for a topic without a table."""
    row: Mapping[str, Any]
    is_written: bool = True
    """False if a stateful job has not written the row: it is not complete yet, or the record was late."""
    topic: str | None = None
    """The topic with the row; `key` is the row's key in it."""
    key: str | None = None


class Tracer:
    """Traces records through the tables of a lake."""

    def __init__(self, lake: Lake, checkpoints: str, jobs: Mapping[str, Job], params: Mapping[str, object]) -> None:
        """`jobs` are in data-flow order; `params` are their parameters, by the name of the job."""
        self._lake = lake
        self._files = Files(lake.spark)
        self._checkpoints = checkpoints
        self._jobs = jobs
        self._params = params

    def trace(self, place: Place) -> Iterator[Reached]:
        """Yield the rows that the record reached, table by table in data-flow order."""
        reached: dict[str, DataFrame] = {}
        topic_id = self._topic_id(place.topic)
        for job in self._jobs.values():
            source = job.source.name if isinstance(job.source, Table) else "raw"
            for output in job.outputs:
                if isinstance(output, Changelog) or not self._is_there(output):
                    continue
                rows = None
                if not isinstance(job.source, Table) and isinstance(output, Append):
                    rows = self._at(output.table, place, topic_id)
                if rows is None and source in reached:
                    rows = self._derived(job, source, output, reached[source])
                found = list(self._shown(job, output, rows)) if rows is not None else []
                if rows is not None and found and not isinstance(output, Publish):
                    reached[output.table] = rows
                yield from found
        if self._lake.exists(quarantine.TABLE):
            rejected = self._at(quarantine.TABLE, place, topic_id)
            for row in _described(rejected, Append(table=quarantine.TABLE)) if rejected is not None else ():
                fields = json.loads(row.value)
                yield Reached(job=fields["job"], table=quarantine.TABLE, row=fields)

    def _is_there(self, output: Written) -> bool:
        return isinstance(output, Publish) or (output.table != quarantine.TABLE and self._lake.exists(output.table))

    def _topic_id(self, topic: str) -> str | None:
        """Return the id of a topic; None if no job has read the topic, or if the cluster has no topic ids."""
        for job in self._jobs.values():
            if not isinstance(job.source, Table):
                entry = Ledger(self._files, self._checkpoints, job.name).last()
                if entry is not None and topic in entry.topic_ids:
                    return entry.topic_ids[topic]
        return None

    def _at(self, table: str, place: Place, topic_id: str | None) -> DataFrame | None:
        """Return the rows of a table with the record's position; None if the table has no positions."""
        stored = self._lake.read(table)
        position = offsets_present.columns(stored.columns)
        if position is None:
            return None
        at = (sf.col(position["partition"]) == place.partition) & (sf.col(position["offset"]) == place.offset)
        if topic_id is not None:
            at &= sf.col(position["topic_id"]) == topic_id
        elif "topic" in stored.columns:
            at &= sf.col("topic") == place.topic
        return stored.where(at)

    def _derived(self, job: Job, source: str, output: Written, reached: DataFrame) -> DataFrame | None:
        """Return the rows of a table that were computed from `reached`, the record's rows in the source table."""
        if isinstance(output, Snapshot):
            stored = self._lake.read(output.table)
            shared = [name for name in self._keys(source) if name in stored.columns]
            return stored.join(reached.select(*shared).distinct(), shared, "left_semi") if shared else None
        if isinstance(output, Stateful):
            everything = self._lake.read(source)
            position = offsets_present.columns(everything.columns)
            if position is None:
                return None
            gone = reached.select(*position.values()).alias("gone")
            others = everything.alias("rows").join(gone, _same("rows", "gone", list(position.values())), "left_anti")
            return self._of(job, output.table, everything).exceptAll(self._of(job, output.table, others))
        met, _ = split(reached, job.expects)
        rows = self._of(job, output.topic if isinstance(output, Publish) else output.table, met)
        return additive.totals(self._lake, output, rows) if isinstance(output, Additive) else rows

    def _of(self, job: Job, name: str, rows: DataFrame) -> DataFrame:
        result = job.function(rows, self._params[job.name])
        found: DataFrame = result[name] if isinstance(result, dict) else result
        return found

    def _keys(self, table: str) -> tuple[str, ...]:
        outputs = [output for job in self._jobs.values() for output in job.outputs]
        keys = [item.keys for item in outputs if isinstance(item, Additive | Stateful) and item.table == table]
        return keys[0] if keys else ()

    def _shown(self, job: Job, output: Written, rows: DataFrame) -> Iterator[Reached]:
        table = None if isinstance(output, Publish) else output.table
        changelogs = [item.topic for item in job.outputs if isinstance(item, Changelog) and item.of == table]
        topic = output.topic if isinstance(output, Publish) else next(iter(changelogs), None)
        absent: Counter[str] = Counter()
        if isinstance(output, Stateful):
            rows = rows.persist()
            stored = self._lake.view(output).select(*rows.columns)
            absent.update(row.value for row in _described(rows.exceptAll(stored), output))
        for found in _described(rows, output):
            is_written = not absent[found.value]
            absent[found.value] -= not is_written
            yield Reached(
                job=job.name,
                table=table,
                row=json.loads(found.value),
                is_written=is_written,
                topic=topic,
                key=found.key if topic else None,
            )


def _described(rows: DataFrame, output: Written) -> list[Any]:
    """Return rows with `key` and `value`, as in a changelog. Bytes are shown as text."""
    kinds = dict(rows.dtypes)
    sketches = output.sketches if isinstance(output, Additive) else ()
    texts = {name: sf.col(name).cast("string") for name in kinds if kinds[name] == "binary" and name not in sketches}
    readable = rows.withColumns(texts) if texts else rows
    return changelog.records(readable.drop("headers"), "", output).limit(_SHOWN).collect()


def _same(one: str, other: str, names: list[str]) -> Column:
    return reduce(and_, (sf.col(f"{one}.{name}").eqNullSafe(sf.col(f"{other}.{name}")) for name in names))
