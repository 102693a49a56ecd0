"""No crash loses safe records or makes a broker serve records that were never written."""

import logging
from collections.abc import Iterator

import pytest

from headrace.errors import KafkaError
from tests.crashes import faults
from tests.crashes.faults import FAULTS, Fault
from tests.crashes.play import Play

RARE: dict[Fault, int] = {
    faults.no_saved_bounds: 1,
    faults.producers_survive_a_truncation: 1,
    faults.producer_snapshots_outlive_a_truncation: 46,
    faults.epochs_of_truncated_batches_survive: 76,
}
"""The first seed to play, for faults that not every history reveals."""


@pytest.fixture(autouse=True)
def no_logging() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seed", [*range(10), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(10, 20))])
def test_every_promise_is_kept(seed: int) -> None:
    assert Play.run_seed(seed) > 50


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_storage_code_is_found(fault: Fault) -> None:
    first = RARE.get(fault, 0)
    assert any(finds(seed, fault) for seed in range(first, first + 40))


def finds(seed: int, fault: Fault) -> bool:
    try:
        Play.run_seed(seed, fault)
    except (AssertionError, KafkaError):
        return True
    return False
