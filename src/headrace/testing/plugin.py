"""Fixtures, which pytest finds automatically once Headrace is installed.

`headrace_broker` is a new broker for each test; `headrace_session_broker` is shared by all tests of a run (or of a
pytest-xdist worker). Override `headrace_settings` to change Kafka's settings for a test, a module or everywhere.
`headrace_lake` is a new lake for each test of a Spark job.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from headrace.testing import Broker, Settings

if TYPE_CHECKING:
    from headrace.testing.pipeline import Lake


@pytest.fixture(scope="session")
def headrace_settings() -> Settings:
    """Return the settings for the brokers that the other fixtures start; override this fixture to change them."""
    return {}


@pytest.fixture
def headrace_broker(headrace_settings: Settings) -> Iterator[Broker]:
    """A new broker for each test; its address is `headrace_broker.bootstrap`."""
    with Broker(headrace_settings) as broker:
        yield broker


@pytest.fixture(scope="session")
def headrace_session_broker(headrace_settings: Settings) -> Iterator[Broker]:
    """A broker that all tests share; use different topics in every test."""
    with Broker(headrace_settings) as broker:
        yield broker


@pytest.fixture
def headrace_lake() -> "Iterator[Lake]":
    """A new, empty lake for each test of a Spark job; needs the extra `headrace[pipeline]` and Java."""
    from headrace.testing.pipeline import Lake

    with Lake() as lake:
        yield lake
