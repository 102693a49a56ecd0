"""KafkaJS, through tests/clients/node/driver.mjs."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from tests.clients.drivers.kafkajs_driver import KafkajsDriver, KafkajsError
from tests.clients.transactional.contract import FencedError, Poll, TransactionalClient, TransactionalProducer

_FENCED: Final = {"PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"}


class KafkajsClient(TransactionalClient):
    def __init__(self, bootstrap: str) -> None:
        self._driver = KafkajsDriver(bootstrap)
        self._names = itertools.count()

    def producer(self, transactional_id: str, *, timeout_ms: int = 60_000) -> TransactionalProducer:
        name = str(next(self._names))
        self._driver.call("startTransactional", name=name, transactionalId=transactional_id, timeout=timeout_ms)
        return _Producer(self._driver, name)

    @contextmanager
    def committed(self, topic: str, partitions: int) -> Iterator[Poll]:
        with self._driver.group_consumer(topic, f"{topic}-readers") as consumer:
            yield lambda: [(record.partition, record.value) for record in consumer.receive(1)]

    def close(self) -> None:
        self._driver.close()


class _Producer:
    def __init__(self, driver: KafkajsDriver, name: str) -> None:
        self._driver = driver
        self._name = name

    def begin(self) -> None:
        self._call("begin")

    def send(self, topic: str, partition: int, values: Sequence[str]) -> None:
        self._call("sendInTransaction", topic=topic, partition=partition, values=values)

    def send_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        self._call("sendOffsets", group=group, offsets=[(*where, offset) for where, offset in offsets.items()])

    def commit(self) -> None:
        self._call("endTransaction", commit=True)

    def abort(self) -> None:
        self._call("endTransaction", commit=False)

    def close(self) -> None:
        self._call("stopTransactional")

    def _call(self, name: str, **given: object) -> None:
        with _fencing():
            self._driver.call(name, name=self._name, **given)


@contextmanager
def _fencing() -> Iterator[None]:
    try:
        yield
    except KafkajsError as failure:
        if failure.type in _FENCED:
            raise FencedError(str(failure)) from failure
        raise
