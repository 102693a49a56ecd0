"""Short versions of the proofs with cut networks, an absent ensemble, and many partitions, which `make proofs` runs."""

import os
import shutil
from pathlib import Path

import pytest

from tests.cluster.proofs import cuts, ensemble, scale

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="network namespaces need root and iproute2")
def test_acknowledged_records_survive_cuts_of_the_network(tmp_path: Path) -> None:
    figures = cuts.run(cuts.Plan(seed=1, only="ZooKeeper"), tmp_path, print)
    assert figures["records refused by leaders that were cut off"] > 0


def test_brokers_go_on_without_zookeeper(tmp_path: Path) -> None:
    figures = ensemble.run(ensemble.Plan(seed=1, away_s=12), tmp_path, print)
    assert figures["records acknowledged"] > 0


def test_another_controller_elects_all_leaders(tmp_path: Path) -> None:
    plan = scale.Plan(partitions=300, topics=3, failovers=2, churned=10, with_kafka=False)
    assert scale.run(plan, tmp_path, print)["partitions"] == 300
