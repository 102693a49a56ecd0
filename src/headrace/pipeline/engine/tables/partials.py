"""Sum up partial aggregates by their keys."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from headrace.pipeline.errors import PipelineError
from headrace.pipeline.spec.jobs import Additive


def columns(output: Additive) -> tuple[str, ...]:
    """Return the columns of an additive table: keys, then what is summed up."""
    return (*output.keys, *output.sums, *output.minima, *output.maxima, *output.sketches)


def summed(rows: DataFrame, output: Additive) -> DataFrame:
    """Return one row per key: sums, minima, maxima and united sketches, in the types of `rows`.

    The order of the rows does not matter, except that sums of floating-point numbers may differ in the last digits.
    """
    aggregates: list[Column] = [
        *(sf.sum(name).alias(name) for name in output.sums),
        *(sf.min(name).alias(name) for name in output.minima),
        *(sf.max(name).alias(name) for name in output.maxima),
        *(sf.hll_union_agg(name, sf.lit(True)).alias(name) for name in output.sketches),
    ]
    grouped = rows.groupBy(*output.keys)
    total = grouped.agg(*aggregates) if aggregates else rows.select(*output.keys).distinct()
    # A sum is wider than its terms; the table's type counts, and an overflow is an error.
    kinds = dict(rows.dtypes)
    return total.select(*(sf.col(name).cast(kinds[name]).alias(name) for name in columns(output)))


def check_columns(rows: DataFrame, output: Additive) -> None:
    """Raise PipelineError unless `rows` has exactly the columns of the output."""
    wanted, found = set(columns(output)), set(rows.columns)
    if wanted != found:
        missing, extra = sorted(wanted - found), sorted(found - wanted)
        raise PipelineError(
            f"table {output.table}: the job returned "
            + " and ".join(
                filter(
                    None,
                    (
                        f"no column {', '.join(missing)}" if missing else "",
                        f"the undeclared column {', '.join(extra)}" if extra else "",
                    ),
                )
            )
            + ". Make the function and its Additive output agree."
        )
