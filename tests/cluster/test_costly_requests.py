"""The most expensive requests to a controller keep nobody waiting."""

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import pytest

from headrace.wire.apis import ApiKey
from tests.adoption.kafka import ZooKeeper
from tests.cluster.conftest import member
from tests.hostile import expensive
from tests.hostile.attack import TOPIC, attack
from tests.hostile.expensive import frame
from tests.hostile.raw import Batch, RawConnection
from tests.support.broker_process import BrokerProcess
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.java, pytest.mark.slow]

MANY: Final = expensive.MANY


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """The only broker of a cluster on ZooKeeper."""
    directory = tmp_path_factory.mktemp("controller")
    with ZooKeeper(directory / "zookeeper") as zookeeper, member(directory / "data", zookeeper.address) as broker:
        for topic in (TOPIC, "innocent"):
            wait_for(partial(is_led, broker, topic), f"a leader of {topic}", timeout_s=60)
        yield broker
        assert broker.sigterm() == 0
        assert "Traceback" not in broker.log()


def is_led(broker: BrokerProcess, topic: str) -> bool:
    with RawConnection(broker.host, broker.port) as connection:
        connection.create_topic(topic)
        return connection.produce(topic, Batch().encode())[0] == 0


def reassigned(replicas: list[int], partitions: int) -> dict[str, Any]:
    return {
        "timeout": 1000,
        "topics": [
            {
                "name": TOPIC,
                "partitions": [{"partition_index": index, "replicas": replicas} for index in range(partitions)],
            }
        ],
    }


def elected(partitions: list[int]) -> dict[str, Any]:
    return {"election_type": 0, "topic_partitions": [{"topic": TOPIC, "partitions": partitions}], "timeout": 1000}


def stopped(replicas: int) -> dict[str, Any]:
    states = [{"partition_index": index, "leader_epoch": 1, "delete_partition": True} for index in range(replicas)]
    return {
        "controller_id": 9,
        "controller_epoch": 1,
        "topic_states": [{"topic_name": "nowhere", "partition_states": states}],
    }


def updated(endpoints: int) -> dict[str, Any]:
    endpoint = {"port": 1, "host": "", "listener": "", "security_protocol": 0}
    return {
        "controller_id": 9,
        "type": 0,
        "controller_epoch": 0,
        "topic_states": [],
        "live_brokers": [{"id": 1, "endpoints": [endpoint] * endpoints}],
    }


REQUESTS: Final = {
    "a reassignment to many brokers": (ApiKey.ALTER_PARTITION_REASSIGNMENTS, reassigned(list(range(MANY)), 1)),
    "a reassignment of many partitions": (ApiKey.ALTER_PARTITION_REASSIGNMENTS, reassigned([4], MANY // 2)),
    "an election in many partitions": (ApiKey.ELECT_LEADERS, elected(list(range(MANY)))),
    "many elections in a partition": (ApiKey.ELECT_LEADERS, elected([0] * MANY)),
    "many topics": (ApiKey.CREATE_TOPICS, expensive.REQUESTS[ApiKey.CREATE_TOPICS](TOPIC)),
    "many endpoints of a broker": (ApiKey.UPDATE_METADATA, updated(500_000)),
    "many stopped replicas": (ApiKey.STOP_REPLICA, stopped(100_000)),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_the_most_expensive_requests_to_a_controller_keep_nobody_waiting(name: str, controller: BrokerProcess) -> None:
    api, message = REQUESTS[name]
    assert attack(controller, frame(api, message))
