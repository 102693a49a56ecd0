"""kafka-python 3, a pure Python client."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic

from tests.clients.drivers.contract import (
    DEADLINE_S,
    ClientDriver,
    ConsumerSession,
    Message,
    ProducerSession,
    Received,
    of_python_client,
)


class KafkaPythonDriver(ClientDriver):
    def __init__(self, bootstrap: str) -> None:
        self._config: dict[str, Any] = {
            "bootstrap_servers": bootstrap,
            "client_id": "tests-kafka-python",
            "reconnect_backoff_max_ms": 500,
        }

    def create_topic(self, topic: str, partitions: int) -> None:
        admin = KafkaAdminClient(**self._config)
        try:
            admin.create_topics([NewTopic(topic, partitions, 1)])
        finally:
            admin.close()

    def consume_from_beginning(self, topic: str, count: int) -> list[Received]:
        with self._unsubscribed() as consumer:
            partitions = consumer.partitions_for_topic(topic)
            assigned = [TopicPartition(topic, partition) for partition in partitions]
            consumer.assign(assigned)
            consumer.seek_to_beginning(*assigned)
            return receive(consumer, count)

    def consume_from_offset(self, topic: str, partition: int, offset: int, count: int) -> list[Received]:
        with self._unsubscribed() as consumer:
            assigned = TopicPartition(topic, partition)
            consumer.assign([assigned])
            consumer.seek(assigned, offset)
            return receive(consumer, count)

    def consume_from_timestamp(self, topic: str, partition: int, timestamp_ms: int, count: int) -> list[Received]:
        with self._unsubscribed() as consumer:
            assigned = TopicPartition(topic, partition)
            consumer.assign([assigned])
            consumer.seek(assigned, consumer.offsets_for_times({assigned: timestamp_ms})[assigned].offset)
            return receive(consumer, count)

    @contextmanager
    def group_consumer(self, topic: str, group: str) -> Iterator[ConsumerSession]:
        consumer = KafkaConsumer(
            topic,
            **self._config,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=6000,
            heartbeat_interval_ms=500,
        )
        try:
            yield _GroupConsumer(consumer)
        finally:
            consumer.close()

    @contextmanager
    def producer(self, topic: str, *, codec: str = "none") -> Iterator[ProducerSession]:
        producer = KafkaProducer(
            **self._config, enable_idempotence=True, compression_type=None if codec == "none" else codec, linger_ms=5
        )
        try:
            yield _Producer(producer, topic)
        finally:
            producer.close(timeout=DEADLINE_S)

    @contextmanager
    def _unsubscribed(self) -> Iterator[Any]:
        consumer = KafkaConsumer(**self._config, enable_auto_commit=False)
        try:
            yield consumer
        finally:
            consumer.close()


class _Producer:
    def __init__(self, producer: Any, topic: str) -> None:
        self._producer = producer
        self._topic = topic
        self._sent: list[Any] = []

    def send(self, messages: Sequence[Message]) -> None:
        for message in messages:
            key = message.key.encode() if message.key is not None else None
            self._sent.append(
                self._producer.send(self._topic, message.value.encode(), key=key, headers=list(message.headers))
            )

    def finish(self) -> None:
        self._producer.flush(timeout=DEADLINE_S)
        for acknowledged in self._sent:
            acknowledged.get(timeout=0)


class _GroupConsumer:
    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer

    def receive(self, count: int) -> list[Received]:
        return receive(self._consumer, count)

    def commit(self) -> None:
        self._consumer.commit()


def receive(consumer: Any, count: int) -> list[Received]:
    received: list[Received] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(received) < count:
        assert time.monotonic() < deadline, f"{len(received)} of {count} records within {DEADLINE_S:g} s"
        for records in consumer.poll(timeout_ms=500, max_records=count - len(received)).values():
            received.extend(of_python_client(record) for record in records)
    return received
