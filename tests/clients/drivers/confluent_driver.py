"""confluent-kafka: Python bindings of the newest librdkafka."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka import Message as ConfluentMessage
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.clients.drivers.contract import DEADLINE_S, ClientDriver, ConsumerSession, Message, ProducerSession, Received


class ConfluentDriver(ClientDriver):
    def __init__(self, bootstrap: str) -> None:
        self._config: dict[str, str | int | float] = {
            "bootstrap.servers": bootstrap,
            "client.id": "tests-confluent",
            "reconnect.backoff.max.ms": 500,
        }

    def create_topic(self, topic: str, partitions: int) -> None:
        admin = AdminClient(dict(self._config))
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(DEADLINE_S)

    def consume_from_beginning(self, topic: str, count: int) -> list[Received]:
        with self._unsubscribed() as consumer:
            partitions = consumer.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions
            consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
            return receive(consumer, count)

    def consume_from_offset(self, topic: str, partition: int, offset: int, count: int) -> list[Received]:
        with self._unsubscribed() as consumer:
            consumer.assign([TopicPartition(topic, partition, offset)])
            return receive(consumer, count)

    def consume_from_timestamp(self, topic: str, partition: int, timestamp_ms: int, count: int) -> list[Received]:
        with self._unsubscribed() as consumer:
            consumer.assign(
                consumer.offsets_for_times([TopicPartition(topic, partition, timestamp_ms)], timeout=DEADLINE_S)
            )
            return receive(consumer, count)

    @contextmanager
    def producer(self, topic: str, *, codec: str = "none") -> Iterator[ProducerSession]:
        yield _Producer({**self._config, "compression.type": codec}, topic)

    @contextmanager
    def group_consumer(self, topic: str, group: str) -> Iterator[ConsumerSession]:
        consumer = Consumer(
            {
                **self._config,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 500,
            }
        )
        consumer.subscribe([topic])
        try:
            yield _GroupConsumer(consumer)
        finally:
            consumer.close()

    @contextmanager
    def _unsubscribed(self) -> Iterator[Consumer]:
        consumer = Consumer({**self._config, "group.id": "not-used", "enable.auto.commit": False})
        try:
            yield consumer
        finally:
            consumer.close()


class _Producer:
    def __init__(self, config: dict[str, str | int | float], topic: str) -> None:
        self._producer = Producer({**config, "enable.idempotence": True, "linger.ms": 5})
        self._topic = topic
        self._failures: list[KafkaError] = []

    def send(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self._producer.produce(
                self._topic,
                message.value.encode(),
                message.key.encode() if message.key is not None else None,
                headers=list(message.headers),
                on_delivery=self._delivered,
            )
            self._producer.poll(0)

    def finish(self) -> None:
        unsent = self._producer.flush(DEADLINE_S)
        assert unsent == 0, f"{unsent} messages are not acknowledged"
        assert not self._failures, self._failures

    def _delivered(self, error: KafkaError | None, _message: ConfluentMessage) -> None:
        if error is not None:
            self._failures.append(error)


class _GroupConsumer:
    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def receive(self, count: int) -> list[Received]:
        return receive(self._consumer, count)

    def commit(self) -> None:
        for partition in self._consumer.commit(asynchronous=False) or ():
            assert partition.error is None, partition


def receive(consumer: Consumer, count: int) -> list[Received]:
    """Return the next `count` records. librdkafka recovers from connection errors; others fail the test."""
    received: list[Received] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(received) < count:
        assert time.monotonic() < deadline, f"{len(received)} of {count} records within {DEADLINE_S:g} s"
        for message in consumer.consume(count - len(received), timeout=0.5):
            error = message.error()
            assert error is None or error.retriable(), error
            if error is None:
                received.append(_received(message))
    return received


def _received(message: ConfluentMessage) -> Received:
    partition, offset, value = message.partition(), message.offset(), message.value()
    assert partition is not None
    assert offset is not None
    assert isinstance(value, bytes)
    return Received(
        partition=partition,
        offset=offset,
        timestamp_ms=message.timestamp()[1],
        value=value,
        key=message.key(),
        headers=tuple(cast("list[tuple[str, bytes]]", message.headers() or [])),
    )
