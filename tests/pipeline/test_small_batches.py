"""A small batch is processed in one task, without a shuffle."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_rows_or_the_partitions_make_a_batch_small(spark: "SparkSession") -> None:
    from headrace.pipeline.engine.sources import in_one_task

    expected = {(2, None): 1, (3, None): 3, (4, 20_000): 1, (4, 20_001): 4, (1, 20_001): 1}
    found = {}
    for partitions, count in expected:
        rows = in_one_task(spark.range(0, 8, 1, partitions).toDF("number"), count)
        found[partitions, count] = rows._jdf.queryExecution().toRdd().getNumPartitions()
    assert found == expected


def test_a_small_batch_needs_no_shuffle(spark: "SparkSession") -> None:
    from headrace.pipeline.engine.sources import in_one_task

    counts = in_one_task(spark.range(0, 8, 1, 2).toDF("number"), None).groupBy("number").count()
    assert "Exchange" not in counts._jdf.queryExecution().executedPlan().toString()
