"""aiokafka, on an event loop in its own thread."""

import asyncio
import threading
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from tests.clients.drivers.contract import (
    DEADLINE_S,
    ClientDriver,
    ConsumerSession,
    Message,
    ProducerSession,
    Received,
    of_python_client,
)

T = TypeVar("T")


class AiokafkaDriver(ClientDriver):
    def __init__(self, bootstrap: str) -> None:
        self._config: dict[str, Any] = {"bootstrap_servers": bootstrap, "client_id": "tests-aiokafka"}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="aiokafka")
        self._thread.start()

    def create_topic(self, topic: str, partitions: int) -> None:
        async def create() -> None:
            admin = AIOKafkaAdminClient(**self._config)
            await admin.start()
            try:
                answer = await admin.create_topics([NewTopic(topic, partitions, 1)])
                assert answer.topic_errors[0][1] == 0, answer
            finally:
                await admin.close()

        self.run(create())

    def consume_from_beginning(self, topic: str, count: int) -> list[Received]:
        async def seek(consumer: Any) -> None:
            # partitions_for_topic reads the cluster metadata, which has the topic only after it was requested
            await consumer._client.add_topic(topic)
            assigned = [TopicPartition(topic, partition) for partition in consumer.partitions_for_topic(topic)]
            consumer.assign(assigned)
            await consumer.seek_to_beginning(*assigned)

        with self._consumer() as consumer:
            self.run(seek(consumer))
            return self.run(receive(consumer, count))

    def consume_from_offset(self, topic: str, partition: int, offset: int, count: int) -> list[Received]:
        async def seek(consumer: Any) -> None:
            assigned = TopicPartition(topic, partition)
            consumer.assign([assigned])
            consumer.seek(assigned, offset)

        with self._consumer() as consumer:
            self.run(seek(consumer))
            return self.run(receive(consumer, count))

    def consume_from_timestamp(self, topic: str, partition: int, timestamp_ms: int, count: int) -> list[Received]:
        async def seek(consumer: Any) -> None:
            assigned = TopicPartition(topic, partition)
            consumer.assign([assigned])
            consumer.seek(assigned, (await consumer.offsets_for_times({assigned: timestamp_ms}))[assigned].offset)

        with self._consumer() as consumer:
            self.run(seek(consumer))
            return self.run(receive(consumer, count))

    @contextmanager
    def group_consumer(self, topic: str, group: str) -> Iterator[ConsumerSession]:
        with self._consumer(
            topic,
            group_id=group,
            auto_offset_reset="earliest",
            session_timeout_ms=6000,
            heartbeat_interval_ms=500,
        ) as consumer:
            yield _GroupConsumer(self, consumer)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(2 * DEADLINE_S)

    @contextmanager
    def producer(self, topic: str, *, codec: str = "none") -> Iterator[ProducerSession]:
        async def start() -> Any:
            producer = AIOKafkaProducer(
                **self._config,
                enable_idempotence=True,
                compression_type=None if codec == "none" else codec,
                linger_ms=5,
                request_timeout_ms=20_000,
            )
            await producer.start()
            return producer

        producer = self.run(start())
        try:
            yield _Producer(self, producer, topic)
        finally:
            self.run(producer.stop())

    @contextmanager
    def _consumer(self, *topics: str, **config: Any) -> Iterator[Any]:
        async def start() -> Any:
            consumer = AIOKafkaConsumer(*topics, **self._config, **config, enable_auto_commit=False)
            await consumer.start()
            return consumer

        consumer = self.run(start())
        try:
            yield consumer
        finally:
            self.run(consumer.stop())


class _Producer:
    def __init__(self, driver: AiokafkaDriver, producer: Any, topic: str) -> None:
        self._driver = driver
        self._producer = producer
        self._topic = topic
        self._acknowledged: list[asyncio.Future[Any]] = []

    def send(self, messages: Sequence[Message]) -> None:
        async def send() -> None:
            for message in messages:
                key = message.key.encode() if message.key is not None else None
                self._acknowledged.append(
                    await self._producer.send(
                        self._topic, message.value.encode(), key=key, headers=list(message.headers)
                    )
                )

        self._driver.run(send())

    def finish(self) -> None:
        async def acknowledged() -> None:
            await asyncio.wait_for(asyncio.gather(*self._acknowledged), DEADLINE_S)

        self._driver.run(acknowledged())


class _GroupConsumer:
    def __init__(self, driver: AiokafkaDriver, consumer: Any) -> None:
        self._driver = driver
        self._consumer = consumer

    def receive(self, count: int) -> list[Received]:
        return self._driver.run(receive(self._consumer, count))

    def commit(self) -> None:
        self._driver.run(self._consumer.commit())


async def receive(consumer: Any, count: int) -> list[Received]:
    received: list[Received] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(received) < count:
        assert time.monotonic() < deadline, f"{len(received)} of {count} records within {DEADLINE_S:g} s"
        batches = await consumer.getmany(timeout_ms=500, max_records=count - len(received))
        for records in batches.values():
            received.extend(of_python_client(record) for record in records)
    return received
