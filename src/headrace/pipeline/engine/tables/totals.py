"""The totals of an additive table's latest times, kept in memory from batch to batch.

A batch changes few totals, mostly of the latest hours. Without a copy in memory, publishing them takes several scans of
the table for each batch. Earlier times are read from the table when a batch contains rows for them.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from operator import and_
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from headrace.pipeline.engine.tables import additive, partials
from headrace.pipeline.engine.tables.lake import Lake
from headrace.pipeline.spec.jobs import Additive

_MOST: Final = 50_000
"""Default maximum number of rows to keep: about 50 MB with sketches."""
_TOUCHED: Final = "_touched"
_TIMES: Final = ("timestamp", "timestamp_ntz", "date")


class Totals:
    """The totals of one table. Only its job may append to it; a compaction changes no totals."""

    def __init__(self, lake: Lake, output: Additive, *, most: int = _MOST) -> None:
        """`most` is the maximum number of rows to keep."""
        self._lake = lake
        self._output = output
        self._marked = replace(output, maxima=(*output.maxima, _TOUCHED))
        self._most = most
        self._kept: DataFrame | None = None
        """The totals from `_from_us` on, and those without a time, as a local checkpoint; None if nothing is kept."""
        self._from_us: int | None = None
        """The earliest kept time, in microseconds since 1970; None if no totals with a time are kept."""
        self._bound = 0
        """An upper bound on the number of kept rows."""
        self._is_too_large = False
        """True if the table is too large to keep, and cannot be kept in part because it has no time key."""
        self._obsolete: list[DataFrame] = []

    def prepare(self, batch: DataFrame) -> int:
        """Read the totals that the batch will change, unless they are kept, and return the batch's number of rows.

        Call it before the batch is appended. `batch` is evaluated: cache it.
        """
        self._release()
        time = self._time(batch)
        earliest = sf.lit(None) if time is None else sf.min(_us(time))
        [(rows, first_us)] = batch.agg(sf.count("*"), earliest).collect()
        if self._is_too_large or rows > self._most:
            self.forget()
            return int(rows)
        if self._kept is None:
            self._keep(self._stored(batch, [] if time is None else [_since(time, first_us) | time.isNull()]))
            self._from_us = first_us
        elif time is not None and first_us is not None and (self._from_us is None or first_us < self._from_us):
            until = [] if self._from_us is None else [~_since(time, self._from_us)]
            self._keep(self._kept.unionByName(self._stored(batch, [_since(time, first_us), *until])))
            self._from_us = first_us
        self._bound += rows
        if self._bound > self._most:
            self._shrink(time, first_us)
        return int(rows)

    def after(self, batch: DataFrame) -> DataFrame:
        """Return the totals that the batch has changed. Append the batch between `prepare` and this call.

        Collect the result before the next call.
        """
        if self._kept is None:
            return additive.totals(self._lake, self._output, batch)
        # The batch comes first, because its session's settings apply to the union.
        both = batch.withColumn(_TOUCHED, sf.lit(True)).unionByName(self._kept.withColumn(_TOUCHED, sf.lit(False)))
        # For so few rows, one task without a shuffle is enough.
        self._replace(partials.summed(both.coalesce(1), self._marked).localCheckpoint(eager=False))
        return self._kept.where(_TOUCHED).drop(_TOUCHED)

    def forget(self) -> None:
        """Drop all kept totals. The next batch reads those that it needs from the table."""
        self._replace(None)
        self._from_us, self._bound = None, 0

    def _time(self, batch: DataFrame) -> Column | None:
        name = self._output.time
        return sf.col(name) if name is not None and dict(batch.dtypes)[name] in _TIMES else None

    def _stored(self, like: DataFrame, conditions: Sequence[Column]) -> DataFrame:
        """Return the totals of the table's rows that meet all conditions; no rows if the table does not exist yet."""
        table = self._output.table
        rows = self._lake.read_cold(table) if self._lake.exists(table) else like.limit(0)
        chosen = rows.where(reduce(and_, conditions)) if conditions else rows
        return partials.summed(chosen, self._output).withColumn(_TOUCHED, sf.lit(False))

    def _keep(self, rows: DataFrame) -> None:
        kept = rows.localCheckpoint(eager=False)
        self._bound = kept.count()
        self._replace(kept)

    def _shrink(self, time: Column | None, first_us: int | None) -> None:
        """Drop the totals before the batch's first time, or all totals if too many remain."""
        kept = self._kept
        if kept is None:
            return
        self._bound = kept.count()
        if self._bound <= self._most:
            return
        self._is_too_large = time is None
        if time is not None and first_us is not None:
            self._keep(kept.where(_since(time, first_us) | time.isNull()))
            self._from_us = first_us
        if self._bound > self._most or time is None:
            self.forget()

    def _replace(self, kept: DataFrame | None) -> None:
        if self._kept is not None:
            self._obsolete.append(self._kept)
        self._kept = kept

    def _release(self) -> None:
        """Free the memory of earlier totals, which the current ones no longer depend on."""
        for frame in self._obsolete:
            plan: Any = frame._jdf.queryExecution().logical()
            plan.rdd().unpersist(False)
        self._obsolete.clear()


def _us(time: Column) -> Column:
    return sf.unix_micros(time.cast("timestamp"))


def _since(time: Column, first_us: int | None) -> Column:
    """Return the condition that a time is not before `first_us`. Its literal allows Delta to skip files."""
    return sf.lit(False) if first_us is None else time >= sf.timestamp_micros(sf.lit(first_us)).cast("timestamp")
