"""The random histories find faults: each of these is planted in the machine, and detected."""

import pytest

from tests.unit.cluster.controller.faults import FAULTS
from tests.unit.cluster.controller.history import History

SEEDS = 200
FIRST_SEEDS = {
    "the version of a written state is not predicted": 14,
    "reassignments are not resumed": 158,
    "a reassignment may remove the whole ISR": 56,
    "dead brokers join the ISR": 34,
    "restarts between two controllers are ignored": 29,
    "dead brokers are elected": 27,
    "elections are unclean": 5,
    "nobody is elected": 29,
    "dead replicas stay in the ISR": 22,
    "deletions are not resumed": 55,
    "failed deletions are ignored": 40,
    "leaders are not announced": 16,
    "followers get no orders": 52,
}
"""The seed to start with, for faults that show only in rare or late histories."""


def is_found(first: int) -> bool:
    try:
        for seed in range(first, first + SEEDS):
            History(seed).play()
    except Exception:  # noqa: BLE001  any invariant, or a failure of the machine itself
        return True
    return False


def test_planted_faults_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    missed = []
    for fault, (place, name, plant) in FAULTS.items():
        with monkeypatch.context() as patch:
            patch.setattr(place, name, plant(getattr(place, name)))
            if not is_found(FIRST_SEEDS.get(fault, 0)):
                missed.append(fault)
    assert missed == []
