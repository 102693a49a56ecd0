"""Transactional producers and consumers of committed records."""

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.testing import Broker
from tests.support.waiting import wait_for


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"group.initial.rebalance.delay.ms": "0"}) as broker:
        yield broker


def create(broker: Broker, name: str, partitions: int = 2) -> str:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(name, partitions)])[name].result(20)
    return name


def producer_of(broker: Broker, transactional_id: str) -> Producer:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": transactional_id})
    producer.init_transactions(30)
    return producer


def read(broker: Broker, topic: str, count: int, isolation: str = "read_committed") -> list[bytes]:
    """The first `count` values, and whatever comes with them."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": f"reader-of-{topic}-{isolation}",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    partitions = list(consumer.list_topics(topic, timeout=20).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, index, 0) for index in partitions])
    values: list[bytes] = []
    ended: set[int] = set()

    def take() -> bool:
        message = consumer.poll(1)
        if message is None:
            return False
        if message.error() is None:
            values.append(message.value())
        elif message.error().code() == KafkaError._PARTITION_EOF:
            ended.add(message.partition())
        return len(values) >= count and len(ended) == len(partitions)

    wait_for(take, f"{count} records of {topic}")
    consumer.close()
    return sorted(values)


def write(producer: Producer, topic: str, *values: bytes) -> None:
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % 2)
    assert producer.flush(30) == 0


def test_readers_of_committed_records_see_what_was_committed(broker: Broker) -> None:
    topic = create(broker, "commits")
    producer = producer_of(broker, "commits")
    producer.begin_transaction()
    write(producer, topic, b"1", b"2")
    producer.commit_transaction(30)
    producer.begin_transaction()
    write(producer, topic, b"3", b"4")
    producer.abort_transaction(30)
    producer.begin_transaction()
    write(producer, topic, b"5", b"6")
    producer.commit_transaction(30)
    assert read(broker, topic, 4) == [b"1", b"2", b"5", b"6"]
    assert read(broker, topic, 6, "read_uncommitted") == [b"1", b"2", b"3", b"4", b"5", b"6"]


def test_a_successor_aborts_what_its_predecessor_left_open(broker: Broker) -> None:
    topic = create(broker, "successors")
    first = producer_of(broker, "successors")
    first.begin_transaction()
    write(first, topic, b"lost")
    second = producer_of(broker, "successors")
    second.begin_transaction()
    write(second, topic, b"kept")
    second.commit_transaction(30)
    assert read(broker, topic, 1) == [b"kept"]
    with pytest.raises(KafkaException) as caught:
        first.commit_transaction(30)
    assert caught.value.args[0].code() in (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH)


def test_offsets_are_committed_with_the_transaction(broker: Broker) -> None:
    source, target = create(broker, "source"), create(broker, "target")
    plain = Producer({"bootstrap.servers": broker.bootstrap})
    write(plain, source, b"a", b"b", b"c", b"d")
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "copier",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([source])
    producer = producer_of(broker, "copier")
    messages = []
    wait_for(
        lambda: messages.extend(consumer.consume(10, 0.2)) or len(messages) == 4,  # type: ignore[func-returns-value]
        "the records of the source",
    )

    def committed() -> list[int]:
        return [each.offset for each in consumer.committed([TopicPartition(source, index) for index in (0, 1)], 20)]

    for outcome, expected in (("abort", [-1001, -1001]), ("commit", [2, 2])):
        producer.begin_transaction()
        for message in messages:
            producer.produce(target, message.value(), partition=message.partition())
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), 30
        )
        if outcome == "abort":
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
        assert committed() == expected
    consumer.close()
    assert read(broker, target, 4) == [b"a", b"b", b"c", b"d"]
