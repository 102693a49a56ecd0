from collections.abc import Iterator

import pytest

from tests.unit.coordinator.driver import Driver


@pytest.fixture
def group() -> Iterator[Driver]:
    """A machine whose invariants are checked after every event and at the end of the test."""
    driver = Driver()
    yield driver
    driver.check()
