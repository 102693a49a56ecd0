"""In one cluster, Headrace and Kafka coordinate the groups and transactions of the partitions that they lead."""

import uuid
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.coordinator.runtime.partitioner import partition_for
from headrace.wire.apis import ApiKey
from tests.cluster.conftest import HEADRACE, KAFKA, Cluster, leaders
from tests.cluster.producing import produce
from tests.support.waiting import wait_for
from tests.support.wire_client import WireClient

pytestmark = [pytest.mark.java, pytest.mark.timeout(240)]

GROUP, TRANSACTION = 0, 1
INTERNAL = {GROUP: "__consumer_offsets", TRANSACTION: "__transaction_state"}
TOPIC = "both"
LEADERS = {
    # Kafka uses the number of partitions in its settings, because it starts before the topics exist.
    "__consumer_offsets": [HEADRACE, KAFKA, HEADRACE],
    "__transaction_state": [HEADRACE, KAFKA],
    TOPIC: [HEADRACE, KAFKA],
}
SIDES = pytest.mark.parametrize("side", ["kafka", "headrace"])
COORDINATORS = pytest.mark.parametrize("coordinator", [HEADRACE, KAFKA], ids=["headrace", "kafka"])


@pytest.fixture(scope="module", autouse=True)
def topics(cluster: Cluster) -> None:
    """Create the internal topics and another one on both brokers."""
    admin = AdminClient({"bootstrap.servers": cluster.kafka.bootstrap})
    new = [
        NewTopic(
            name,
            len(brokers),
            replica_assignment=[[broker] for broker in brokers],
            config={} if name == TOPIC else {"cleanup.policy": "compact"},
        )
        for name, brokers in LEADERS.items()
    ]
    for created in admin.create_topics(new).values():
        created.result(30)
    for name, brokers in LEADERS.items():
        for bootstrap in cluster.bootstraps.values():
            wait_for(lambda: leaders(bootstrap, name) == dict(enumerate(brokers)), f"{name} at {bootstrap}")  # noqa: B023


def key_of(coordinator: int, prefix: str, kind: int = GROUP) -> str:
    """Return a new group id or transactional id of that broker."""
    brokers = LEADERS[INTERNAL[kind]]
    while True:
        key = f"{prefix}-{uuid.uuid4().hex[:8]}"
        if brokers[partition_for(key, len(brokers))] == coordinator:
            return key


def coordinator_of(bootstrap: str, key: str, kind: int) -> tuple[str, int]:
    with WireClient(bootstrap) as client:
        answer = client.ask(ApiKey.FIND_COORDINATOR, 4, {"key_type": kind, "coordinator_keys": [key]})
    (found,) = answer["coordinators"]
    return found["error_code"], found["node_id"]


def consumer_of(bootstrap: str, group: str, **changed: Any) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **changed,
        }
    )


def read(consumer: Consumer, count: int) -> list[bytes]:
    values: list[bytes] = []

    def enough() -> bool:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            value = message.value()
            assert value is not None
            values.append(value)
        return len(values) >= count

    wait_for(enough, f"{count} records", timeout_s=40)
    return values


def read_until(consumer: Consumer, last: bytes) -> list[bytes]:
    """Return the values up to two records with the value `last`, one in every partition."""
    values: list[bytes] = []
    while values.count(last) < 2:
        values += read(consumer, 1)
    return values


def committed(bootstrap: str, group: str) -> dict[int, int]:
    consumer = consumer_of(bootstrap, group)

    def offsets() -> dict[int, int]:
        try:
            found = consumer.committed([TopicPartition(TOPIC, index) for index in range(2)], timeout=20)
        except KafkaException as error:
            # the other broker may name a new coordinator before that broker has learnt of it; librdkafka does not retry
            if error.args[0].code() == KafkaError.NOT_COORDINATOR:
                return {}
            raise
        return {position.partition: position.offset for position in found}

    try:
        return wait_for(offsets, "the committed offsets", timeout_s=30)
    finally:
        consumer.close()


@COORDINATORS
@pytest.mark.parametrize("kind", [GROUP, TRANSACTION], ids=["group", "transaction"])
def test_both_brokers_name_the_leader_as_the_coordinator(cluster: Cluster, coordinator: int, kind: int) -> None:
    key = key_of(coordinator, "found", kind)
    found = {side: coordinator_of(bootstrap, key, kind) for side, bootstrap in cluster.bootstraps.items()}
    assert found == dict.fromkeys(cluster.bootstraps, ("none", coordinator))


@SIDES
@COORDINATORS
def test_members_join_and_commit_from_either_bootstrap(cluster: Cluster, side: str, coordinator: int) -> None:
    produce(cluster.kafka.bootstrap, TOPIC, b"1", b"2", partitions=2)
    group = key_of(coordinator, "members")
    consumer = consumer_of(cluster.bootstraps[side], group)
    consumer.subscribe([TOPIC])
    read(consumer, 2)
    consumer.commit(asynchronous=False)
    consumer.close()
    for bootstrap in cluster.bootstraps.values():
        assert sum(max(0, offset) for offset in committed(bootstrap, group).values()) >= 2


@SIDES
@COORDINATORS
def test_a_transaction_spans_both_brokers(cluster: Cluster, side: str, coordinator: int) -> None:
    transactional_id = key_of(coordinator, "span", TRANSACTION)
    producer = Producer({"bootstrap.servers": cluster.bootstraps[side], "transactional.id": transactional_id})
    producer.init_transactions(30)
    for ending, outcome in ((producer.abort_transaction, b"aborted"), (producer.commit_transaction, b"committed")):
        producer.begin_transaction()
        for partition in range(2):
            producer.produce(TOPIC, outcome + b" " + transactional_id.encode(), partition=partition)
        producer.flush(30)
        ending(30)
    group = key_of(coordinator, "reader")
    for bootstrap in cluster.bootstraps.values():
        consumer = consumer_of(bootstrap, group, **{"isolation.level": "read_committed"})
        consumer.assign([TopicPartition(TOPIC, index, 0) for index in range(2)])
        values = read_until(consumer, b"committed " + transactional_id.encode())
        consumer.close()
        assert b"aborted " + transactional_id.encode() not in values


@COORDINATORS
def test_offsets_are_committed_with_a_transaction(cluster: Cluster, coordinator: int) -> None:
    group = key_of(coordinator, "offsets")
    other = KAFKA if coordinator == HEADRACE else HEADRACE
    producer = Producer(
        {"bootstrap.servers": cluster.headrace.bootstrap, "transactional.id": key_of(other, "offsets", TRANSACTION)}
    )
    producer.init_transactions(30)
    consumer = consumer_of(cluster.kafka.bootstrap, group)
    consumer.subscribe([TOPIC])
    produce(cluster.kafka.bootstrap, TOPIC, b"1", b"2", partitions=2)
    read(consumer, 2)
    producer.begin_transaction()
    positions = [TopicPartition(TOPIC, index, 2) for index in range(2)]
    producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), 30)
    producer.commit_transaction(30)
    consumer.close()
    assert committed(cluster.kafka.bootstrap, group) == {0: 2, 1: 2}
