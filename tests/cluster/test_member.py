"""A Headrace broker is a member of a Kafka cluster: it obeys the controller, and clients use it like any broker."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType
from kazoo.client import KazooClient

from headrace.wire.apis import ApiKey
from tests.cluster.conftest import HEADRACE, KAFKA, Cluster, leaders, leave, member, metadata, wait_for_brokers
from tests.cluster.producing import produce, values_of
from tests.support.broker_process import BrokerProcess
from tests.support.topics import read_values
from tests.support.waiting import wait_for
from tests.support.wire_client import WireClient

pytestmark = [pytest.mark.java, pytest.mark.timeout(240)]

SIDES = pytest.mark.parametrize("side", ["kafka", "headrace"])


def create(cluster: Cluster, topic: str, *replicas: list[int], config: dict[str, str] | None = None) -> None:
    """Create a topic with one partition per list of replicas, and wait until all brokers know it."""
    admin = AdminClient({"bootstrap.servers": cluster.headrace.bootstrap})
    new = NewTopic(topic, len(replicas), replica_assignment=list(replicas), config=config or {})
    wait_for(lambda: _is_created(admin, new), f"the creation of {topic}")
    expected = {index: first for index, (first, *_) in enumerate(replicas)}
    for bootstrap in cluster.bootstraps.values():
        wait_for(lambda: leaders(bootstrap, topic) == expected, f"{topic} at {bootstrap}")  # noqa: B023


def _is_created(admin: AdminClient, new: NewTopic) -> bool:
    """Create a topic. Return False while an earlier topic of that name is being deleted."""
    try:
        admin.create_topics([new])[new.topic].result(30)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
        return False
    return True


def delete(cluster: Cluster, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.headrace.bootstrap})
    admin.delete_topics([topic])[topic].result(30)


def directories(cluster: Cluster, topic: str) -> list[str]:
    return sorted(path.name for path in cluster.headrace.data.glob(f"{topic}-*"))


def test_both_brokers_announce_the_same_cluster(cluster: Cluster) -> None:
    kafka, headrace = (metadata(bootstrap) for bootstrap in cluster.bootstraps.values())
    for answer in (kafka, headrace):
        assert {broker["node_id"]: broker["port"] for broker in answer["brokers"]} == {
            HEADRACE: cluster.headrace.port,
            KAFKA: int(cluster.kafka.bootstrap.rpartition(":")[2]),
        }
        assert answer["controller_id"] == KAFKA
    assert kafka["cluster_id"] == headrace["cluster_id"]
    assert headrace["cluster_id"] in (cluster.headrace.data / "meta.properties").read_text()


@SIDES
def test_records_pass_through_headrace_from_either_bootstrap(cluster: Cluster, side: str) -> None:
    topic = f"records-{side}"
    create(cluster, topic, [HEADRACE], [KAFKA])
    values = values_of(side)
    produce(cluster.bootstraps[side], topic, *values, partitions=2)
    for bootstrap in cluster.bootstraps.values():
        assert set(read_values(bootstrap, topic)) == set(values)
    assert directories(cluster, topic) == [f"{topic}-0"]


def test_a_deleted_topic_leaves_no_files_and_can_be_created_again(cluster: Cluster) -> None:
    create(cluster, "deleted", [HEADRACE], [HEADRACE])
    produce(cluster.headrace.bootstrap, "deleted", *values_of("gone"))
    assert directories(cluster, "deleted") == ["deleted-0", "deleted-1"]
    delete(cluster, "deleted")
    for bootstrap in cluster.bootstraps.values():
        wait_for(lambda: not leaders(bootstrap, "deleted"), f"no topic at {bootstrap}")  # noqa: B023
    wait_for(lambda: not directories(cluster, "deleted"), "no directories", timeout_s=90)
    create(cluster, "deleted", [HEADRACE])
    produce(cluster.headrace.bootstrap, "deleted", b"new")
    assert read_values(cluster.headrace.bootstrap, "deleted") == [b"new"]


@SIDES
def test_changed_settings_are_seen_by_both_brokers(cluster: Cluster, side: str) -> None:
    topic = f"settings-{side}"
    create(cluster, topic, [HEADRACE])
    entry = ConfigEntry("retention.ms", "7777777", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": cluster.bootstraps[side]})
    admin.incremental_alter_configs([resource])[resource].result(30)
    for bootstrap in cluster.bootstraps.values():
        wait_for(lambda: retention_of(bootstrap, topic) == "7777777", f"seen by {bootstrap}")  # noqa: B023


def retention_of(bootstrap: str, topic: str) -> str:
    with WireClient(bootstrap) as client:
        resource = {"resource_type": 2, "resource_name": topic, "configuration_keys": ["retention.ms"]}
        answer = client.ask(
            ApiKey.DESCRIBE_CONFIGS,
            4,
            {"resources": [resource]},
        )
    return str(answer["results"][0]["configs"][0]["value"])


@SIDES
def test_a_producer_creates_a_topic_through_either_broker(cluster: Cluster, side: str) -> None:
    topic = f"auto-{side}"
    produce(cluster.bootstraps[side], topic, b"first")
    assert read_values(cluster.headrace.bootstrap, topic) == [b"first"]


def test_only_the_controller_deletes_topics(cluster: Cluster) -> None:
    with WireClient(cluster.headrace.bootstrap) as client:
        topics = [{"name": "t", "topic_id": None}]
        answer = client.ask(ApiKey.DELETE_TOPICS, 6, {"topics": topics, "timeout": 1000})
    assert answer["responses"][0]["error_code"] == "not_controller"


@pytest.fixture
def extra(cluster: Cluster, tmp_path: Path) -> Iterator[BrokerProcess]:
    """A second Headrace broker of the cluster, not started."""
    broker = member(tmp_path / "extra", cluster.zookeeper, **{"broker.id": 5})
    yield broker
    if broker.running:
        broker.resume()
        leave(broker, cluster)


@pytest.mark.slow
def test_a_clean_stop_leaves_the_cluster_at_once(cluster: Cluster, extra: BrokerProcess) -> None:
    extra.start()
    wait_for_brokers(cluster.kafka.bootstrap, HEADRACE, KAFKA, 5)
    assert extra.sigterm() == 0
    wait_for_brokers(cluster.kafka.bootstrap, HEADRACE, KAFKA)
    assert "Controlled shutdown is complete" in extra.log()


def registration(cluster: Cluster, broker: int) -> int:
    """Return the broker's epoch."""
    client = KazooClient(cluster.zookeeper)
    client.start(20)
    try:
        epoch: int = client.exists(f"/brokers/ids/{broker}").czxid
        return epoch
    finally:
        client.stop()
        client.close()


def test_records_survive_a_kill(cluster: Cluster, extra: BrokerProcess) -> None:
    extra.start()
    wait_for_brokers(cluster.kafka.bootstrap, HEADRACE, KAFKA, 5)
    create(cluster, "killed", [5])
    values = values_of("killed")
    produce(cluster.kafka.bootstrap, "killed", *values)
    before = registration(cluster, 5)
    extra.restart()
    assert registration(cluster, 5) > before, "it serves only when it is registered again"
    wait_for_brokers(cluster.kafka.bootstrap, HEADRACE, KAFKA, 5)
    produce(cluster.kafka.bootstrap, "killed", b"last")
    assert set(read_values(cluster.kafka.bootstrap, "killed")) == {*values, b"last"}


@pytest.mark.slow
def test_an_id_that_is_taken_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    twin = member(tmp_path / "twin", cluster.zookeeper, **{"zookeeper.session.timeout.ms": 4000})
    with pytest.raises(AssertionError, match="Another broker with id 4 is running"):
        twin.start()


def test_directories_of_another_cluster_are_refused(cluster: Cluster, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "own") as own:
        assert own.sigterm() == 0
    joining = member(tmp_path / "own", cluster.zookeeper, **{"broker.id": 0})
    with pytest.raises(AssertionError, match="which has only this broker"):
        joining.start()


def test_the_first_broker_below_a_path_creates_a_cluster(cluster: Cluster, tmp_path: Path) -> None:
    with member(tmp_path / "first", f"{cluster.zookeeper}/elsewhere") as first:
        wait_for_brokers(first.bootstrap, HEADRACE)
        assert "This broker is now the controller, with epoch 1" in first.log()
