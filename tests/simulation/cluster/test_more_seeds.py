"""The second half of the seeds."""

import pytest

from tests.simulation.cluster.seeds import SECOND_HALF, play_batch


@pytest.mark.parametrize("first", SECOND_HALF)
def test_a_cluster_keeps_its_promises(first: int) -> None:
    play_batch(first)
