"""Fixtures of the client tests: brokers, topic names, and clients."""

import os
import uuid
from collections.abc import Iterator

import pytest

from tests.clients.brokers import BrokerUnderTest, start_broker
from tests.clients.drivers import DRIVERS
from tests.clients.drivers.contract import ClientDriver, MissingClientError


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerUnderTest]:
    """A broker for all tests that leave it running."""
    broker = start_broker(tmp_path_factory.mktemp("broker"))
    yield broker
    broker.close()


@pytest.fixture
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerUnderTest]:
    """A broker that the test may kill."""
    broker = start_broker(tmp_path_factory.mktemp("broker"))
    yield broker
    broker.close()


@pytest.fixture
def topic() -> str:
    return f"clients-{uuid.uuid4().hex[:12]}"


@pytest.fixture(params=DRIVERS)
def client(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def driver(client: str, shared_broker: BrokerUnderTest) -> Iterator[ClientDriver]:
    driver = start_driver(client, shared_broker)
    yield driver
    driver.close()


@pytest.fixture
def own_driver(client: str, own_broker: BrokerUnderTest) -> Iterator[ClientDriver]:
    driver = start_driver(client, own_broker)
    yield driver
    driver.close()


def start_driver(client: str, broker: BrokerUnderTest) -> ClientDriver:
    """Skip the test if the client is not installed, unless HEADRACE_ALL_CLIENTS demands all of them."""
    try:
        return DRIVERS[client](broker.bootstrap)
    except MissingClientError as missing:
        if os.environ.get("HEADRACE_ALL_CLIENTS"):
            raise
        pytest.skip(str(missing))
