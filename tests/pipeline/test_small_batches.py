"""A small batch is processed in one task, without a shuffle."""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize(
    ("partitions", "count", "tasks"), [(2, None, 1), (3, None, 3), (4, 20_000, 1), (4, 20_001, 4), (1, 20_001, 1)]
)
def test_the_rows_or_the_partitions_make_a_batch_small(
    spark: "SparkSession", partitions: int, count: int | None, tasks: int
) -> None:
    from headrace.pipeline.engine.sources import in_one_task

    rows = in_one_task(spark.range(0, 8, 1, partitions).toDF("number"), count)
    assert rows._jdf.queryExecution().toRdd().getNumPartitions() == tasks


def test_a_small_batch_needs_no_shuffle(spark: "SparkSession") -> None:
    from headrace.pipeline.engine.sources import in_one_task

    counts = in_one_task(spark.range(0, 8, 1, 2).toDF("number"), None).groupBy("number").count()
    assert "Exchange" not in counts._jdf.queryExecution().executedPlan().toString()
