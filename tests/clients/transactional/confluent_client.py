"""confluent-kafka (librdkafka)."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.clients.drivers.contract import DEADLINE_S
from tests.clients.transactional.contract import FencedError, Poll, TransactionalClient, TransactionalProducer

_FENCED: Final = {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}


class ConfluentClient(TransactionalClient):
    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def producer(self, transactional_id: str, *, timeout_ms: int = 60_000) -> TransactionalProducer:
        return _Producer(self._bootstrap, transactional_id, timeout_ms)

    @contextmanager
    def committed(self, topic: str, partitions: int) -> Iterator[Poll]:
        config = {"bootstrap.servers": self._bootstrap, "group.id": "not-used", "enable.auto.commit": False}
        consumer = Consumer({**config, "isolation.level": "read_committed", "fetch.wait.max.ms": 50})

        def poll() -> Iterator[tuple[int, bytes]]:
            for message in consumer.consume(1000, timeout=0.1):
                partition, value, error = message.partition(), message.value(), message.error()
                assert error is None or error.retriable(), error
                if error is None:
                    assert partition is not None
                    assert isinstance(value, bytes)
                    yield partition, value

        try:
            consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(partitions)])
            yield poll
        finally:
            consumer.close()


class _Producer:
    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int) -> None:
        self._bootstrap = bootstrap
        config = {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "log_level": 0}
        self._producer = Producer({**config, "transaction.timeout.ms": timeout_ms, "linger.ms": 0})
        with _fencing():
            self._producer.init_transactions(DEADLINE_S)

    def begin(self) -> None:
        with _fencing():
            self._producer.begin_transaction()

    def send(self, topic: str, partition: int, values: Sequence[str]) -> None:
        failures: list[KafkaError] = []
        with _fencing():
            for value in values:
                self._producer.produce(
                    topic,
                    value.encode(),
                    partition=partition,
                    on_delivery=lambda error, _: failures.append(error) if error else None,
                )
            assert self._producer.flush(DEADLINE_S) == 0
            if failures:
                raise KafkaException(failures[0])

    def send_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        consumer = Consumer({"bootstrap.servers": self._bootstrap, "group.id": group})
        positions = [TopicPartition(topic, partition, offset) for (topic, partition), offset in offsets.items()]
        try:
            with _fencing():
                group_metadata = consumer.consumer_group_metadata()
                self._producer.send_offsets_to_transaction(positions, group_metadata, DEADLINE_S)
        finally:
            consumer.close()

    def commit(self) -> None:
        with _fencing():
            self._producer.commit_transaction(DEADLINE_S)

    def abort(self) -> None:
        with _fencing():
            self._producer.abort_transaction(DEADLINE_S)

    def close(self) -> None:
        """Drop the producer, which closes it."""
        del self._producer


@contextmanager
def _fencing() -> Iterator[None]:
    try:
        yield
    except KafkaException as failure:
        if failure.args[0].code() in _FENCED:
            raise FencedError(str(failure)) from failure
        raise
