"""A member of a Kafka cluster is operated like Kafka's brokers: metrics, logs, throttles, deletions, settings."""

import json
import os
import signal
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from headrace.cli.main import app
from headrace.wire.apis import ApiKey
from tests.adoption.kafka import WithZooKeeper, ZooKeeper
from tests.cluster.conftest import HEADRACE, KAFKA, Cluster, leaders, member, metadata, wait_for_brokers
from tests.support.broker_process import BrokerProcess
from tests.support.ports import free_port
from tests.support.topics import create_topic
from tests.support.waiting import wait_for
from tests.support.wire_client import WireClient

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300)]

TOPIC, BROKER = 2, 4
"""Resource types in requests about settings."""
DYNAMIC_BROKER, DYNAMIC_DEFAULT = 2, 3
"""Sources of settings in replies."""
MIB: Final = 1 << 20
START_OFFSETS: Final = "log.flush.start.offset.checkpoint.interval.ms"
FREEZABLE: Final = ("tests.support.freezable",)


@pytest.fixture(scope="module")
def http() -> str:
    return f"127.0.0.1:{free_port()}"


@pytest.fixture(scope="module")
def state_changes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log") / "state-change.log"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, http: str, state_changes: Path) -> Iterator[Cluster]:
    base = tmp_path_factory.mktemp("cluster")
    settings = {
        "headrace.http.listener": http,
        "headrace.state.change.log": str(state_changes),
        "replica.lag.time.max.ms": 2000,
    }
    with (
        ZooKeeper(base / "zookeeper") as zookeeper,
        WithZooKeeper(base / "kafka", zookeeper.address, {START_OFFSETS: "200"}) as kafka,
        member(base / "data", zookeeper.address, **settings) as headrace,
    ):
        wait_for_brokers(kafka.bootstrap, HEADRACE, KAFKA)
        wait_for_brokers(headrace.bootstrap, HEADRACE, KAFKA)
        yield Cluster(zookeeper.address, kafka, headrace)


def create(cluster: Cluster, topic: str, *replicas: list[int], **config: Any) -> None:
    create_topic(cluster.kafka.bootstrap, topic, replicas=replicas, **config)
    expected = {index: first for index, (first, *_) in enumerate(replicas)}
    for bootstrap in cluster.bootstraps.values():
        wait_for(lambda: leaders(bootstrap, topic) == expected, f"{topic} at {bootstrap}")  # noqa: B023


def produce(cluster: Cluster, topic: str, count: int, *, size: int = 10) -> None:
    failed: list[object] = []

    def delivered(error: object, _: object) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer({"bootstrap.servers": cluster.kafka.bootstrap, "linger.ms": 5, "acks": "all"})
    for _ in range(count):
        producer.produce(topic, b"v" * size, on_delivery=delivered)
        producer.poll(0)
    assert producer.flush(60) == 0
    assert not failed


def isr(cluster: Cluster, topic: str) -> set[int]:
    (found,) = metadata(cluster.kafka.bootstrap, topic)["topics"]
    return set(found["partitions"][0]["isr_nodes"])


def wait_for_isr(cluster: Cluster, topic: str, *brokers: int) -> None:
    wait_for(lambda: isr(cluster, topic) == set(brokers), f"{topic} in sync on {brokers}", timeout_s=90)


# Metrics and the state-change log


def metric(http: str, name: str, **labels: str) -> float:
    """Return the sum of the samples with these labels; -1 if there are none."""
    with urllib.request.urlopen(f"http://{http}/metrics", timeout=10) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    found = [
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    return sum(found) if found else -1


def test_a_follower_that_pauses_is_seen_in_the_metrics_of_its_leader(cluster: Cluster, http: str) -> None:
    create(cluster, "watched", [HEADRACE, KAFKA], min_insync_replicas="2")
    wait_for_isr(cluster, "watched", HEADRACE, KAFKA)
    manager = "kafka_server_replicamanager_"
    shrinks, expands = (metric(http, f"{manager}isr{change}_total") for change in ("shrinks", "expands"))
    assert metric(http, f"{manager}atminisrpartitioncount") >= 1

    with cluster.kafka.frozen():  # this also freezes the controller, which confirms the change when it continues
        produce_to_headrace(cluster, "watched")
        wait_for(lambda: "watched-0: changing the in-sync replicas" in cluster.headrace.log(), "the leader's proposal")

    # Partitions of other tests count too: a follower that has never fetched from one when it pauses leaves it as well.
    wait_for(lambda: metric(http, f"{manager}isrshrinks_total") > shrinks, "a shrink")
    wait_for(lambda: metric(http, f"{manager}isrexpands_total") > expands, "an expansion")
    wait_for(lambda: metric(http, f"{manager}underreplicatedpartitions") == 0, "in sync again")
    assert metric(http, f"{manager}underminisrpartitioncount") == 0
    assert metric(http, f"{manager}leadercount") >= 1


def produce_to_headrace(cluster: Cluster, topic: str) -> None:
    producer = Producer({"bootstrap.servers": cluster.headrace.bootstrap, "acks": 1})
    producer.produce(topic, b"v")
    assert producer.flush(30) == 0


def test_lag_and_traffic_of_fetchers_are_exported(cluster: Cluster, http: str) -> None:
    create(cluster, "copied", [KAFKA, HEADRACE])
    produce(cluster, "copied", 200)
    wait_for_isr(cluster, "copied", HEADRACE, KAFKA)

    def has_no_lag() -> bool:
        fetcher = f"ReplicaFetcherThread-0-{KAFKA}"
        return metric(http, "kafka_server_fetcherlagmetrics_consumerlag", clientId=fetcher, topic="copied") == 0

    wait_for(has_no_lag, "the lag is 0")
    port = cluster.kafka.bootstrap.rpartition(":")[2]
    assert metric(http, "kafka_server_fetcherstats_bytes_total", brokerPort=port) > 0
    assert metric(http, "kafka_server_replicafetchermanager_failedpartitionscount") == 0
    assert metric(http, "kafka_controller_kafkacontroller_activecontrollercount") == 0
    assert metric(http, "headrace_replica_elections_total", role="follower") > 0


def test_lag_includes_partitions_that_the_coordinator_does_not_lead(cluster: Cluster, http: str) -> None:
    create(cluster, "lagging", [HEADRACE], [KAFKA])
    create(cluster, "followed", [KAFKA, HEADRACE])
    places = [("lagging", 0), ("lagging", 1), ("followed", 0)]
    producer = Producer({"bootstrap.servers": cluster.kafka.bootstrap})
    for topic, partition in places * 10:
        producer.produce(topic, b"v", partition=partition)
    assert producer.flush(30) == 0
    group = commit_at_headrace(cluster, [TopicPartition(*place, 4) for place in places])

    def reported() -> Any:
        with urllib.request.urlopen(f"http://{http}/groups/describe?group={group}", timeout=10) as reply:
            return json.load(reply)

    wait_for(lambda: reported()["lag"] == 12, "the lag of the led and of the followed partition")
    assert reported()["partitions_unmeasured"] == 1
    name = "headrace_consumergroup_partitions_unmeasured"
    wait_for(lambda: metric(http, name, group=group, topic="lagging") == 1, "the next sample")

    words = ["groups", "describe", group, "--json", "--bootstrap", cluster.headrace.bootstrap]
    [described] = json.loads(CliRunner().invoke(app, words).stdout)
    assert [(item["end"], item["lag"]) for item in described["partitions"]] == [(10, 6)] * 3
    assert described["lag"] == 18


def commit_at_headrace(cluster: Cluster, offsets: list[TopicPartition]) -> str:
    """Commit the offsets for a group whose coordinator is Headrace, and return the group's name."""
    admin = AdminClient({"bootstrap.servers": cluster.kafka.bootstrap})
    for number in range(50):
        group = f"lagging-{number}"
        consumer = Consumer({"bootstrap.servers": cluster.kafka.bootstrap, "group.id": group})
        consumer.commit(offsets=offsets, asynchronous=False)
        consumer.close()
        if admin.describe_consumer_groups([group])[group].result(30).coordinator.id == HEADRACE:
            return group
    raise AssertionError("Headrace coordinates none of the groups")


def test_changes_of_partitions_are_in_the_state_change_log(cluster: Cluster, state_changes: Path) -> None:
    create(cluster, "noted", [HEADRACE, KAFKA], [KAFKA, HEADRACE])
    wait_for(lambda: "Follower noted-1" in state_changes.read_text(), "the follower's line")
    lines = [line for line in state_changes.read_text().splitlines() if "noted-" in line]
    (led,) = [line for line in lines if "Leader noted-0 starts at leader epoch 0 from offset 0" in line]
    (followed,) = [line for line in lines if "Follower noted-1 starts at leader epoch 0 from offset 0" in line]
    assert f"in-sync replicas [{HEADRACE}, {KAFKA}]" in led
    assert f"its leader is {KAFKA} (controller {KAFKA}, epoch 1)" in followed
    assert "noted-0" not in cluster.headrace.log()


# Settings


def alter(bootstrap: str, kind: int, name: str, **values: str | None) -> None:
    configs = [
        {"name": key.replace("_", "."), "config_operation": 1 if value is None else 0, "value": value}
        for key, value in values.items()
    ]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    with WireClient(bootstrap) as client:
        answer = client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource], "validate_only": False})
    assert answer["responses"][0]["error_code"] == "none", answer


def described(bootstrap: str, kind: int, name: str, setting: str) -> tuple[str, int]:
    """Return the value of a setting and the number of its source."""
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": [setting]}
    fields = {"resources": [resource]}
    with WireClient(bootstrap) as client:
        (config,) = client.ask(ApiKey.DESCRIBE_CONFIGS, 4, fields)["results"][0]["configs"]
    return config["value"], config["config_source"]


def test_settings_of_all_brokers_come_from_either_side_and_one_brokers_own_override_them(cluster: Cluster) -> None:
    setting = "log.cleaner.backoff.ms"

    def has(value: str, source: int) -> None:
        bootstrap = cluster.headrace.bootstrap
        wait_for(lambda: described(bootstrap, BROKER, str(HEADRACE), setting) == (value, source), f"{setting}={value}")

    alter(cluster.kafka.bootstrap, BROKER, "", log_cleaner_backoff_ms="4321")
    has("4321", DYNAMIC_DEFAULT)
    alter(cluster.headrace.bootstrap, BROKER, str(HEADRACE), log_cleaner_backoff_ms="1234")
    has("1234", DYNAMIC_BROKER)
    alter(cluster.headrace.bootstrap, BROKER, str(HEADRACE), log_cleaner_backoff_ms=None)
    has("4321", DYNAMIC_DEFAULT)
    alter(cluster.headrace.bootstrap, BROKER, "", log_cleaner_backoff_ms="5000")
    has("5000", DYNAMIC_DEFAULT)


# Throttles


def reassign(cluster: Cluster, topic: str, *replicas: int) -> None:
    moves = [{"partition_index": 0, "replicas": list(replicas)}]
    fields = {"timeout": 30_000, "topics": [{"name": topic, "partitions": moves}]}
    with WireClient(cluster.kafka.bootstrap) as client:
        assert client.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, fields)["error_code"] == "none"


@pytest.mark.parametrize(("role", "first", "other"), [("follower", KAFKA, HEADRACE), ("leader", HEADRACE, KAFKA)])
def test_a_throttle_limits_the_rate_of_a_reassignment(cluster: Cluster, role: str, first: int, other: int) -> None:
    rate, size = 2 * MIB, 16 * MIB
    topic = f"throttled-{role}"
    create(cluster, topic, [first])
    produce(cluster, topic, size // 10_000, size=10_000)
    written = sum(path.stat().st_size for path in leader_data(cluster, first).glob(f"{topic}-0/*.log"))
    headrace = cluster.headrace.bootstrap
    alter(headrace, BROKER, str(HEADRACE), **{f"{role}.replication.throttled.rate": str(rate)})
    alter(cluster.kafka.bootstrap, TOPIC, topic, **{f"{role}.replication.throttled.replicas": f"0:{HEADRACE}"})
    wait_for(
        lambda: described(headrace, TOPIC, topic, f"{role}.replication.throttled.replicas")[0] == f"0:{HEADRACE}",
        "Headrace knows the throttled replicas",
    )

    began = time.monotonic()
    reassign(cluster, topic, first, other)
    wait_for_isr(cluster, topic, first, other)
    took = time.monotonic() - began

    # Kafka measures after the first window, so up to a second's worth and one more fetch pass unthrottled.
    measured = written / took
    print(f"{role}: {written} bytes in {took:.1f} s, {measured / MIB:.2f} MiB/s; the limit is {rate / MIB:.0f} MiB/s")
    assert 0.4 * rate < measured < 1.3 * rate
    alter(headrace, BROKER, str(HEADRACE), **{f"{role}.replication.throttled.rate": None})
    alter(cluster.kafka.bootstrap, TOPIC, topic, **{f"{role}.replication.throttled.replicas": None})


def leader_data(cluster: Cluster, broker: int) -> Path:
    return cluster.headrace.data if broker == HEADRACE else cluster.kafka.data


# Deletions of records


def start_offset(data: Path, topic: str) -> str:
    """Return the log start offset that the broker has written; 0 before it has written any."""
    path = data / "log-start-offset-checkpoint"
    lines = path.read_text().splitlines() if path.exists() else []
    return next((line.split()[2] for line in lines if line.startswith(f"{topic} 0 ")), "0")


@pytest.mark.parametrize(("leader", "follower"), [(KAFKA, HEADRACE), (HEADRACE, KAFKA)])
def test_records_are_deleted_on_all_replicas_before_the_answer(cluster: Cluster, leader: int, follower: int) -> None:
    topic = f"cut-{leader}"
    create(cluster, topic, [leader, follower])
    produce(cluster, topic, 100)
    wait_for_isr(cluster, topic, leader, follower)
    admin = AdminClient({"bootstrap.servers": cluster.headrace.bootstrap})

    wanted = TopicPartition(topic, 0, 40)
    assert admin.delete_records([wanted], request_timeout=30)[wanted].result(40).low_watermark == 40

    data = leader_data(cluster, follower)
    wait_for(lambda: start_offset(data, topic) == "40", "the follower's checkpoint")


# Requests that any broker answers, and those of the controller


NEW_TOPIC = {"name": "t", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
GROWN = {"name": "t", "count": 2, "assignments": None}
FEATURE = {"feature": "f", "max_version_level": 1, "upgrade_type": 1}
OF_THE_CONTROLLER: dict[ApiKey, tuple[int, dict[str, Any]]] = {
    ApiKey.CREATE_TOPICS: (7, {"topics": [NEW_TOPIC], "timeout": 1000, "validate_only": False}),
    ApiKey.DELETE_TOPICS: (6, {"topics": [{"name": "t", "topic_id": None}], "timeout": 1000}),
    ApiKey.CREATE_PARTITIONS: (3, {"topics": [GROWN], "timeout": 1000, "validate_only": False}),
    ApiKey.ELECT_LEADERS: (2, {"election_type": 0, "topic_partitions": None, "timeout": 1000}),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (0, {"timeout": 1000, "topics": []}),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (0, {"timeout": 1000, "topics": None}),
    ApiKey.UPDATE_FEATURES: (1, {"timeout": 1000, "feature_updates": [FEATURE]}),
}


def errors(value: Any) -> set[str]:
    """Return all error codes in a reply."""
    if isinstance(value, list):
        return set().union(*map(errors, value))
    if isinstance(value, dict):
        own = {value["error_code"]} if "error_code" in value else set()
        return own.union(*map(errors, value.values()))
    return set()


def test_requests_of_the_controller_are_refused(cluster: Cluster) -> None:
    with WireClient(cluster.headrace.bootstrap) as client:
        found = {key: errors(client.ask(key, *request)) for key, request in OF_THE_CONTROLLER.items()}
    assert found == {key: {"not_controller"} for key in OF_THE_CONTROLLER}


# The session with ZooKeeper


def test_a_broker_that_lost_its_session_reads_settings_again_and_follows_later_ones(cluster: Cluster) -> None:
    create(cluster, "absent", [HEADRACE, KAFKA])
    registrations = cluster.headrace.log().count("Registered as broker")
    cluster.headrace.pause()
    try:
        wait_for_brokers(cluster.kafka.bootstrap, KAFKA)
        alter(cluster.kafka.bootstrap, TOPIC, "absent", retention_ms="1111111")
    finally:
        cluster.headrace.resume()

    wait_for_brokers(cluster.kafka.bootstrap, HEADRACE, KAFKA)
    assert cluster.headrace.log().count("Registered as broker") == registrations + 1
    has_retention(cluster, "1111111")
    alter(cluster.kafka.bootstrap, TOPIC, "absent", retention_ms="2222222")
    has_retention(cluster, "2222222")
    wait_for_isr(cluster, "absent", HEADRACE, KAFKA)
    produce(cluster, "absent", 10)


def has_retention(cluster: Cluster, value: str) -> None:
    bootstrap = cluster.headrace.bootstrap
    wait_for(lambda: described(bootstrap, TOPIC, "absent", "retention.ms")[0] == value, f"retention.ms={value}")


def test_a_frozen_event_loop_ends_the_process_while_its_session_is_alive(cluster: Cluster, tmp_path: Path) -> None:
    data = tmp_path / "freezable"
    joining = member(data, cluster.zookeeper, **{"broker.id": 5, "zookeeper.session.timeout.ms": 4000})
    with BrokerProcess(data, settings=joining.settings, program=FREEZABLE) as freezable:
        wait_for_brokers(cluster.kafka.bootstrap, HEADRACE, KAFKA, 5)
        os.kill(freezable.pid, signal.SIGUSR1)
        wait_for(lambda: not freezable.running, "the end of the process", timeout_s=30)
        assert "The event loop has been blocked for 4 s: ending the process" in freezable.log()
    wait_for_brokers(cluster.kafka.bootstrap, HEADRACE, KAFKA)
