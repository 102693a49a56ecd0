"""aiokafka, on an event loop in its own thread."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import InvalidProducerEpoch, ProducerFenced

from tests.clients.drivers.aiokafka_driver import AiokafkaDriver
from tests.clients.transactional.contract import FencedError, Poll, TransactionalClient, TransactionalProducer


class AiokafkaClient(TransactionalClient):
    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._driver = AiokafkaDriver(bootstrap)

    def producer(self, transactional_id: str, *, timeout_ms: int = 60_000) -> TransactionalProducer:
        async def start() -> Any:
            producer = AIOKafkaProducer(
                bootstrap_servers=self._bootstrap, transactional_id=transactional_id, transaction_timeout_ms=timeout_ms
            )
            await producer.start()
            return producer

        return _Producer(self._driver, self._driver.run(start()))

    @contextmanager
    def committed(self, topic: str, partitions: int) -> Iterator[Poll]:
        assigned = [TopicPartition(topic, partition) for partition in range(partitions)]

        async def start() -> Any:
            settings = {"enable_auto_commit": False, "isolation_level": "read_committed", "fetch_max_wait_ms": 50}
            consumer = AIOKafkaConsumer(bootstrap_servers=self._bootstrap, **settings)
            await consumer.start()
            consumer.assign(assigned)
            await consumer.seek_to_beginning(*assigned)
            return consumer

        def poll() -> list[tuple[int, bytes]]:
            lots = self._driver.run(consumer.getmany(timeout_ms=100)).values()
            return [(record.partition, record.value) for records in lots for record in records]

        consumer = self._driver.run(start())
        try:
            yield poll
        finally:
            self._driver.run(consumer.stop())

    def close(self) -> None:
        self._driver.close()


class _Producer:
    def __init__(self, driver: AiokafkaDriver, producer: Any) -> None:
        self._driver = driver
        self._producer = producer

    def begin(self) -> None:
        with _fencing():
            self._driver.run(self._producer.begin_transaction())

    def send(self, topic: str, partition: int, values: Sequence[str]) -> None:
        async def send() -> None:
            sent = [await self._producer.send(topic, value.encode(), partition=partition) for value in values]
            await asyncio.gather(*sent)

        with _fencing():
            self._driver.run(send())

    def send_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        positions = {TopicPartition(*where): offset for where, offset in offsets.items()}
        with _fencing():
            self._driver.run(self._producer.send_offsets_to_transaction(positions, group))

    def commit(self) -> None:
        with _fencing():
            self._driver.run(self._producer.commit_transaction())

    def abort(self) -> None:
        with _fencing():
            self._driver.run(self._producer.abort_transaction())

    def close(self) -> None:
        try:
            self._driver.run(self._producer.stop())
        except ProducerFenced:
            return


@contextmanager
def _fencing() -> Iterator[None]:
    try:
        yield
    except (ProducerFenced, InvalidProducerEpoch) as failure:
        raise FencedError(str(failure)) from failure
