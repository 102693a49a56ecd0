"""Replication keeps its guarantees despite failures of brokers, network and controllers (see `world`)."""

import pytest

from tests.simulation.cluster.faults import FAULTS
from tests.simulation.cluster.history import history_of
from tests.simulation.cluster.world import explain, play

SEEDS = 24
"""Seeds in CI; `make simulation` plays 2,000."""
_BATCH = 8
_SEEDS_PER_FAULT = 60
_RARE = {
    "a replica below the start of the epoch joins": 75,
    "producers survive a truncation": 125,
}
"""The first seed to play, for faults that only about one history in a hundred reveals."""


@pytest.mark.parametrize("first", range(0, SEEDS, _BATCH))
def test_replication_keeps_its_promises(first: int) -> None:
    for seed in range(first, first + _BATCH):
        history = history_of(seed)
        violation = play(history)
        if violation is not None:
            pytest.fail(explain(history, violation), pytrace=False)


def test_a_seed_replays_exactly() -> None:
    first: list[str] = []
    second: list[str] = []
    assert play(history_of(7), first) is None
    assert play(history_of(7), second) is None
    assert first == second


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_an_injected_fault_is_found(fault: str) -> None:
    first = _RARE.get(fault, 0)
    with FAULTS[fault]():
        assert any(play(history_of(seed)) is not None for seed in range(first, first + _SEEDS_PER_FAULT))
