"""aiokafka, on an event loop in its own thread."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import InvalidProducerEpoch, ProducerFenced

from tests.clients.drivers.contract import DEADLINE_S
from tests.clients.transactional.contract import END, FencedError, Record, TransactionalProducer

T = TypeVar("T")


class AiokafkaClient:
    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="aiokafka")
        self._thread.start()

    def producer(self, transactional_id: str, *, timeout_ms: int = 60_000) -> TransactionalProducer:
        async def start() -> Any:
            producer = AIOKafkaProducer(
                bootstrap_servers=self._bootstrap, transactional_id=transactional_id, transaction_timeout_ms=timeout_ms
            )
            await producer.start()
            return producer

        return _Producer(self, self.run(start()))

    def read_committed(self, topic: str, partitions: int) -> list[Record]:
        async def read() -> list[Record]:
            consumer = AIOKafkaConsumer(
                bootstrap_servers=self._bootstrap,
                enable_auto_commit=False,
                isolation_level="read_committed",
                fetch_max_wait_ms=50,
            )
            await consumer.start()
            found: list[Record] = []
            ended: set[int] = set()
            try:
                assigned = [TopicPartition(topic, partition) for partition in range(partitions)]
                consumer.assign(assigned)
                await consumer.seek_to_beginning(*assigned)
                while len(ended) < partitions:
                    for where, records in (await consumer.getmany(timeout_ms=100)).items():
                        for record in records:
                            if record.value == END.encode():
                                ended.add(where.partition)
                            elif where.partition not in ended:
                                found.append(Record(where.partition, record.value.decode()))
            finally:
                await consumer.stop()
            return found

        return self.run(read())

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(asyncio.wait_for(coroutine, DEADLINE_S), self._loop).result()


class _Producer:
    def __init__(self, client: AiokafkaClient, producer: Any) -> None:
        self._client = client
        self._producer = producer

    def begin(self) -> None:
        with _fencing():
            self._client.run(self._producer.begin_transaction())

    def send(self, topic: str, partition: int, values: Sequence[str]) -> None:
        async def send() -> None:
            sent = [await self._producer.send(topic, value.encode(), partition=partition) for value in values]
            await asyncio.gather(*sent)

        with _fencing():
            self._client.run(send())

    def send_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        positions = {TopicPartition(*where): offset for where, offset in offsets.items()}
        with _fencing():
            self._client.run(self._producer.send_offsets_to_transaction(positions, group))

    def commit(self) -> None:
        with _fencing():
            self._client.run(self._producer.commit_transaction())

    def abort(self) -> None:
        with _fencing():
            self._client.run(self._producer.abort_transaction())

    def close(self) -> None:
        try:
            self._client.run(self._producer.stop())
        except ProducerFenced:
            return


@contextmanager
def _fencing() -> Iterator[None]:
    try:
        yield
    except (ProducerFenced, InvalidProducerEpoch) as failure:
        raise FencedError(str(failure)) from failure
