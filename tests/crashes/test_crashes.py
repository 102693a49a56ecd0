"""No crash loses safe records or makes a broker serve records that were never written."""

import logging
from collections.abc import Iterator

import pytest

from headrace.errors import KafkaError
from tests.crashes.faults import FAULTS, Fault
from tests.crashes.play import Play


@pytest.fixture(autouse=True)
def no_logging() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seed", range(40))
def test_every_promise_is_kept(seed: int) -> None:
    assert Play.run_seed(seed) > 50


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_storage_code_is_found(fault: Fault) -> None:
    assert any(finds(seed, fault) for seed in range(40))


def finds(seed: int, fault: Fault) -> bool:
    try:
        Play.run_seed(seed, fault)
    except (AssertionError, KafkaError):
        return True
    return False
