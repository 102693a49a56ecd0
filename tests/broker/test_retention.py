"""Old records go by size, by time and by command, and clients see it as Kafka's clients do."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from headrace.testing import Broker
from tests.support.waiting import wait_for

MEGABYTE = 1024 * 1024


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker({"log.retention.check.interval.ms": "50", "log.segment.delete.delay.ms": "0"}) as broker:
        yield broker


def create(broker: Broker, topic: str, **settings: object) -> AdminClient:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    configs = {name.replace("_", "."): str(value) for name, value in settings.items()}
    admin.create_topics([NewTopic(topic, 1, config=configs)])[topic].result(10)
    return admin


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
    return sum(path.stat().st_size for path in Path(broker.data, f"{topic}-0").glob("*.log"))


def test_a_log_keeps_to_its_size(broker: Broker, consumer: Consumer) -> None:
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


def test_old_records_go_once_a_setting_made_live_says_so(broker: Broker, consumer: Consumer) -> None:
    admin = create(broker, "timed", segment_bytes=MEGABYTE)
    fill(broker, "timed", 5, timestamp_ms=1_000)
    wait_for(lambda: start_of(consumer, "timed") == 50, "records of 1970 are older than a week")

    configure(admin, "timed", retention_ms=-1)
    fill(broker, "timed", 5, timestamp_ms=1_000)
    assert start_of(consumer, "timed") == 50
    configure(admin, "timed", retention_ms=1000)

    wait_for(lambda: start_of(consumer, "timed") == 100, "the setting is in force")


def test_deleted_records_are_gone_for_readers_at_once(broker: Broker, consumer: Consumer) -> None:
    admin = create(broker, "cut", segment_bytes=MEGABYTE)
    fill(broker, "cut", 4)

    admin.delete_records([TopicPartition("cut", 0, 25)])[TopicPartition("cut", 0)].result(10)

    assert start_of(consumer, "cut") == 25
    wait_for(lambda: log_bytes(broker, "cut") < 3 * MEGABYTE, "whole segments below the start go")
