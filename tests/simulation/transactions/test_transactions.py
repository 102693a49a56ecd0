"""Transactions keep their promises whatever happens to producers, partitions and coordinator (see `world`)."""

import logging
from collections.abc import Iterator

import pytest

from tests.simulation.transactions.faults import FAULTS
from tests.simulation.transactions.history import history_of
from tests.simulation.transactions.world import explain, play

SEEDS = 1000
"""`make simulation SEEDS=100000` plays more."""
_IN_THE_GATE = 500
"""`make slow` plays the others."""
_BATCH = 100
_SEEDS_PER_FAULT = 150
_RARE = {
    "a reply before the commit": 344,
    "markers before the commit": 1447,
    "a fenced producer gets the new epoch": 915,
}
"""The first seed to play, for faults that only about one history in a thousand reveals."""


@pytest.fixture(autouse=True)
def _no_logging() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=[] if first < _IN_THE_GATE else [pytest.mark.slow])
        for first in range(0, SEEDS, _BATCH)
    ],
)
def test_transactions_keep_their_promises(first: int) -> None:
    for seed in range(first, first + _BATCH):
        history = history_of(seed)
        violation = play(history)
        if violation is not None:
            pytest.fail(explain(history, violation), pytrace=False)


def test_a_late_record_may_join_a_transaction_whose_marker_was_lost() -> None:
    assert play(history_of(51779)) is None


@pytest.mark.parametrize("fault", FAULTS)
def test_an_injected_fault_is_found(fault: str) -> None:
    with FAULTS[fault]():
        first = _RARE.get(fault, 0)
        assert any(_is_found(seed) for seed in range(first, first + _SEEDS_PER_FAULT))


def _is_found(seed: int) -> bool:
    """Return True if a promise is broken or the coordinator fails."""
    try:
        return play(history_of(seed)) is not None
    except KeyError:
        return True


def test_a_seed_replays_exactly() -> None:
    first: list[str] = []
    second: list[str] = []
    assert play(history_of(7), first) is None
    assert play(history_of(7), second) is None
    assert first == second
