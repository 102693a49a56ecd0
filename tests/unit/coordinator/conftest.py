from collections.abc import Iterator

import pytest

from tests.unit.coordinator.consumer_driver import ConsumerDriver
from tests.unit.coordinator.driver import Driver


@pytest.fixture
def group() -> Iterator[Driver]:
    """A machine whose invariants are checked after every event and at the end of the test."""
    driver = Driver()
    yield driver
    driver.check()


@pytest.fixture
def consumers() -> Iterator[ConsumerDriver]:
    """A group of the consumer protocol: at the end of the test it is read from its log, and then settles."""
    driver = ConsumerDriver()
    yield driver
    driver.reload()
    driver.settle()
