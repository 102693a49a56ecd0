"""Find the columns of a source table that a job needs.

Spark passes rows to `foreachBatch` that it has already read, so it cannot leave out columns that the batch does not
use. Most of an event is text that a job does not use.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from headrace.pipeline.engine.java import to_list

_SCAN: Final = "FileSourceScanExec"


def needed(table: DataFrame, function: Callable[[DataFrame], DataFrame | Mapping[str, DataFrame]]) -> Sequence[str]:
    """Return the columns of `table` that Spark would read for the result of `function`; all if they are unknown."""
    result = function(table)
    names: set[str] = set()
    for frame in result.values() if isinstance(result, Mapping) else (result,):
        for leaf in _leaves(frame):
            # Delta answers some aggregates from statistics, and then reads no columns at all.
            if leaf.getClass().getSimpleName() != _SCAN:
                return table.columns
            names.update(field["name"] for field in json.loads(leaf.schema().json())["fields"])
    return [name for name in table.columns if name in names]


def restored(rows: DataFrame, kinds: Sequence[tuple[str, str]]) -> DataFrame:
    """Return rows with all columns of the table. Columns that were not read are null. `kinds` are names and types."""
    present = set(rows.columns)
    return rows.select(
        *(sf.col(name) if name in present else sf.lit(None).cast(kind).alias(name) for name, kind in kinds)
    )


def _leaves(frame: DataFrame) -> Sequence[Any]:
    return to_list(frame.sparkSession, frame._jdf.queryExecution().sparkPlan().collectLeaves())
