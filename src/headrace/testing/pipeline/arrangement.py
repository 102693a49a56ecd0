"""Arrange records for a stream: late, sent twice, and cut into batches."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from headrace.pipeline.errors import PipelineError
from headrace.pipeline.parsers import parser_of
from headrace.pipeline.spec.jobs import Job, Stateful, Table
from headrace.pipeline.spec.params import seconds_of
from headrace.testing.pipeline.lake import Lake, Records

_LATE_BY: Final = "10 minutes"
_YEAR: Final = timedelta(days=366)
_TIME: Final = "event_time"
_END: Final = '%s - - [%s] "GET / HTTP/1.1" 200 1 "-" "-"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """The batches of a stream. For a stateful job, the last two only advance the watermark: their event times are `end`
    or later.
    """

    parts: Sequence[Records]
    end: datetime | None = None


def arranged(
    lake: Lake,
    job: Job,
    params: object,
    records: Records,
    chance: Random,
    *,
    batches: int,
    late: float,
    duplicates: float,
) -> Arrangement:
    """Return random batches of the records. Raises PipelineError if a stateful job's records have no event time."""
    stateful = any(isinstance(output, Stateful) for output in job.outputs)
    late_by_s = seconds_of(getattr(params, "late_by", _LATE_BY))
    if isinstance(records, DataFrame):
        return _of_rows(records, chance, stateful, late_by_s, batches=batches, late=late, duplicates=duplicates)
    reads_events = isinstance(job.source, Table)
    if stateful and not reads_events:
        raise PipelineError(
            f"job {job.name} is stateful but reads a topic: make it read a table with the column {_TIME}, like events"
        )
    values = [*records, *(record for record in records if chance.random() < duplicates)]
    if not reads_events:
        chance.shuffle(values)
        return Arrangement(parts=_cut(values, chance, batches))
    times = _times(lake, values)
    known = [time for time in times if time is not None]
    arrivals, latest = [], min(known, default=0.0)
    for time in times:
        latest = latest if time is None else time
        arrivals.append(latest + _delay(chance, late, late_by_s))
    order = sorted(range(len(values)), key=arrivals.__getitem__)
    parts: list[Records] = [*_cut([values[number] for number in order], chance, batches)]
    if not stateful:
        return Arrangement(parts=parts)
    end = datetime.fromtimestamp(int(max(known, default=0.0)), UTC) + _YEAR
    # In all partitions, because the slowest one determines the watermark, and twice, because a batch advances the
    # watermark only for the next batch.
    for moment in (end, end + timedelta(seconds=1)):
        text = moment.strftime("%d/%b/%Y:%H:%M:%S %z")
        parts.append([_END % (f"end-{number}", text) for number in range(lake.partitions)])
    return Arrangement(parts=parts, end=end)


def _of_rows(
    rows: DataFrame, chance: Random, stateful: bool, late_by_s: float, *, batches: int, late: float, duplicates: float
) -> Arrangement:
    twice = rows.where(sf.rand(chance.randrange(2**31)) < duplicates)
    everything = rows.unionAll(twice).coalesce(1)
    has_time = _TIME in rows.columns
    delay = sf.when(sf.rand(chance.randrange(2**31)) < late, sf.rand(chance.randrange(2**31)) * late_by_s).otherwise(0)
    arrival = sf.unix_micros(_TIME) / 1_000_000 + delay if has_time else sf.rand(chance.randrange(2**31))
    # Persisted, because a second computation might order the rows differently.
    placed = everything.sortWithinPartitions(arrival).withColumn("_at", sf.monotonically_increasing_id()).persist()
    count = placed.count()
    bounds = _bounds(count, chance, batches)
    parts: list[Records] = [
        placed.where(sf.col("_at").between(bound.start, bound.stop - 1)).drop("_at") for bound in bounds
    ]
    if not stateful:
        return Arrangement(parts=parts)
    if not has_time:
        raise PipelineError(f"rows for a stateful job need a column {_TIME}")
    latest = placed.agg(sf.max(sf.unix_seconds(_TIME))).collect()[0][0] or 0
    end = datetime.fromtimestamp(latest, UTC) + _YEAR
    last = placed.where(sf.col("_at") == count - 1).drop("_at")
    parts.extend(last.withColumn(_TIME, sf.lit(moment)) for moment in (end, end + timedelta(seconds=1)))
    return Arrangement(parts=parts, end=end)


def _delay(chance: Random, late: float, late_by_s: float) -> float:
    return chance.random() * late_by_s if chance.random() < late else 0.0


def _cut(values: Sequence[Any], chance: Random, batches: int) -> list[Sequence[Any]]:
    return [values[bound.start : bound.stop] for bound in _bounds(len(values), chance, batches)]


def _bounds(count: int, chance: Random, batches: int) -> list[range]:
    """Split `range(count)` into at most `batches` consecutive ranges of random lengths."""
    cuts = sorted(chance.sample(range(1, count), min(batches, count) - 1)) if count > 1 else []
    return [range(start, stop) for start, stop in zip([0, *cuts], [*cuts, count], strict=True)]


def _times(lake: Lake, lines: Sequence[str | bytes | None]) -> list[float | None]:
    """Return the event times of log lines, in seconds since the epoch; None for lines that are not requests."""
    texts = [line.decode(errors="replace") if isinstance(line, bytes) else line for line in lines]
    # `createDataFrame` would start Python workers.
    records = lake.spark.sql(
        "SELECT at, CAST(line AS binary) AS value "
        "FROM (SELECT inline(from_json(:rows, 'array<struct<at: int, line: string>>')))",
        args={"rows": json.dumps([{"at": number, "line": text} for number, text in enumerate(texts)])},
    )
    parsed = parser_of("access-log")(records).where(sf.col("reason").isNull())
    found = {row.at: row.time for row in parsed.select("at", sf.unix_seconds(_TIME).alias("time")).collect()}
    return [None if number not in found else float(found[number]) for number in range(len(lines))]
