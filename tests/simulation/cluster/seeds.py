"""The seeds that the tests play. They are in two files, which pytest gives to different processes."""

from typing import Final

import pytest

from tests.simulation.cluster.history import history_of
from tests.simulation.cluster.world import explain, play

SEEDS: Final = 300
"""`make simulation` plays more."""
BATCH: Final = 5
"""The seeds of one test."""
FIRST_HALF: Final = range(0, SEEDS // 2, BATCH)
SECOND_HALF: Final = range(SEEDS // 2, SEEDS, BATCH)


def play_batch(first: int) -> None:
    """Play the seeds from `first`; fail with a report."""
    for seed in range(first, first + BATCH):
        history = history_of(seed)
        violation = play(history)
        if violation is not None:
            pytest.fail(explain(history, violation), pytrace=False)
