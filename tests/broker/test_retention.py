"""Records are removed by size, by time and by command, as Kafka's clients expect."""

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from headrace.testing import Broker
from headrace.wire.apis import ApiKey
from headrace.wire.records import iter_records
from tests.support.waiting import wait_for
from tests.support.wire_client import WireClient

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
    admin = create(broker, "cut", segment_bytes=MEGABYTE)
    fill(broker, "cut", 4)

    admin.delete_records([TopicPartition("cut", 0, 25)])[TopicPartition("cut", 0)].result(10)

    assert start_of(consumer, "cut") == 25
    wait_for(lambda: log_bytes(broker, "cut") < 3 * MEGABYTE, "removal of whole segments below the start")


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


def test_timestamps_outside_the_limits_of_the_topic_are_refused(broker: Broker) -> None:
    now = time.time_ns() // 1_000_000
    admin = create(broker, "stamped", retention_ms=-1)
    hour = 3_600_000
    assert write(broker, "stamped", 1, timestamp_ms=now + 2 * hour) == ["INVALID_TIMESTAMP"]
    assert write(broker, "stamped", 1, timestamp_ms=1_000) == []
    configure(admin, "stamped", message_timestamp_before_max_ms=hour, message_timestamp_after_max_ms=3 * hour)
    assert write(broker, "stamped", 1, timestamp_ms=now + 2 * hour) == []
    assert write(broker, "stamped", 1, timestamp_ms=now - 2 * hour) == ["INVALID_TIMESTAMP"]
    configure(admin, "stamped", message_timestamp_type="LogAppendTime")
    assert write(broker, "stamped", 1, timestamp_ms=now - 2 * hour) == []


def test_a_removed_segment_is_kept_for_its_readers(broker: Broker, consumer: Consumer) -> None:
    admin = create(broker, "slow", segment_bytes=MEGABYTE, file_delete_delay_ms=2000)
    fill(broker, "slow", 4)
    directory = Path(broker.data, "slow-0")
    with WireClient(broker.bootstrap) as reader:
        reader.send(ApiKey.FETCH, 4, FETCH)
        configure(admin, "slow", retention_bytes=MEGABYTE)
        wait_for(lambda: start_of(consumer, "slow") > 20, "the log's start moves")
        assert list(directory.glob("*.log.deleted"))
        wait_for(lambda: not list(directory.glob("*.deleted")), "removal of the files")
        (topic,) = reader.receive(ApiKey.FETCH, 4)["responses"]
    (partition,) = topic["partitions"]
    assert partition["error_code"] == "none"
    found = list(iter_records(partition["records"]))
    assert [record.offset for record in found] == list(range(len(found)))
    assert len(found) >= 8


FETCH = {
    "replica_id": -1,
    "max_wait": 0,
    "min_bytes": 0,
    "max_bytes": 50 * MEGABYTE,
    "isolation_level": 0,
    "topics": [
        {"topic": "slow", "partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 50 * MEGABYTE}]}
    ],
}
