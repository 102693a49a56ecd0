from collections.abc import Iterator

import pytest

from tests.unit.coordinator.consumer_driver import ConsumerDriver
from tests.unit.coordinator.driver import Driver


@pytest.fixture
def group() -> Iterator[Driver]:
    """A classic group whose invariants are checked after every event and at the end of the test."""
    driver = Driver()
    yield driver
    driver.check()


@pytest.fixture
def consumers() -> Iterator[ConsumerDriver]:
    """A consumer group that must survive a reload and settle at the end of the test."""
    driver = ConsumerDriver()
    yield driver
    driver.reload()
    driver.settle()
