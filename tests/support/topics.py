"""Create topics, and read them to their ends, with librdkafka."""

from collections.abc import Sequence

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.waiting import wait_for

_WITHIN_S = 60.0


def create_topic(
    bootstrap: str, topic: str, partitions: int = 1, *, replicas: Sequence[Sequence[int]] = (), **settings: object
) -> None:
    """Create a topic. Settings are spelled with underscores for dots; `replicas` lists the brokers of each partition.

    The answer may come before all brokers know the topic.
    """
    config = {name.replace("_", "."): str(value) for name, value in settings.items()}
    if replicas:
        new = NewTopic(topic, len(replicas), replica_assignment=[list(brokers) for brokers in replicas], config=config)
    else:
        new = NewTopic(topic, partitions, 1, config=config)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([new])[topic].result(_WITHIN_S)


def ends(bootstrap: str, topic: str, partitions: int = 1, *, isolation: str = "read_uncommitted") -> list[int]:
    """Return the high watermarks, or the last stable offsets, by partition."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "not-used", "isolation.level": isolation})
    try:
        names = [TopicPartition(topic, partition) for partition in range(partitions)]
        return [consumer.get_watermark_offsets(name, timeout=_WITHIN_S)[1] for name in names]
    finally:
        consumer.close()


def read_records(bootstrap: str, topic: str, *, isolation: str = "read_uncommitted") -> list[Message]:
    """Return the records of all partitions, partition by partition, up to their ends."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "not-used",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
        }
    )
    try:
        reading = wait_for(lambda: _partitions(consumer, topic), f"{topic} exists", timeout_s=_WITHIN_S)
        found: dict[int | None, list[Message]] = {partition: [] for partition in sorted(reading)}
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in reading])
        while reading:
            message = consumer.poll(_WITHIN_S)
            assert message is not None, f"no end of {topic}-{sorted(reading)}"
            error = message.error()
            if error is None:
                found[message.partition()].append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                reading.discard(message.partition() or 0)
            else:
                assert error.retriable(), error
    finally:
        consumer.close()
    return [message for messages in found.values() for message in messages]


def _partitions(consumer: Consumer, topic: str) -> set[int]:
    return set(consumer.list_topics(topic, timeout=_WITHIN_S).topics[topic].partitions)


def read_values(bootstrap: str, topic: str, *, isolation: str = "read_uncommitted") -> list[bytes]:
    return [bytes(message.value() or b"") for message in read_records(bootstrap, topic, isolation=isolation)]
