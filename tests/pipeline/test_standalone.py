"""The pipeline on a cluster of Spark's own: a master and two workers, one of which is killed during a batch."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from headrace.pipeline.engine.tables.lake import Lake
from headrace.pipeline.spec.jobs import Additive
from tests.pipeline.kills.rig import Rig, kill
from tests.support.broker_process import BrokerProcess
from tests.support.spark_cluster import SparkCluster
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WORDS = Additive(table="words", keys=("word",), sums=("times",))

pytestmark = pytest.mark.slow


def test_results_are_exact_after_the_loss_of_a_worker_during_a_batch(
    broker: BrokerProcess, tmp_path: Path, spark: "SparkSession"
) -> None:
    with SparkCluster(tmp_path / "spark") as cluster:
        rig = Rig(tmp_path, broker.bootstrap, cluster.master)
        rig.produce(1_000)
        driver = rig.driver("--once")
        try:
            # A batch after the first: what is cached on the worker is lost, and its tasks run elsewhere.
            wait_for(lambda: rig.batch("lines") >= 1 or driver.poll() is not None, "the second batch", timeout_s=300)
            cluster.kill_worker(0)
            assert driver.wait(300) == 0, rig.end_of_log()
        finally:
            kill(driver)

    def sql(text: str) -> list[dict[str, Any]]:
        lake = Lake(spark, str(tmp_path / "lake"))
        lake.view(WORDS).createOrReplaceTempView("words")
        for table in ("minutes", "lines"):
            lake.read(table).createOrReplaceTempView(table)
        return [row.asDict() for row in spark.sql(text).collect()]

    rig.check(sql)
