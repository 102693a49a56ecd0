"""Records are removed by size, by time and by command, as Kafka's clients expect."""

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from headrace.testing import Broker
from tests.support.topics import create_topic
from tests.support.waiting import wait_for

MEGABYTE = 1024 * 1024


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker({"log.retention.check.interval.ms": "50", "log.segment.delete.delay.ms": "0"}) as broker:
        yield broker


def create(broker: Broker, topic: str, **settings: Any) -> AdminClient:
    create_topic(broker.bootstrap, topic, **settings)
    return AdminClient({"bootstrap.servers": broker.bootstrap})


def configure(admin: AdminClient, topic: str, **settings: object) -> None:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    for name, value in settings.items():
        entry = ConfigEntry(name.replace("_", "."), str(value), incremental_operation=AlterConfigOpType.SET)
        resource.add_incremental_config(entry)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(10)


def fill(broker: Broker, topic: str, megabytes: int, timestamp_ms: int = 0) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "batch.size": 100_000, "linger.ms": 5})
    for _ in range(megabytes * 10):
        producer.produce(topic, bytes(MEGABYTE // 10), partition=0, timestamp=timestamp_ms)
        producer.poll(0)
    assert producer.flush(30) == 0


def start_of(consumer: Consumer, topic: str) -> int:
    return consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)[0]


@pytest.fixture
def consumer(broker: Broker) -> Iterator[Consumer]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g", "auto.offset.reset": "error"})
    yield consumer
    consumer.close()


def log_bytes(broker: Broker, topic: str) -> int:
    total = 0
    for path in Path(broker.data, f"{topic}-0").glob("*.log"):
        with suppress(FileNotFoundError):  # removed since it was listed
            total += path.stat().st_size
    return total


def test_a_log_stays_within_its_size(broker: Broker, consumer: Consumer) -> None:
    create(broker, "sized", segment_bytes=MEGABYTE, retention_bytes=3 * MEGABYTE)

    fill(broker, "sized", 10)

    wait_for(lambda: log_bytes(broker, "sized") <= 4 * MEGABYTE, "the log shrinks")
    assert start_of(consumer, "sized") >= 50
    consumer.assign([TopicPartition("sized", 0, 0)])
    message = consumer.poll(10)
    assert message is not None
    error = message.error()
    assert error is not None
    assert error.code() == KafkaError._AUTO_OFFSET_RESET


def test_a_shorter_retention_takes_effect_at_once(broker: Broker, consumer: Consumer) -> None:
    admin = create(broker, "timed", segment_bytes=MEGABYTE)
    fill(broker, "timed", 5, timestamp_ms=1_000)
    wait_for(lambda: start_of(consumer, "timed") == 50, "records of 1970 are older than a week")

    configure(admin, "timed", retention_ms=-1)
    fill(broker, "timed", 5, timestamp_ms=1_000)
    assert start_of(consumer, "timed") == 50
    configure(admin, "timed", retention_ms=1000)

    wait_for(lambda: start_of(consumer, "timed") == 100, "the setting takes effect")


def test_deleted_records_are_hidden_from_readers_at_once(broker: Broker, consumer: Consumer) -> None:
    admin = create(broker, "cut", segment_bytes=MEGABYTE, file_delete_delay_ms=2000)
    fill(broker, "cut", 4)

    admin.delete_records([TopicPartition("cut", 0, 25)])[TopicPartition("cut", 0)].result(10)

    assert start_of(consumer, "cut") == 25
    directory = Path(broker.data, "cut-0")
    wait_for(lambda: list(directory.glob("*.log.deleted")), "segments below the start are kept for their readers")
    assert log_bytes(broker, "cut") < 3 * MEGABYTE
    wait_for(lambda: not list(directory.glob("*.deleted")), "their removal")


def base_offsets(broker: Broker, topic: str) -> list[int]:
    return sorted(int(path.stem) for path in Path(broker.data, f"{topic}-0").glob("*.log"))


def write(broker: Broker, topic: str, count: int, size: int = 100, timestamp_ms: int = 0) -> list[str]:
    """Write single-record batches and return the errors."""
    errors: list[str] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap, "batch.num.messages": 1, "message.timeout.ms": 10_000})
    for _ in range(count):
        producer.produce(
            topic,
            bytes(size),
            timestamp=timestamp_ms,
            on_delivery=lambda error, _: errors.append(error.name()) if error else None,
        )
        producer.poll(0)
    assert producer.flush(20) == 0
    return errors


def test_segments_roll_by_time_size_and_index_as_settings_change(broker: Broker) -> None:
    now = time.time_ns() // 1_000_000
    admin = create(broker, "rolling", retention_ms=-1)
    write(broker, "rolling", 3, timestamp_ms=now - 10_000)
    assert base_offsets(broker, "rolling") == [0]
    configure(admin, "rolling", segment_ms=5000)
    write(broker, "rolling", 1, timestamp_ms=now)
    assert base_offsets(broker, "rolling") == [0, 3]
    configure(admin, "rolling", segment_ms=604_800_000, segment_bytes=MEGABYTE)
    write(broker, "rolling", 3, size=400_000, timestamp_ms=now)
    assert base_offsets(broker, "rolling") == [0, 3, 6]
    configure(admin, "rolling", segment_index_bytes=32, index_interval_bytes=0)
    for _ in range(10):  # records sent together would get one index entry
        write(broker, "rolling", 1, timestamp_ms=now)
    assert len(base_offsets(broker, "rolling")) > 4
    sizes = [path.stat().st_size for path in Path(broker.data, "rolling-0").glob("*.index")]
    assert max(sizes) <= 32
