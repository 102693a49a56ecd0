"""A broker joins a real cluster, or refuses with a reason and advice."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from kazoo.client import KazooClient

from tests.adoption.kafka import WithZooKeeper, ZooKeeper
from tests.cluster.conftest import HEADRACE, KAFKA, leaders, member, metadata, wait_for_brokers
from tests.cluster.producing import produce, values_of
from tests.support.topics import create_topic
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.java, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    """Every test has its own cluster, below a separate path."""
    with ZooKeeper(tmp_path_factory.mktemp("zookeeper")) as zookeeper:
        yield zookeeper


@pytest.fixture
def tree(zookeeper: ZooKeeper, tmp_path: Path) -> Iterator[KazooClient]:
    """The ZooKeeper tree of a cluster without brokers; its address is `address_of(tree)`."""
    root = KazooClient(zookeeper.address)
    root.start(30)
    path = f"/{tmp_path.name}"
    for name in ("cluster", "brokers/ids", "brokers/topics", "config/changes"):
        root.ensure_path(f"{path}/{name}")
    root.create(f"{path}/cluster/id", json.dumps({"version": "1", "id": "the-cluster"}).encode())
    root.chroot = path
    yield root
    root.chroot = ""
    root.stop()
    root.close()


def address_of(tree: KazooClient) -> str:
    host, port = tree.hosts[0]
    return f"{host}:{port}{tree.chroot}"


def refusal(data: Path, zookeeper: str, **settings: object) -> str:
    """Start a broker that must not join, and return its error."""
    joining = member(data, zookeeper, **settings)
    with pytest.raises(AssertionError):
        joining.start()
    joining.close()
    last = [line for line in joining.log().splitlines() if line.startswith("headrace: ")][-1]
    assert joining.log().rstrip().endswith(last), "the error is the last line"
    return last.removeprefix("headrace: ")


def test_directories_of_another_cluster_are_refused(tree: KazooClient, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "meta.properties").write_text(f"version=0\nbroker.id={HEADRACE}\ncluster.id=another\n")
    error = refusal(data, address_of(tree))
    assert "another" in error
    assert "the-cluster" in error


@pytest.mark.slow
def test_a_cluster_with_acls_is_refused(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    address = f"{zookeeper.address}/acls"
    settings = {
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with WithZooKeeper(tmp_path / "kafka", address, settings) as kafka:
        acl = AclBinding(
            ResourceType.TOPIC,
            "secret",
            ResourcePatternType.LITERAL,
            "User:alice",
            "*",
            AclOperation.READ,
            AclPermissionType.ALLOW,
        )
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        admin.create_acls([acl])[acl].result(30)
        error = refusal(tmp_path / "data", address)
    assert error == (
        "the cluster has ACLs (/kafka-acl/Topic), which Headrace does not enforce: delete them before Headrace joins"
    )


@pytest.mark.slow
def test_old_message_formats_on_disk_are_refused_with_the_topic(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    address = f"{zookeeper.address}/old"
    settings = {
        "broker.id": str(HEADRACE),
        "inter.broker.protocol.version": "2.8",
        "log.message.format.version": "0.10.2",
    }
    kafka = WithZooKeeper(tmp_path / "kafka", address, settings)
    kafka.settings |= settings
    with kafka:
        produce(kafka.bootstrap, "ancient", b"0", b"1", b"2", idempotent=False)
        kafka.sigterm()
    error = refusal(kafka.data, address)
    assert "ancient-0" in error
    assert "message format v1" in error
    assert "copy the topic to a new one with a client" in error


def isr(bootstrap: str, topic: str) -> Sequence[set[int]]:
    (found,) = metadata(bootstrap, topic)["topics"]
    return [set(partition["isr_nodes"]) for partition in found["partitions"]]


@pytest.mark.slow
def test_brokers_with_the_protocol_of_kafka_3_4_replicate_both_ways(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    address = f"{zookeeper.address}/ibp34"
    version = {"inter.broker.protocol.version": "3.4"}
    with (
        WithZooKeeper(tmp_path / "kafka", address, version) as kafka,
        member(tmp_path / "data", address, **version) as headrace,
    ):
        wait_for_brokers(kafka.bootstrap, HEADRACE, KAFKA)
        wait_for_brokers(headrace.bootstrap, HEADRACE, KAFKA)
        create_topic(kafka.bootstrap, "both", replicas=[[HEADRACE, KAFKA], [KAFKA, HEADRACE]])
        expected = {0: HEADRACE, 1: KAFKA}
        wait_for(lambda: leaders(headrace.bootstrap, "both") == expected, "leaders on both")
        produce(headrace.bootstrap, "both", *values_of("both", 200), partitions=2)
        wait_for(lambda: isr(kafka.bootstrap, "both") == [{HEADRACE, KAFKA}] * 2, "both replicas in sync")
        wait_for(lambda: same_bytes(kafka.data, headrace.data, "both-0"), "equal logs of partition 0", timeout_s=20)
        wait_for(lambda: same_bytes(kafka.data, headrace.data, "both-1"), "equal logs of partition 1", timeout_s=20)


def same_bytes(first: Path, second: Path, partition: str) -> bool:
    name = Path(partition) / "00000000000000000000.log"
    content = (first / name).read_bytes()
    return bool(content) and content == (second / name).read_bytes()
