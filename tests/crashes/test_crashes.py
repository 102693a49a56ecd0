"""No crash loses what was safe, and none makes a start serve what was never written."""

import logging
from collections.abc import Iterator

import pytest

from headrace.errors import KafkaError
from tests.crashes.faults import FAULTS, Fault
from tests.crashes.play import Play


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Thousands of recoveries have much to tell."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seed", range(40))
def test_every_promise_is_kept(seed: int) -> None:
    assert Play.all_of(seed) > 50


@pytest.mark.parametrize("fault", FAULTS)
def test_a_mistake_in_the_storage_code_is_found(fault: Fault) -> None:
    assert any(finds(seed, fault) for seed in range(40))


def finds(seed: int, fault: Fault) -> bool:
    """Whether what the seed does shows the mistake."""
    try:
        Play.all_of(seed, fault)
    except (AssertionError, KafkaError):
        return True
    return False
