"""Requests of the tests themselves, independent of the client under test."""

from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient

from tests.clients.drivers.contract import DEADLINE_S
from tests.support.waiting import wait_for


def committed_records(bootstrap: str, group: str, topic: str) -> int:
    """Return the number of records before the group's committed offsets, in partitions that start at offset 0."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "client.id": "tests-observer"})
    answer = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(DEADLINE_S)
    return sum(
        partition.offset
        for partition in answer.topic_partitions or ()
        if partition.topic == topic and partition.offset >= 0 and partition.error is None
    )


def wait_for_commit(bootstrap: str, group: str, topic: str, records: int) -> None:
    """Wait until the group has committed exactly the first `records` records of the topic."""
    wait_for(
        lambda: committed_records(bootstrap, group, topic) == records,
        f"group {group} commits {records} records of {topic}",
        timeout_s=DEADLINE_S,
        interval_s=0.1,
    )
