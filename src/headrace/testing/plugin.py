"""Fixtures that pytest finds by itself once Headrace is installed.

`headrace_broker` is a fresh broker for one test; `headrace_session_broker` one for the whole run (of each
pytest-xdist worker). Override `headrace_settings` to change Kafka's settings for a test, a module or everywhere.
"""

from collections.abc import Iterator

import pytest

from headrace.testing import Broker, Settings


@pytest.fixture(scope="session")
def headrace_settings() -> Settings:
    """Settings of the brokers of the other fixtures: override it where your tests need others."""
    return {}


@pytest.fixture
def headrace_broker(headrace_settings: Settings) -> Iterator[Broker]:
    """A broker of this test's own; its address is `headrace_broker.bootstrap`."""
    with Broker(headrace_settings) as broker:
        yield broker


@pytest.fixture(scope="session")
def headrace_session_broker(headrace_settings: Settings) -> Iterator[Broker]:
    """A broker that all tests share; give each test topics of its own."""
    with Broker(headrace_settings) as broker:
        yield broker
