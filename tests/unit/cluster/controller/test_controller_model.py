"""Random histories of a cluster: brokers and controllers come and go in the middle of everything."""

import pytest

from tests.unit.cluster.controller.history import History

SEEDS = 40


@pytest.mark.parametrize(
    "block", [pytest.param(block, marks=[] if block < 4 else [pytest.mark.slow]) for block in range(10)]
)
def test_a_cluster_survives_every_history(block: int) -> None:
    for seed in range(block * SEEDS // 10, (block + 1) * SEEDS // 10):
        try:
            History(seed).play()
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
