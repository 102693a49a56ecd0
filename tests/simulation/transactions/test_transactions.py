"""A rare history that keeps the promises about transactions, and faults that break them."""

import pytest

from tests.simulation.transactions.faults import FAULTS
from tests.simulation.transactions.history import history_of
from tests.simulation.transactions.world import play

_SEEDS_PER_FAULT = 150
_RARE = {
    "a reply before the commit": 344,
    "markers before the commit": 1447,
    "a fenced producer gets the new epoch": 915,
}
"""The first seed to play, for faults that only about one history in a thousand reveals."""


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
