"""Separate the rows that meet a job's expectations from those that do not."""

from collections.abc import Sequence

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from headrace.pipeline.errors import PipelineError
from headrace.pipeline.spec.jobs import Expect


class ExpectationError(PipelineError):
    """A row does not meet an expectation with `otherwise='fail'`."""


def split(rows: DataFrame, expects: Sequence[Expect]) -> tuple[DataFrame, DataFrame]:
    """Return the good rows, and the rows to quarantine with the first unmet expectation in a column `reason`.

    A condition that is null is unmet. Rows to drop are in neither result. `rows` is evaluated for each result, and for
    expectations with `otherwise='fail'`: cache it. Raises ExpectationError if one of these is unmet, and PipelineError
    for a condition that is not valid SQL on these rows.
    """
    for expect in expects:
        _check_condition(rows, expect)
    _check_rows(rows, [expect for expect in expects if expect.otherwise == "fail"])
    sorting = [expect for expect in expects if expect.otherwise != "fail"]
    if not sorting:
        return rows, rows.withColumn("reason", sf.lit(None).cast("string")).where(sf.lit(False))
    unmet = _first_unmet(sorting)
    good = rows.where(unmet.isNull())
    rejected = rows.withColumn("reason", unmet).where(sf.col("reason.otherwise") == "quarantine")
    return good, rejected.withColumn("reason", sf.col("reason.text"))


def _check_condition(rows: DataFrame, expect: Expect) -> None:
    try:
        rows.where(expect.condition)
    except (AnalysisException, ParseException) as error:
        raise PipelineError(
            f"the expectation '{expect.condition}' is not a valid condition on the columns {', '.join(rows.columns)}: "
            f"{str(error).splitlines()[0]}"
        ) from error


def _check_rows(rows: DataFrame, must_hold: Sequence[Expect]) -> None:
    if not must_hold:
        return
    unmet = rows.withColumn("reason", _first_unmet(must_hold)["text"]).where(sf.col("reason").isNotNull())
    for row in unmet.limit(1).collect():
        raise ExpectationError(
            f"{row.reason}: {row.asDict()}. The batch was not written. Correct the data or the job, "
            "or quarantine such rows with otherwise='quarantine'."
        )


def _first_unmet(expects: Sequence[Expect]) -> Column:
    """Return the first unmet expectation as a struct; null if all are met."""
    return sf.coalesce(
        *(
            sf.when(
                ~sf.coalesce(sf.expr(expect.condition), sf.lit(False)),
                sf.struct(sf.lit(expect.reason).alias("text"), sf.lit(expect.otherwise).alias("otherwise")),
            )
            for expect in expects
        )
    )
