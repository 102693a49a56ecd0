"""Administration of classic and consumer groups with Kafka's tool and with admin clients."""

import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka import TopicPartition as KafkaPythonPartition
from kafka.admin import KafkaAdminClient
from kafka.errors import GroupSubscribedToTopicError, NoError
from kafka.structs import OffsetAndMetadata

from tests.clients.brokers import BrokerUnderTest
from tests.clients.conftest import start_driver
from tests.clients.drivers.java_driver import JavaDriver
from tests.support.kafka_tools import CONSUMER_GROUPS
from tests.support.topics import create_topic
from tests.support.waiting import wait_for

OLD_MS = 10 * 3_600_000
"""Age of the first half of the records."""


@pytest.fixture
def group(shared_broker: BrokerUnderTest, topic: str) -> str:
    """A group that has committed offsets 4 and 0 in two partitions with 10 records, of which 5 are old."""
    create_topic(shared_broker.bootstrap, topic, 2)
    producer = Producer({"bootstrap.servers": shared_broker.bootstrap})
    now_ms = time.time_ns() // 1_000_000
    for partition in range(2):
        for number in range(10):
            producer.produce(topic, b"x", partition=partition, timestamp=now_ms - (OLD_MS if number < 5 else 0))
    assert producer.flush(10) == 0
    name = f"{topic}-group"
    consumer = Consumer({"bootstrap.servers": shared_broker.bootstrap, "group.id": name})
    consumer.commit(offsets=[TopicPartition(topic, 0, 4), TopicPartition(topic, 1, 0)], asynchronous=False)
    consumer.close()
    return name


@pytest.fixture
def java(shared_broker: BrokerUnderTest) -> Iterator[JavaDriver]:
    driver = start_driver("java", shared_broker)
    assert isinstance(driver, JavaDriver)
    yield driver
    driver.close()


def member(broker: BrokerUnderTest, group: str, topic: str, protocol: str = "classic") -> Consumer:
    """A member with both partitions assigned."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "group.protocol": protocol,
            "client.id": "tests-admin",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    wait_for(lambda: consumer.poll(0.05) or len(consumer.assignment()) == 2, "an assignment")
    return consumer


def committed(broker: BrokerUnderTest, group: str) -> dict[int, int]:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    future = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group]
    return {topic_partition.partition: topic_partition.offset for topic_partition in future.result(10).topic_partitions}


@pytest.mark.java
def test_kafkas_tool_resets_offsets_in_every_way(
    java: JavaDriver, shared_broker: BrokerUnderTest, group: str, topic: str, tmp_path: Path
) -> None:
    def reset(*options: str, topics: tuple[str, ...] = ("--all-topics",), execute: bool = True) -> dict[int, int]:
        mode = "--execute" if execute else "--dry-run"
        printed = java.run(CONSUMER_GROUPS, "--reset-offsets", "--group", group, *topics, mode, *options)
        found = re.findall(rf"{group}\s+{topic}\s+(\d)\s+(\d+)", printed)
        return {int(partition): int(offset) for partition, offset in found}

    hour_ago = (datetime.now(UTC) - timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    assert reset("--to-latest", execute=False) == {0: 10, 1: 10}
    assert committed(shared_broker, group) == {0: 4, 1: 0}
    noted = tmp_path / "noted.csv"
    to_current = ("--reset-offsets", "--group", group, "--all-topics", "--to-current", "--export", "--dry-run")
    exported = java.run(CONSUMER_GROUPS, *to_current)
    noted.write_text("\n".join(line for line in exported.splitlines() if "," in line))
    for options, expected in (
        (("--to-latest",), {0: 10, 1: 10}),
        (("--to-earliest",), {0: 0, 1: 0}),
        (("--to-offset", "7"), {0: 7, 1: 7}),
        (("--shift-by", "-2"), {0: 5, 1: 5}),
        (("--to-datetime", hour_ago), {0: 5, 1: 5}),
        (("--by-duration", "PT24H"), {0: 0, 1: 0}),
        (("--from-file", str(noted)), {0: 4, 1: 0}),
        (("--to-current",), {0: 4, 1: 0}),
    ):
        topics = () if options[0] == "--from-file" else ("--all-topics",)
        assert reset(*options, topics=topics) == expected, options
        assert committed(shared_broker, group) == expected, options
    assert reset("--to-latest", topics=("--topic", f"{topic}:1")) == {1: 10}
    assert committed(shared_broker, group) == {0: 4, 1: 10}


@pytest.mark.java
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_kafkas_tool_lists_describes_and_deletes_groups(
    java: JavaDriver, shared_broker: BrokerUnderTest, group: str, topic: str, protocol: str
) -> None:
    consumer = member(shared_broker, group, topic, protocol)
    kind = {"classic": "Classic", "consumer": "Consumer"}[protocol]
    listed = java.run(CONSUMER_GROUPS, "--list", "--state", "Stable", "--type", protocol)
    assert re.search(rf"{group}\s+{kind}\s+Stable", listed)
    assert group not in java.run(CONSUMER_GROUPS, "--list", "--state", "Empty")

    of_group = ("--describe", "--group", group)
    members = java.run(CONSUMER_GROUPS, *of_group, "--members", "--verbose")
    assert re.search(rf"{group}\s+\S+\s+/127\.0\.0\.1\s+tests-admin\s+2\s", members)
    assert f"{topic}:0,1" in members or f"{topic}(0,1)" in members
    assert re.search(rf"{group}\s.*\sStable\s.*\b1\s*$", java.run(CONSUMER_GROUPS, *of_group, "--state", "--verbose"))
    offsets = java.run(CONSUMER_GROUPS, *of_group, "--offsets", "--verbose")
    assert re.search(rf"{topic}\s+0\s+(-\s+)?4\s+10\s+6\s", offsets)
    # A group with members that consume the topic is protected.
    to_earliest = ("--reset-offsets", "--to-earliest", "--all-topics", "--execute")
    assert "current state is Stable" in java.run(CONSUMER_GROUPS, *to_earliest, "--group", group)
    refused = java.run(CONSUMER_GROUPS, "--delete-offsets", "--group", group, "--topic", topic)
    assert "GroupSubscribedToTopic" in refused or "actively subscribed" in refused
    assert "not empty" in java.run(CONSUMER_GROUPS, "--delete", "--group", group)
    consumer.close()

    deleted = java.run(CONSUMER_GROUPS, "--delete-offsets", "--group", group, "--topic", f"{topic}:1")
    assert re.search(rf"{topic}\s+1\s+Successful", deleted)
    assert committed(shared_broker, group) == {0: 4}
    assert "was successful" in java.run(CONSUMER_GROUPS, "--delete", "--group", group)
    assert group not in java.run(CONSUMER_GROUPS, "--list").splitlines()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_confluent_kafkas_admin_client(shared_broker: BrokerUnderTest, group: str, topic: str, protocol: str) -> None:
    admin = AdminClient({"bootstrap.servers": shared_broker.bootstrap})
    consumer = member(shared_broker, group, topic, protocol)
    found = admin.list_consumer_groups(states={ConsumerGroupState.STABLE}).result(10)
    assert {item.group_id: item.type.name.lower() for item in found.valid}[group] == protocol
    described = admin.describe_consumer_groups([group])[group].result(10)
    [who] = described.members
    assert (described.state, who.client_id, who.host) == (ConsumerGroupState.STABLE, "tests-admin", "/127.0.0.1")
    assert sorted(topic_partition.partition for topic_partition in who.assignment.topic_partitions) == [0, 1]
    consumer.close()

    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 1, 7)])
    [altered] = admin.alter_consumer_group_offsets([wanted])[group].result(10).topic_partitions
    assert altered.error is None
    assert committed(shared_broker, group) == {0: 4, 1: 7}
    admin.delete_consumer_groups([group])[group].result(10)
    assert group not in [item.group_id for item in admin.list_consumer_groups().result(10).valid]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_kafka_pythons_admin_client(shared_broker: BrokerUnderTest, group: str, topic: str, protocol: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=[shared_broker.bootstrap])
    first, second = (KafkaPythonPartition(topic, partition) for partition in range(2))
    try:
        consumer = member(shared_broker, group, topic, protocol)
        listed = admin.list_groups(states_filter=["Stable"], types_filter=[protocol])
        assert group in [item["group_id"] for item in listed]
        assert admin.delete_group_offsets(group, [first]) == {first: GroupSubscribedToTopicError}
        consumer.close()

        assert admin.alter_group_offsets(group, {second: OffsetAndMetadata(7, "by hand", -1)}) == {second: NoError}
        assert committed(shared_broker, group) == {0: 4, 1: 7}
        assert admin.delete_group_offsets(group, [first]) == {first: NoError}
        assert committed(shared_broker, group) == {1: 7}
        admin.delete_groups([group])
        assert group not in [item["group_id"] for item in admin.list_groups()]
    finally:
        admin.close()
