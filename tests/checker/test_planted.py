"""The checker finds every fault planted in the broker."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.checker.analysis import Kind
from tests.checker.run import play
from tests.support.broker_process import BrokerProcess

FOUND = {
    "missing-marker": {Kind.HANGING, Kind.LOST_WRITE, Kind.SPLIT_TRANSACTION},
    "marker-twice": {Kind.DIRTY_READ, Kind.ABORTED_READ, Kind.LOST_WRITE},
    "early-reply": {Kind.DIRTY_READ, Kind.ABORTED_READ, Kind.LOST_WRITE},
    "missing-fence": {Kind.NOT_FENCED, Kind.REORDERED, Kind.LOST_WRITE, Kind.DIRTY_READ},
    "offsets-outside": {Kind.LOST_COPY},
}
"""Acceptable anomalies; the direct effects of a fault come first."""

NEEDS = {"missing-fence": ["replace_client"], "marker-twice": ["cut"], "early-reply": ["kill_broker", "kill_client"]}
"""Faults that reveal a planted fault; all kinds if missing."""

pytestmark = pytest.mark.slow


@pytest.mark.timeout(400)
@pytest.mark.parametrize("fault", FOUND)
def test_a_planted_fault_is_found(fault: str, tmp_path: Path) -> None:
    def faulty(directory: Path, settings: Mapping[str, object]) -> BrokerProcess:
        directory.mkdir()
        return BrokerProcess(directory / "data", settings=settings, program=("tests.checker.planted", fault))

    found: set[Kind] = set()
    for seed in range(1, 5):  # one seed may miss the fault
        verdict = play(seed, 8, tmp_path / str(seed), faulty, only=NEEDS.get(fault, ()))
        found |= {anomaly.kind for anomaly in verdict.anomalies}
        if found & FOUND[fault]:
            return
    pytest.fail(f"found only {found or 'nothing'}")
