"""A cluster of Apache Kafka 3.9 with ZooKeeper, whose controller is broker 7, and Headrace as broker 4."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from headrace.wire.apis import ApiKey
from tests.adoption.kafka import WithZooKeeper, ZooKeeper
from tests.support.broker_process import BrokerProcess
from tests.support.waiting import wait_for
from tests.support.wire_client import WireClient

HEADRACE = 4
KAFKA = 7
SESSION_TIMEOUT_MS = 6000
_WITHIN_S = 40.0


class Cluster(NamedTuple):
    """A cluster whose brokers are running."""

    zookeeper: str
    kafka: WithZooKeeper
    headrace: BrokerProcess

    @property
    def bootstraps(self) -> dict[str, str]:
        return {"kafka": self.kafka.bootstrap, "headrace": self.headrace.bootstrap}


def member(data: Path, zookeeper: str, /, *more_data: Path, **settings: object) -> BrokerProcess:
    """Return a Headrace broker that joins the cluster when it is started; `more_data` are further log directories."""
    joining = {
        "broker.id": HEADRACE,
        "zookeeper.connect": zookeeper,
        "zookeeper.session.timeout.ms": SESSION_TIMEOUT_MS,
        "group.initial.rebalance.delay.ms": 0,
        "group.min.session.timeout.ms": 100,
        # The first broker that needs these topics creates them, so use the same settings as for Kafka.
        "offsets.topic.num.partitions": 3,
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.num.partitions": 2,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "log.segment.delete.delay.ms": 0,
    }
    return BrokerProcess(data, settings={**joining, **settings}, more_data=more_data)


def metadata(bootstrap: str, *topics: str) -> dict[str, Any]:
    """Return the reply to Metadata for these topics, without creating them."""
    with WireClient(bootstrap) as client:
        fields = {
            "topics": [{"name": name, "topic_id": None} for name in topics],
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": False,
        }
        return client.ask(ApiKey.METADATA, 12, fields)


def wait_for_brokers(bootstrap: str, *brokers: int) -> None:
    """Wait until Metadata from `bootstrap` contains exactly these brokers."""

    def announced() -> bool:
        return {broker["node_id"] for broker in metadata(bootstrap)["brokers"]} == set(brokers)

    wait_for(announced, f"brokers {brokers} in the metadata of {bootstrap}", timeout_s=_WITHIN_S)


def leave(broker: BrokerProcess | WithZooKeeper, cluster: Cluster) -> None:
    """Stop a third broker, and wait until it has left the cluster; until then it may be assigned new partitions."""
    broker.sigterm()
    for bootstrap in cluster.bootstraps.values():
        wait_for_brokers(bootstrap, HEADRACE, KAFKA)


def leaders(bootstrap: str, topic: str) -> dict[int, int]:
    """Return the leaders of the topic's partitions; empty if the topic does not exist."""
    (found,) = metadata(bootstrap, topic)["topics"]
    return {partition["partition_index"]: partition["leader_id"] for partition in found["partitions"]}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    base = tmp_path_factory.mktemp("cluster")
    with (
        ZooKeeper(base / "zookeeper") as zookeeper,
        WithZooKeeper(base / "kafka", zookeeper.address) as kafka,
        member(base / "data", zookeeper.address) as headrace,
    ):
        wait_for_brokers(kafka.bootstrap, HEADRACE, KAFKA)
        wait_for_brokers(headrace.bootstrap, HEADRACE, KAFKA)
        yield Cluster(zookeeper.address, kafka, headrace)
