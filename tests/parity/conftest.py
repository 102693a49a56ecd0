"""Both brokers for the session, and the report of their differences."""

import itertools
import secrets
from collections.abc import Generator, Iterator

import pytest

from headrace.testing import Broker
from tests.parity.both import Both, Names
from tests.support.kafka_process import SETTINGS, kafka_bootstrap  # noqa: F401


@pytest.fixture(scope="session")
def session_both(kafka_bootstrap: str) -> Iterator[Both]:  # noqa: F811
    with Broker(SETTINGS) as headrace:
        both = Both(kafka_bootstrap, headrace.bootstrap)
        both.warm_up()
        yield both


@pytest.fixture
def both(session_both: Both) -> Iterator[Both]:
    session_both.take_differences()
    yield session_both
    session_both.close()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> Names:
    """A generator of topic and group names, unique across tests and runs against the same Kafka."""
    numbers = itertools.count(1)
    test = "".join(item if item.isalnum() else "-" for item in request.node.name.removeprefix("test_")).strip("-")
    run = secrets.token_hex(3)
    return lambda: f"{test[:60]}-{run}-{next(numbers)}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Fail a test with differences, and show all of them."""
    result = yield
    both = getattr(item, "funcargs", {}).get("both")
    if isinstance(both, Both) and (found := both.take_differences()):
        pytest.fail("\n".join(found), pytrace=False)
    return result
