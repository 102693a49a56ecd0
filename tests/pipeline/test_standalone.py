"""The pipeline on a cluster of Spark's own: a master and two workers, one of which is killed during a batch."""

from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from tests.pipeline.kills.rig import Rig, kill
from tests.support.broker_process import BrokerProcess
from tests.support.spark_cluster import SparkCluster
from tests.support.waiting import wait_for


def test_results_are_exact_after_the_loss_of_a_worker_during_a_batch(broker: BrokerProcess, tmp_path: Path) -> None:
    with SparkCluster(tmp_path / "spark") as cluster:
        rig = Rig(tmp_path, broker.bootstrap, cluster.master)
        rig.produce(1_500)
        driver = rig.driver("--once")
        try:
            # Two batches after the first: what is cached on the worker is lost, and its tasks run elsewhere.
            wait_for(lambda: rig.batch("lines") >= 1 or driver.poll() is not None, "the second batch", timeout_s=300)
            cluster.kill_worker(0)
            assert driver.wait(300) == 0, rig.end_of_log()
        finally:
            kill(driver)
    rig.check()
