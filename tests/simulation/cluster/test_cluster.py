"""A cluster keeps its guarantees despite failures of brokers, controllers, ZooKeeper and network (see `world`)."""

import pytest

from tests.simulation.cluster.faults import FAULTS
from tests.simulation.cluster.history import history_of
from tests.simulation.cluster.world import explain, play, shortest

SEEDS = 48
"""Seeds in CI, about a minute of CPU time; `make simulation` plays more."""
_BATCH = 4
_SEEDS_PER_FAULT = 60
_RARE = frozenset(
    {
        "a replica below the start of the epoch joins",
        "producers survive a truncation",
        "writes of the controller are not fenced",
        "a reassignment may remove the whole ISR",
        "elections are unclean",
        "reassignments are not resumed",
        "dead brokers join the ISR",
        "failed deletions are ignored",
    }
)
"""Faults that hardly any history reveals. Those of the controller's machine are found by its own random histories."""


@pytest.mark.parametrize("first", range(0, SEEDS, _BATCH))
def test_a_cluster_keeps_its_promises(first: int) -> None:
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
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, marks=pytest.mark.xfail(reason="too rare", strict=False) if fault in _RARE else ())
        for fault in FAULTS
    ],
)
def test_a_planted_fault_is_found(fault: str) -> None:
    with FAULTS[fault]():
        assert any(play(history_of(seed)) is not None for seed in range(_SEEDS_PER_FAULT))


@pytest.mark.slow
def test_a_failing_history_shrinks() -> None:
    with FAULTS["the leader's own end is committed"]():
        history = next(history for history in map(history_of, range(_SEEDS_PER_FAULT)) if play(history) is not None)
        short = shortest(history)
        assert play(short) is not None
        assert len(short.acts) < len(history.acts)
