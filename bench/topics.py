"""Create and delete topics for a measurement, and count their records."""

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
    """Create a topic of six partitions, wait until it accepts records, and delete it at the end.

    After an error it is not deleted, because its broker is then removed.
    """
    topic = f"bench-{name}-{next(_numbers)}"
    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(_TIMEOUT_S)
    raw_client.wait_for_produce(broker.port, topic, PARTITIONS, _TIMEOUT_S)
    yield topic
    admin.delete_topics([topic])[topic].result(_TIMEOUT_S)


def record_count(broker: Broker, topic: str) -> int:
    """Return the sum of the end offsets of the topic's six partitions."""
    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    ends = admin.list_offsets({TopicPartition(topic, partition): latest for partition in range(PARTITIONS)})
    return sum(end.result(_TIMEOUT_S).offset for end in ends.values())
