"""Combine the rows that batches have appended: merge partial aggregates, keep the latest row of each key."""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from headrace.pipeline.errors import PipelineError
from headrace.pipeline.jobs.expressions import total
from headrace.pipeline.spec.jobs import Additive, Stateful, TableOutput

BATCH: Final = "_batch"
"""The column with the number of the batch that wrote a row, in tables whose rows replace each other."""
_BITS: Final = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}


def current(rows: DataFrame, output: TableOutput) -> DataFrame:
    """Return the rows of a table's view, from its stored rows."""
    if isinstance(output, Additive):
        return summed(rows, output)
    if isinstance(output, Stateful) and output.keys:
        return latest(rows, output).drop(BATCH)
    return rows


def latest(rows: DataFrame, output: Stateful) -> DataFrame:
    """Return the row with the highest batch number for each key. Null is a key like any other."""
    values = [name for name in rows.columns if name not in output.keys]
    newest = sf.max_by(sf.struct(*values), sf.coalesce(BATCH, sf.lit(-1))).alias("newest")
    found = rows.groupBy(*output.keys).agg(newest)
    return found.select(*(name if name in output.keys else sf.col("newest")[name].alias(name) for name in rows.columns))


def columns(output: Additive) -> tuple[str, ...]:
    """Return the columns of an additive table: keys, then aggregates."""
    return (*output.keys, *output.sums, *output.minima, *output.maxima, *output.sketches)


def summed(rows: DataFrame, output: Additive) -> DataFrame:
    """Return one row per key: sums, minima, maxima and merged sketches, in the types of `rows`.

    The order of the rows does not matter, except that sums of floating-point numbers may differ in the last digits. A
    sum of integers that does not fit becomes the nearest number of its type.
    """
    kinds = dict(rows.dtypes)
    aggregates: list[Column] = [
        *(_sum(name, kinds[name]).alias(name) for name in output.sums),
        *(sf.min(name).alias(name) for name in output.minima),
        *(sf.max(name).alias(name) for name in output.maxima),
        *(sf.hll_union_agg(name, sf.lit(True)).alias(name) for name in output.sketches),
    ]
    grouped = rows.groupBy(*output.keys)
    total = grouped.agg(*aggregates) if aggregates else rows.select(*output.keys).distinct()
    # Spark widens the types of sums: cast them back to the table's types.
    return total.select(*(sf.col(name).cast(kinds[name]).alias(name) for name in columns(output)))


def _sum(name: str, kind: str) -> Column:
    if kind not in _BITS:
        return sf.sum(name)
    found, largest = total(name), 2 ** (_BITS[kind] - 1) - 1
    smallest = -largest - 1
    return sf.when(found > largest, sf.lit(largest)).when(found < smallest, sf.lit(smallest)).otherwise(found)


def check_columns(rows: DataFrame, output: Additive) -> None:
    """Raise PipelineError unless `rows` has exactly the columns of the output."""
    wanted, found = set(columns(output)), set(rows.columns)
    if wanted != found:
        differences = {"missing": sorted(wanted - found), "undeclared": sorted(found - wanted)}
        lists = [f"{difference}: {', '.join(names)}" for difference, names in differences.items() if names]
        raise PipelineError(
            f"table {output.table}: the job's columns are not those of its Additive output ({'; '.join(lists)}). "
            "Change the function or the output."
        )
