"""The fixtures of `tests/clients` with a cluster of two Kafka brokers and a Headrace broker."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.clients.brokers import SETTINGS
from tests.clients.conftest import client, start_driver, topic
from tests.clients.drivers.contract import ClientDriver
from tests.clients.members import QUICK_GROUPS
from tests.cluster.clients.sides import SIDES, Side
from tests.cluster.conftest import HEADRACE
from tests.cluster.mixed import GROUPS, KAFKAS, TRANSACTIONS, MixedCluster, mixed_cluster

__all__ = ["client", "topic"]

_INTERNAL = {GROUPS: 6, TRANSACTIONS: 3}
_SETTINGS = {
    **QUICK_GROUPS,
    **SETTINGS,
    "offsets.topic.num.partitions": _INTERNAL[GROUPS],
    "transaction.state.log.num.partitions": _INTERNAL[TRANSACTIONS],
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark slow tests, and deselect some.

    Kafka 3.9 with ZooKeeper lacks the consumer protocol, and one broker shows that clients can write every codec.
    """
    own = [item for item in items if "tests/cluster/clients/" in item.nodeid]
    left_out = [item for item in own if _needs_consumer_protocol(item) or _codec(item) not in ("", "zstd")]
    items[:] = [item for item in items if item not in left_out]
    for item in own:
        item.add_marker(pytest.mark.timeout(400))
        item.add_marker(pytest.mark.slow)


def _parameter(item: pytest.Item, name: str) -> Any:
    return item.callspec.params.get(name) if hasattr(item, "callspec") else None


def _codec(item: pytest.Item) -> str:
    return _parameter(item, "codec") or ""


def _needs_consumer_protocol(item: pytest.Item) -> bool:
    protocol = _parameter(item, "protocol")
    return (protocol.get("group.protocol") if isinstance(protocol, dict) else protocol) == "consumer"


@pytest.fixture(scope="session")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    """A cluster with the internal topics on all brokers, of which every broker leads a third of the partitions."""
    with mixed_cluster(tmp_path_factory.mktemp("mixed"), _SETTINGS) as cluster:
        brokers = [HEADRACE, *KAFKAS]
        for name, count in _INTERNAL.items():
            replicas = [brokers[index % 3 :] + brokers[: index % 3] for index in range(count)]
            cluster.create_topic(name, replicas, cleanup_policy="compact")
        yield cluster


@pytest.fixture(params=SIDES)
def shared_broker(mixed: MixedCluster, request: pytest.FixtureRequest) -> Side:
    return Side(mixed, request.param)


@pytest.fixture
def own_broker(shared_broker: Side) -> Side:
    return shared_broker


@pytest.fixture
def broker(shared_broker: Side) -> Side:
    return shared_broker


@pytest.fixture
def driver(client: str, shared_broker: Side) -> Iterator[ClientDriver]:
    driver = shared_broker.waits_for_topics(start_driver(client, shared_broker))
    yield driver
    driver.close()


@pytest.fixture
def own_driver(driver: ClientDriver) -> ClientDriver:
    return driver
