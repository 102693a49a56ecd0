"""Write topics of every kind with real clients, and read them back from a broker."""

import re
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from tests.support.waiting import wait_for

LONG_AGO: Final = 1_700_000_000_000
"""Timestamp in ms of the first record in `long`; three records share it."""
TRANSACTIONAL_GROUP: Final = "settling"
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
TOPICS: Final = {
    "orders": NewTopic("orders", 3, 1, config={"retention.ms": "-1", "min.insync.replicas": "1"}),
    **{f"codec-{codec}": NewTopic(f"codec-{codec}", 1, 1) for codec in CODECS},
    "latest": NewTopic(
        "latest",
        1,
        1,
        config={
            "cleanup.policy": "compact",
            "segment.ms": "1",
            "min.cleanable.dirty.ratio": "0.01",
            "delete.retention.ms": "1",
        },
    ),
    "long": NewTopic("long", 1, 1, config={"segment.bytes": "1048576", "retention.ms": "-1"}),
    "payments": NewTopic("payments", 1, 1),
    "ledger": NewTopic("ledger", 1, 1, config={"cleanup.policy": "compact"}),
}
"""Partitions, settings and records of every topic, compared after another broker has taken over."""

Seen = tuple[int, bytes | None, bytes | None]


class View(NamedTuple):
    """Records by topic, partition and isolation level, end offsets of both levels, and offsets in `long` by time."""

    records: dict[tuple[str, int, str], list[Seen]]
    ends: dict[tuple[str, int, str], tuple[int, int]]
    offsets_by_time: dict[int, int]


def create_topics(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics(list(TOPICS.values())).values():
        future.result(30)


def write(bootstrap: str) -> Producer:
    """Fill the topics; return a producer with an open transaction in `payments`."""
    write_plain(bootstrap)
    return write_transactions(bootstrap)


def write_plain(bootstrap: str) -> None:
    # Batches are much smaller than a segment, so that DeleteRecords cuts `long` within the first segment: Kafka finds
    # no timestamp in a segment wholly below the log start until that segment is deleted.
    settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "batch.size": 100_000}
    plain = Producer(settings)
    for number in range(300):
        plain.produce("orders", b"order %d" % number, b"key %d" % (number % 17), headers={"n": str(number)})
    flush(plain)
    for codec in CODECS:
        squeezing = Producer({"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 20})
        for number in range(200):
            squeezing.produce(f"codec-{codec}", b"value %d " % number * 10, b"%d" % number)
        flush(squeezing)
    for number in range(6000):
        plain.produce("long", b"%0300d" % number, timestamp=LONG_AGO + number // 3)
    flush(plain)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_records([TopicPartition("long", 0, 1234)])[TopicPartition("long", 0)].result(20)
    now = round(1000 * time.time())
    for lot in range(5):
        for number in range(40):
            value = b"lot %d" % lot if number % 4 or lot < 4 else None
            # one segment per lot, at any speed
            plain.produce("latest", value, b"key %d" % number, timestamp=now + 10 * lot)
        flush(plain)


def write_transactions(bootstrap: str) -> Producer:
    """Write committed and aborted transactions and an open one, followed by a record without a transaction."""
    for topic in ("payments", "ledger"):
        for name, commit in (("paid", True), ("refused", False), ("paid-late", True)):
            producer = transactional(bootstrap, f"{topic}-{name}")
            for number in range(10):
                producer.produce(topic, f"{name} {number}", b"key %d" % number)
            flush(producer)
            send_offset(producer, bootstrap, TopicPartition("orders", 1, 11 if commit else 99))
            (producer.commit_transaction if commit else producer.abort_transaction)(20)
    hanging = transactional(bootstrap, "open")
    hanging.produce("payments", "open", b"open")
    flush(hanging)
    send_offset(hanging, bootstrap, TopicPartition("orders", 0, 77))
    later = Producer({"bootstrap.servers": bootstrap})
    later.produce("payments", "after the open one", b"later")
    flush(later)
    return hanging


def send_offset(producer: Producer, bootstrap: str, position: TopicPartition) -> None:
    """Add an offset of `TRANSACTIONAL_GROUP` to the producer's transaction."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": TRANSACTIONAL_GROUP})

    def has_coordinator() -> bool:
        try:
            consumer.committed([position], 20)
        except KafkaException:
            return False
        return True

    # without a coordinator, librdkafka may wait forever in the next call
    wait_for(has_coordinator, "the group's coordinator", timeout_s=60)
    producer.send_offsets_to_transaction([position], consumer.consumer_group_metadata(), 20)
    consumer.close()


def transactional(bootstrap: str, transactional_id: str) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": 600_000,
            "log_level": 0,
        }
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    return producer


def flush(producer: Producer) -> None:
    assert producer.flush(30) == 0


def commit_offsets(bootstrap: str, group: str, offsets: dict[tuple[str, int], int]) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})
    positions = [TopicPartition(*partition, offset, metadata="noted") for partition, offset in offsets.items()]
    consumer.commit(offsets=positions, asynchronous=False)
    consumer.close()


def committed(bootstrap: str, group: str) -> dict[tuple[str, int], int]:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (future,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    return {
        (topic_partition.topic, topic_partition.partition): topic_partition.offset
        for topic_partition in future.result(20).topic_partitions
    }


def join_consumer_group(bootstrap: str, group: str, topic: str) -> None:
    """Consume a topic to its end in a group of the consumer protocol (KIP-848), and commit."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    wait_for(lambda: consumer.poll(0.2), "a record for the member")
    consumer.commit(asynchronous=False)
    consumer.close()


def read_view(bootstrap: str, topics: Sequence[str] = tuple(TOPICS)) -> View:
    """Read everything that consumers of both isolation levels get."""
    records: dict[tuple[str, int, str], list[Seen]] = {}
    ends: dict[tuple[str, int, str], tuple[int, int]] = {}
    by_time: dict[int, int] = {}
    for level in ("read_uncommitted", "read_committed"):
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "look",
                "isolation.level": level,
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 10,
            }
        )
        found = wait_for(partial(led_topics, consumer, topics), "leaders of all partitions")
        positions = [TopicPartition(topic, item, 0) for topic in topics for item in found[topic].partitions]
        for position in positions:
            records[position.topic, position.partition, level] = []
            ends[position.topic, position.partition, level] = consumer.get_watermark_offsets(position, 20)
        consumer.assign(positions)
        left = len(positions)
        while left:
            message = consumer.poll(20)
            assert message is not None, f"{left} partitions have not reached their end"
            error = message.error()
            if error is None:
                topic, partition, offset = message.topic(), message.partition(), message.offset()
                assert topic is not None and partition is not None and offset is not None  # noqa: PT018
                records[topic, partition, level].append((offset, message.key(), message.value()))
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                left -= 1
        if level == "read_committed" and "long" in topics:
            for timestamp in range(LONG_AGO - 1, LONG_AGO + 2002, 100):
                (found_at,) = consumer.offsets_for_times([TopicPartition("long", 0, timestamp)], 20)
                by_time[timestamp] = found_at.offset
        consumer.close()
    return View(records, ends, by_time)


def led_topics(client: Consumer | AdminClient, topics: Sequence[str]) -> dict[str, Any]:
    """Return the topics' metadata once every partition has a leader, which may be after the topics are known."""
    found = client.list_topics(timeout=20).topics
    for topic in topics:
        if topic not in found or any(partition.leader < 0 for partition in found[topic].partitions.values()):
            return {}
    return dict(found)


def topic_settings(bootstrap: str, topic: str) -> dict[str, str]:
    """Return the settings of the topic itself, without defaults."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (future,) = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, topic)]).values()
    return {name: entry.value for name, entry in future.result(20).items() if entry.source == 1}


def topic_ids(bootstrap: str) -> dict[str, str]:
    from confluent_kafka import TopicCollection

    admin = AdminClient({"bootstrap.servers": bootstrap})
    described: dict[str, Any] = admin.describe_topics(TopicCollection(list(TOPICS)))
    return {name: str(future.result(20).topic_id) for name, future in described.items()}


def files(directory: Path) -> dict[str, bytes]:
    """Return the content of every file in the directory."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def log_start_is_on_disk(data: Path) -> bool:
    """Return True if the log start after DeleteRecords is on disk, so that a kill does not undo it."""
    return "long 0 1234" in (data / "log-start-offset-checkpoint").read_text()


def cleaner_has_cleaned(data: Path, topic: str) -> bool:
    """Return True if partition 0 is compacted up to the active segment, so that its records no longer change."""
    note = data / "cleaner-offset-checkpoint"
    cleaned = re.search(rf"^{topic} 0 (\d+)$", note.read_text(), re.MULTILINE) if note.exists() else None
    active = max(int(path.stem) for path in (data / f"{topic}-0").glob("*.log"))
    return cleaned is not None and int(cleaned[1]) == active
