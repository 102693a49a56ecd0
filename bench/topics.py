"""Topics made for a measurement and dropped after it, with a check that what was sent is there."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from bench import raw_client
from bench.brokers import Broker

PARTITIONS = 6
_TIMEOUT_S = 30.0
_numbers = count(1)


@contextmanager
def fresh_topic(broker: Broker, name: str) -> Iterator[str]:
    """A new topic of six partitions that takes records; deleted at the end.

    Not after an error: its broker goes then too, and may have gone already.
    """
    topic = f"bench-{name}-{next(_numbers)}"
    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(_TIMEOUT_S)
    raw_client.wait_for_produce(broker.port, topic, PARTITIONS, _TIMEOUT_S)
    yield topic
    admin.delete_topics([topic])[topic].result(_TIMEOUT_S)


def record_count(broker: Broker, topic: str) -> int:
    """Records in all partitions of `topic`."""
    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    ends = admin.list_offsets({TopicPartition(topic, partition): latest for partition in range(PARTITIONS)})
    return sum(end.result(_TIMEOUT_S).offset for end in ends.values())
