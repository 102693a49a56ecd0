"""The random histories find faults: each of these is planted in the machine, and detected."""

import pytest

from tests.unit.cluster.controller.faults import FAULTS
from tests.unit.cluster.controller.history import History

SEEDS = 100
RARE = {
    "dead brokers are elected": 8,
    "dead brokers join the ISR": 19,
    "a reassignment may remove the whole ISR": 56,
    "reassignments are not resumed": 158,
}
"""The first seed to play, for faults that few histories reveal."""


def play_all(first: int) -> None:
    for seed in range(first, first + 2 * SEEDS):
        History(seed).play()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, name, plant = FAULTS[fault]
    monkeypatch.setattr(place, name, plant(getattr(place, name)))
    with pytest.raises(Exception):  # noqa: B017  any invariant, or a failure of the machine itself
        play_all(RARE.get(fault, 0))
