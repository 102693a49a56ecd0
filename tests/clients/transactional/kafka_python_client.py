"""kafka-python 3."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import InvalidProducerEpochError, ProducerFencedError
from kafka.structs import ConsumerGroupMetadata, OffsetAndMetadata

from tests.clients.drivers.contract import DEADLINE_S
from tests.clients.transactional.contract import FencedError, Poll, TransactionalClient, TransactionalProducer


class KafkaPythonClient(TransactionalClient):
    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def producer(self, transactional_id: str, *, timeout_ms: int = 60_000) -> TransactionalProducer:
        return _Producer(self._bootstrap, transactional_id, timeout_ms)

    @contextmanager
    def committed(self, topic: str, partitions: int) -> Iterator[Poll]:
        settings = {"enable_auto_commit": False, "isolation_level": "read_committed", "fetch_max_wait_ms": 50}
        consumer = KafkaConsumer(bootstrap_servers=self._bootstrap, **settings)

        def poll() -> list[tuple[int, bytes]]:
            lots = consumer.poll(timeout_ms=100).values()
            return [(record.partition, record.value) for records in lots for record in records]

        try:
            assigned = [TopicPartition(topic, partition) for partition in range(partitions)]
            consumer.assign(assigned)
            consumer.seek_to_beginning(*assigned)
            yield poll
        finally:
            consumer.close()


class _Producer:
    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int) -> None:
        self._producer: Any = KafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            max_block_ms=DEADLINE_S * 1000,
        )
        with _fencing():
            self._producer.init_transactions()

    def begin(self) -> None:
        with _fencing():
            self._producer.begin_transaction()

    def send(self, topic: str, partition: int, values: Sequence[str]) -> None:
        with _fencing():
            sent = [self._producer.send(topic, value.encode(), partition=partition) for value in values]
            self._producer.flush(timeout=DEADLINE_S)
            for acknowledged in sent:
                acknowledged.get(timeout=DEADLINE_S)

    def send_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        positions = {TopicPartition(*where): OffsetAndMetadata(offset, "", -1) for where, offset in offsets.items()}
        with _fencing():
            self._producer.send_offsets_to_transaction(positions, ConsumerGroupMetadata(group, -1, "", None))

    def commit(self) -> None:
        with _fencing():
            self._producer.commit_transaction()

    def abort(self) -> None:
        with _fencing():
            self._producer.abort_transaction()

    def close(self) -> None:
        self._producer.close(timeout=1)


@contextmanager
def _fencing() -> Iterator[None]:
    try:
        yield
    except (ProducerFencedError, InvalidProducerEpochError) as failure:
        raise FencedError(str(failure)) from failure
