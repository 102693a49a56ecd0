"""Random histories of a cluster: brokers and controllers come and go in the middle of everything."""

import pytest

from tests.unit.cluster.controller.history import History

SEEDS_PER_BLOCK = 5


@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.slow) for first in range(5, 40, 5))])
def test_a_cluster_survives_every_history(first: int) -> None:
    for seed in range(first, first + SEEDS_PER_BLOCK):
        try:
            History(seed).play()
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
