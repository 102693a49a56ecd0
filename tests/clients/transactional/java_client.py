"""The Java client through py4j: no Java source, so a Java runtime without a compiler suffices."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from py4j.protocol import Py4JJavaError

from tests.clients.drivers.contract import DEADLINE_S
from tests.clients.transactional.contract import FencedError, Poll, TransactionalClient, TransactionalProducer
from tests.support.java_gateway import JavaGateway, shared_gateway, without_spark

_FENCED: Final = (
    "org.apache.kafka.common.errors.ProducerFencedException",
    "org.apache.kafka.common.errors.InvalidProducerEpochException",
    # Transaction version 2: the broker has aborted the transaction.
    "org.apache.kafka.common.errors.InvalidTxnStateException",
)


class JavaClient(TransactionalClient):
    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._java = shared_gateway()

    def producer(self, transactional_id: str, *, timeout_ms: int = 60_000) -> TransactionalProducer:
        return _Producer(self._java, self._bootstrap, transactional_id, timeout_ms)

    @contextmanager
    def committed(self, topic: str, partitions: int) -> Iterator[Poll]:
        java = self._java
        config = {"bootstrap.servers": self._bootstrap, "enable.auto.commit": False, "fetch.max.wait.ms": 50}
        consumer = java.consumer({**config, "isolation.level": "read_committed"})

        def poll() -> list[tuple[int, bytes]]:
            records = consumer.poll(java.jvm.java.time.Duration.ofMillis(100)).iterator()
            return [(record.partition(), record.value().encode()) for record in records]

        try:
            assigned = java.list(java.partition(topic, partition) for partition in range(partitions))
            consumer.assign(assigned)
            consumer.seekToBeginning(assigned)
            yield poll
        finally:
            consumer.close()


class _Producer:
    def __init__(self, java: JavaGateway, bootstrap: str, transactional_id: str, timeout_ms: int) -> None:
        self._java = java
        self._producer = java.producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "max.block.ms": int(DEADLINE_S * 1000),
                "linger.ms": 0,
            }
        )
        with _fencing():
            self._producer.initTransactions()

    def begin(self) -> None:
        with _fencing():
            self._producer.beginTransaction()

    def send(self, topic: str, partition: int, values: Sequence[str]) -> None:
        with _fencing():
            sent = [self._producer.send(self._java.record(topic, partition, value)) for value in values]
            for acknowledged in sent:
                acknowledged.get()

    def send_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        clients = self._java.jvm.org.apache.kafka.clients.consumer
        positions = self._java.jvm.java.util.HashMap()
        for where, offset in offsets.items():
            positions[self._java.partition(*where)] = clients.OffsetAndMetadata(offset)
        with _fencing():
            self._producer.sendOffsetsToTransaction(positions, clients.ConsumerGroupMetadata(group))

    def commit(self) -> None:
        with _fencing():
            self._producer.commitTransaction()

    def abort(self) -> None:
        with _fencing():
            self._producer.abortTransaction()

    def close(self) -> None:
        self._producer.close(self._java.jvm.java.time.Duration.ZERO)


@contextmanager
def _fencing() -> Iterator[None]:
    try:
        with without_spark():
            yield
    except Py4JJavaError as failure:
        cause: Any = failure.java_exception
        while cause is not None:
            if cause.getClass().getName() in _FENCED:
                raise FencedError(str(failure)) from failure
            cause = cause.getCause()
        raise
