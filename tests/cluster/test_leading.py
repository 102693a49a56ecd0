"""Kafka's fetcher follows partitions that Headrace leads, and Kafka's controller changes their in-sync replicas."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from headrace.clock import now_ms
from headrace.wire.apis import ApiKey
from headrace.wire.records import RecordData, build_batch
from tests.adoption.kafka import WithZooKeeper, ZooKeeper
from tests.cluster.conftest import HEADRACE, KAFKA, Cluster, leaders, member, metadata, wait_for_brokers
from tests.cluster.producing import produce, values_of
from tests.support.topics import create_topic
from tests.support.waiting import wait_for
from tests.support.wire_client import WireClient

pytestmark = [pytest.mark.java, pytest.mark.timeout(240)]

MAX_LAG_MS = 1500


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with a short replica.lag.time.max.ms, and with racks."""
    base = tmp_path_factory.mktemp("cluster")
    selector = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
    settings = {
        "replica.lag.time.max.ms": MAX_LAG_MS,
        "replica.selector.class": selector,
        "broker.rack": "a",
    }
    with (
        ZooKeeper(base / "zookeeper") as zookeeper,
        WithZooKeeper(base / "kafka", zookeeper.address, {"broker.rack": "b"}) as kafka,
        member(base / "data", zookeeper.address, **settings) as headrace,
    ):
        wait_for_brokers(kafka.bootstrap, HEADRACE, KAFKA)
        wait_for_brokers(headrace.bootstrap, HEADRACE, KAFKA)
        yield Cluster(zookeeper.address, kafka, headrace)


def create(cluster: Cluster, topic: str, **settings: Any) -> None:
    """Create a topic with one partition that Headrace leads and Kafka follows."""
    create_topic(cluster.kafka.bootstrap, topic, replicas=[[HEADRACE, KAFKA]], **settings)
    for bootstrap in cluster.bootstraps.values():
        wait_for(lambda bootstrap=bootstrap: leaders(bootstrap, topic) == {0: HEADRACE}, f"{topic} at {bootstrap}")  # type: ignore[misc]


def records(data: Path, topic: str) -> bytes:
    """Return the bytes of all segments of partition 0."""
    return b"".join(path.read_bytes() for path in sorted((data / f"{topic}-0").glob("*.log")))


def copies_are_equal(cluster: Cluster, topic: str) -> bool:
    return records(cluster.kafka.data, topic) == records(cluster.headrace.data, topic)


def isr(cluster: Cluster, topic: str) -> list[int]:
    """Return the in-sync replicas that Kafka's controller has announced."""
    (found,) = metadata(cluster.kafka.bootstrap, topic)["topics"]
    (partition,) = found["partitions"]
    return sorted(partition["isr_nodes"])


def produce_once(cluster: Cluster, topic: str, *, timeout_ms: int) -> str:
    """Send one record to Headrace, and return the name of the error."""
    batch = build_batch([RecordData(None, b"late", now_ms())])
    with WireClient(cluster.headrace.bootstrap) as client:
        fields = {
            "acks": -1,
            "timeout": timeout_ms,
            "topic_data": [{"name": topic, "partition_data": [{"index": 0, "records": batch}]}],
        }
        answer = client.ask(ApiKey.PRODUCE, 9, fields)
    error: str = answer["responses"][0]["partition_responses"][0]["error_code"]
    return error


def test_acks_all_waits_for_kafka_and_its_log_is_equal(cluster: Cluster) -> None:
    create(cluster, "led", min_insync_replicas=2)

    produce(cluster.headrace.bootstrap, "led", *values_of("led", 3000))

    assert copies_are_equal(cluster, "led")
    assert isr(cluster, "led") == [HEADRACE, KAFKA]


@pytest.mark.slow
def test_a_follower_that_stops_leaves_the_isr_and_returns(cluster: Cluster) -> None:
    create(cluster, "stopped", min_insync_replicas=2)
    produce(cluster.headrace.bootstrap, "stopped", *values_of("stopped"))
    shrunk = "stopped-0: changing the in-sync replicas from [4, 7] to [4]"

    # The follower is also the controller, so the ISR cannot change, and nothing may be committed.
    with cluster.kafka.frozen():
        assert produce_once(cluster, "stopped", timeout_ms=200) == "request_timed_out"
        wait_for(lambda: shrunk in cluster.headrace.log(), "a proposal to shrink the ISR")
        assert produce_once(cluster, "stopped", timeout_ms=200) == "request_timed_out"
        assert "stopped-0: the in-sync replicas are now [4]" not in cluster.headrace.log()

    wait_for(lambda: "stopped-0: the in-sync replicas are now [4, 7]" in cluster.headrace.log(), "the follower returns")
    wait_for(lambda: copies_are_equal(cluster, "stopped"), "the follower's log")
    assert isr(cluster, "stopped") == [HEADRACE, KAFKA]
    assert produce_once(cluster, "stopped", timeout_ms=20_000) == "none"


@pytest.mark.slow
def test_a_consumer_is_sent_to_kafka_in_its_rack(cluster: Cluster) -> None:
    create(cluster, "near")
    produce(cluster.headrace.bootstrap, "near", *values_of("near"))
    topics: list[dict[str, object]] = [
        {
            "topic": "near",
            "partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}],
        }
    ]
    fields = {
        "replica_id": -1,
        "max_wait": 0,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "topics": topics,
        "forgotten_topics_data": [],
        "rack_id": "b",
    }
    with WireClient(cluster.headrace.bootstrap) as client:
        answer = client.ask(ApiKey.FETCH, 12, fields)
    assert answer["responses"][0]["partitions"][0]["preferred_read_replica"] == KAFKA

    consumer = Consumer(
        {"bootstrap.servers": cluster.headrace.bootstrap, "group.id": "near", "client.rack": "b", "check.crcs": True}
    )
    consumer.assign([TopicPartition("near", 0, 0)])
    read: list[bytes | None] = []
    try:
        while len(read) < 100:
            message = consumer.poll(60)
            assert message is not None
            if message.error() is None:
                read.append(message.value())
    finally:
        consumer.close()
    assert read == values_of("near")
