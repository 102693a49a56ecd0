"""Compare the results of a stream of random batches with those of a single batch of all records."""

import json
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import nullcontext
from random import Random
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from headrace.pipeline.engine.exactly_once import changelog
from headrace.pipeline.engine.tables.partials import summed
from headrace.pipeline.jobs.archive import raw
from headrace.pipeline.spec.jobs import Additive, Append, Changelog, Job, Publish, Stateful, Table, TableOutput
from headrace.testing.pipeline.arrangement import Arrangement, arranged
from headrace.testing.pipeline.lake import KILL_POINTS, KilledError, Lake, Records, definition_of

_SKETCH_ERROR: Final = 0.05
"""Three standard errors of a sketch with lgK 12."""
_DIGITS: Final = 9
_SHOWN: Final = 5


def assert_stream_equals_batch(
    job: "Callable[..., Any] | Job",
    records: Records,
    seed: int,
    *,
    params: object = None,
    batches: int = 3,
    late: float = 0.2,
    duplicates: float = 0.05,
    kills: int = 1,
    lake: Lake | None = None,
) -> None:
    """Raise AssertionError if a stream of random batches gives another result than one batch with all records.

    The stream has at most `batches` batches, and two more at the end for a stateful job. The seed determines where the
    batches begin, which records are late or sent twice, and where the job is killed. `late` is the share of records
    that arrive late, by less than the job's parameter `late_by` (10 minutes if it has none); `duplicates` is the share
    that is sent twice. The job is killed at up to `kills` random points of random batches (see KILL_POINTS) and
    restarted. The changelogs must match the tables.

    Only rows with `event_time`, and access log lines for a job that reads `events`, can be late; other records arrive
    in any order. The stream of a stateful job ends with rows a year later, so that the watermark passes all others.
    Numbers of type double may differ after nine digits, estimates of sketches by 5%. `lake` must be empty; by default,
    a new one is used.
    """
    definition = definition_of(job)
    values = definition.params() if params is None else params
    chance = Random(seed)
    with nullcontext(lake) if lake is not None else Lake() as place:
        arrangement = arranged(
            place, definition, values, records, chance, batches=batches, late=late, duplicates=duplicates
        )
        kill = _Kills(chance, definition, kills, len(arrangement.parts))
        for part in arrangement.parts:
            place.add(definition, part)
            if not isinstance(definition.source, Table):
                _run(place, definition, values, kill)
        if isinstance(definition.source, Table):
            # Each part becomes at least one file of the table, and each file is read as a separate batch.
            _run(place, definition, values, kill, max_rows=1)
        _compare(place, definition, values, arrangement, seed)


class _Kills:
    """Kills a job at random points of random batches."""

    def __init__(self, chance: Random, job: Job, kills: int, batches: int) -> None:
        publishes = any(isinstance(output, Changelog | Publish) for output in job.outputs)
        points = KILL_POINTS if publishes else KILL_POINTS[:2]
        self._left = Counter((chance.choice(points), chance.randrange(batches)) for _ in range(kills))
        self._passed: Counter[str] = Counter()

    def reached(self, point: str) -> None:
        place = point, self._passed[point]
        self._passed[point] += 1
        if self._left[place]:
            self._left[place] -= 1
            raise KilledError(point)


def _run(lake: Lake, job: Job, params: object, kills: _Kills, *, max_rows: int | None = None) -> None:
    """Run the job, and restart it whenever it is killed."""
    while True:
        try:
            lake.run(job, params, max_rows=max_rows, reached=kills.reached)
            return
        except KilledError:
            continue


def _compare(lake: Lake, job: Job, params: object, arrangement: Arrangement, seed: int) -> None:
    if not isinstance(job.source, Table) and job.name != "raw":
        # The archive contains the records that the job read, with their topic ids, offsets and timestamps.
        lake.run_once(raw)
    rows = lake.tables.read(job.source.name if isinstance(job.source, Table) else "raw")
    batch = rows if arrangement.end is None else rows.where(sf.col("event_time") < sf.lit(arrangement.end))
    expected = _computed(job, params, batch)
    with_end = {} if arrangement.end is None else _computed(job, params, rows)
    for output in job.outputs:
        if isinstance(output, Publish):
            _check_published(f"topic {output.topic}, seed {seed}", lake, output, expected[output.topic])
        elif not isinstance(output, Changelog):
            wanted = expected[output.table]
            found = lake.stored(output)
            stream = [] if found is None else _plain(found.select(*wanted.columns), output)
            tolerated = _plain(with_end[output.table], output) if with_end else []
            _check_rows(f"table {output.table}, seed {seed}", output, stream, _plain(wanted, output), tolerated)
            changelogs = [item.topic for item in job.outputs if isinstance(item, Changelog) and item.of == output.table]
            for topic in changelogs:
                if found is None:
                    continue
                _check_changelog(f"topic {topic}, seed {seed}", lake, topic, output, found)


def _computed(job: Job, params: object, rows: DataFrame) -> Mapping[str, DataFrame]:
    """Return the rows that one batch computes for each table, and for each topic without a table."""
    met = " AND ".join(["true", *(f"({expect.condition})" for expect in job.expects)])
    has_state = any(isinstance(output, Stateful) for output in job.outputs)
    result = job.function(rows if has_state else rows.where(met), params)
    found: dict[str, DataFrame] = {}
    for output in job.outputs:
        if isinstance(output, Changelog):
            continue
        name = output.topic if isinstance(output, Publish) else output.table
        of_output = result[name] if isinstance(result, dict) else result
        # The expectations of a stateful job apply to its results.
        of_output = of_output.where(met) if has_state else of_output
        found[name] = summed(of_output, output) if isinstance(output, Additive) else of_output
    return found


def _plain(rows: DataFrame, output: TableOutput) -> list[dict[str, Any]]:
    if isinstance(output, Additive) and output.sketches:
        rows = rows.withColumns({name: sf.hll_sketch_estimate(name) for name in output.sketches})
    return [row.asDict(recursive=True) for row in rows.collect()]


def _check_rows(
    where: str,
    output: TableOutput,
    stream: Iterable[Mapping[str, Any]],
    batch: Iterable[Mapping[str, Any]],
    tolerated: Iterable[Mapping[str, Any]],
) -> None:
    sketches = output.sketches if isinstance(output, Additive) else ()
    ours, theirs = (Counter(_exact(row, sketches) for row in rows) for rows in (stream, batch))
    extra = ours - theirs - Counter(_exact(row, sketches) for row in tolerated)
    missing = theirs - ours
    if extra or missing:
        raise AssertionError(
            f"{where}: the stream and the batch differ"
            + _listed("only in the stream", extra)
            + _listed("only in the batch", missing)
        )
    estimates = {_exact(row, sketches): row for row in batch}
    for row in stream:
        for name in sketches:
            found, wanted = row[name], estimates[_exact(row, sketches)][name]
            if abs(found - wanted) > _SKETCH_ERROR * wanted:
                raise AssertionError(f"{where}: {name} is {found} in the stream, {wanted} in the batch: {dict(row)}")


def _check_changelog(where: str, lake: Lake, topic: str, output: TableOutput, table: DataFrame) -> None:
    """Compare the last change of each key with its row; without keys, all changes with all rows."""
    sketches = output.sketches if isinstance(output, Additive) else ()
    changes = lake.changes(topic)
    last = {change.key: change.value for change in changes}
    shown = [change.value for change in changes] if isinstance(output, Append) or not output.keys else last.values()
    rows = [json.loads(row.value) for row in changelog.records(table, topic, output).collect()]
    ours = Counter(_exact(value, sketches) for value in shown if value is not None)
    theirs = Counter(_exact(value, sketches) for value in rows if value is not None)
    if ours != theirs:
        raise AssertionError(
            f"{where}: the changelog does not match table {output.table}"
            + _listed("only in the topic", ours - theirs)
            + _listed("only in the table", theirs - ours)
        )


def _check_published(where: str, lake: Lake, output: Publish, batch: DataFrame) -> None:
    """Compare all records; if they have keys, only the keys, because the batches determine a key's last record."""
    changes = lake.changes(output.topic)
    rows = changelog.records(batch, output.topic, output).collect()
    ours: Counter[Hashable] = Counter(_exact(change.value or {}, ()) for change in changes)
    theirs: Counter[Hashable] = Counter(_exact(json.loads(row.value), ()) for row in rows)
    if output.keys:
        ours, theirs = Counter({change.key for change in changes}), Counter({row.key for row in rows})
    extra, missing = (ours - theirs).total(), (theirs - ours).total()
    if extra or missing:
        raise AssertionError(f"{where}: {extra} records are only in the stream, {missing} only in the batch")


def _exact(row: Mapping[str, Any], without: Iterable[str]) -> Hashable:
    """Return a row in hashable form, without the columns in `without`."""
    return tuple(sorted((name, _canonical(value)) for name, value in row.items() if name not in without))


def _canonical(value: object) -> str:
    # As text, because rows with nulls cannot be sorted.
    if isinstance(value, float):
        return f"{value:.{_DIGITS}g}"
    if isinstance(value, bytearray):
        return repr(bytes(value))
    if isinstance(value, dict):
        return repr(sorted((str(key), _canonical(each)) for key, each in value.items()))
    if isinstance(value, list):
        return repr([_canonical(item) for item in value])
    return str(value)


def _listed(title: str, rows: "Counter[Any]") -> str:
    shown = [", ".join(f"{name}={value}" for name, value in row) for row in list(rows.elements())[:_SHOWN]]
    more = [f"and {rows.total() - _SHOWN} more"] if rows.total() > _SHOWN else []
    return "".join(f"\n  {line}" for line in [f"{title}:", *(f"  {item}" for item in (*shown, *more))]) if shown else ""
