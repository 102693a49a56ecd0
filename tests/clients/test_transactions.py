"""Transactions of five client libraries: same scenarios, read by the library's own `read_committed` consumer."""

import os
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.clients.brokers import BrokerUnderTest, start_broker
from tests.clients.drivers.confluent_driver import ConfluentDriver
from tests.clients.drivers.contract import MissingClientError
from tests.clients.transactional import CLIENTS
from tests.clients.transactional.contract import (
    END,
    FencedError,
    Record,
    TransactionalClient,
    TransactionalProducer,
)
from tests.support.topics import ends, read_values
from tests.support.waiting import wait_for

PARTITIONS = 2


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerUnderTest]:
    """A broker that checks for expired transactions more often than every ten seconds."""
    broker = start_broker(
        tmp_path_factory.mktemp("broker"), {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 200}
    )
    yield broker
    broker.close()


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest, broker: BrokerUnderTest) -> Iterator[TransactionalClient]:
    try:
        client = CLIENTS[request.param](broker.bootstrap)
    except MissingClientError as missing:
        if os.environ.get("HEADRACE_ALL_CLIENTS"):
            raise
        pytest.skip(str(missing))
    with closing(client):
        yield client


@pytest.fixture
def ledger(broker: BrokerUnderTest, topic: str) -> str:
    ConfluentDriver(broker.bootstrap).create_topic(topic, PARTITIONS)
    return topic


@pytest.fixture
def producers(client: TransactionalClient) -> Iterator[Callable[..., TransactionalProducer]]:
    """A function that creates producers, which are closed at the end."""
    producers: list[TransactionalProducer] = []

    def make(transactional_id: str, **settings: int) -> TransactionalProducer:
        producers.append(client.producer(transactional_id, **settings))
        return producers[-1]

    yield make
    for producer in producers:
        producer.close()


def write_ends(broker: BrokerUnderTest, topic: str) -> None:
    """Write end markers without a transaction, which consumers reach only after all earlier transactions have ended."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for partition in range(PARTITIONS):
        producer.produce(topic, END, partition=partition)
    assert producer.flush(20) == 0


def committed(broker: BrokerUnderTest, group: str, topic: str) -> int:
    """Return the group's offset in partition 0 once no transaction holds it back; -1001 if it has none."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group, "isolation.level": "read_committed"})
    try:
        (partition,) = consumer.committed([TopicPartition(topic, 0)], timeout=20)
        return partition.offset
    finally:
        consumer.close()


Producers = Callable[..., TransactionalProducer]


def test_a_second_producer_with_the_same_id_fences_the_first(
    client: TransactionalClient, producers: Producers, broker: BrokerUnderTest, ledger: str
) -> None:
    first = producers(f"{ledger}-id")
    first.begin()
    first.send(ledger, 0, ["from the first"])

    second = producers(f"{ledger}-id")
    second.begin()
    second.send(ledger, 0, ["from the second"])
    with pytest.raises(FencedError):
        first.commit()
    second.commit()
    write_ends(broker, ledger)

    assert client.read_committed(ledger, PARTITIONS) == [Record(0, "from the second")]


def test_offsets_are_committed_with_the_transaction_or_not_at_all(
    client: TransactionalClient, producers: Producers, broker: BrokerUnderTest, ledger: str
) -> None:
    group = f"{ledger}-group"
    producer = producers(f"{ledger}-id")
    for offset, ends_well in ((3, True), (5, False), (8, True), (9, False)):
        producer.begin()
        producer.send(ledger, 0, [f"made from the records before {offset}"])
        producer.send_offsets(group, {(ledger, 0): offset})
        if ends_well:
            producer.commit()
            assert committed(broker, group, ledger) == offset
        else:
            before = {5: 3, 9: 8}[offset]
            producer.abort()
            assert committed(broker, group, ledger) == before
    write_ends(broker, ledger)

    records = client.read_committed(ledger, PARTITIONS)
    assert [record.value for record in records] == [f"made from the records before {offset}" for offset in (3, 8)]


def test_the_broker_aborts_a_transaction_that_outlives_its_timeout(
    client: TransactionalClient, producers: Producers, broker: BrokerUnderTest, ledger: str
) -> None:
    slow = producers(f"{ledger}-slow", timeout_ms=1500)
    slow.begin()
    slow.send(ledger, 0, ["too slow"])
    write_ends(broker, ledger)

    assert client.read_committed(ledger, PARTITIONS) == []
    with pytest.raises(FencedError):
        slow.commit()


def test_all_clients_read_the_same(broker: BrokerUnderTest, ledger: str) -> None:
    """All clients read the committed records of all clients, and no aborted ones."""
    clients: dict[str, TransactionalClient] = {}
    try:
        for name, make in CLIENTS.items():
            try:
                clients[name] = make(broker.bootstrap)
            except MissingClientError:
                if os.environ.get("HEADRACE_ALL_CLIENTS"):
                    raise
        for name, each in clients.items():
            with closing(each.producer(f"{ledger}-{name}")) as producer:
                producer.begin()
                producer.send(ledger, 0, [f"{name} drops this"])
                producer.send(ledger, 1, [f"{name} drops this"])
                producer.abort()
                producer.begin()
                producer.send(ledger, 0, [f"{name} keeps this", f"{name} keeps that"])
                producer.send(ledger, 1, [f"{name} keeps this"])
                producer.commit()
        write_ends(broker, ledger)
        expected = [Record(0, f"{name} keeps {what}") for name in clients for what in ("this", "that")]
        expected += [Record(1, f"{name} keeps this") for name in clients]
        for name, each in clients.items():
            records = each.read_committed(ledger, PARTITIONS)
            assert sorted(records, key=lambda record: record.partition) == expected, name
        assert len(read_values(broker.bootstrap, ledger)) == 5 * len(clients) + PARTITIONS
    finally:
        for each in clients.values():
            each.close()


@pytest.mark.parametrize("client", ["confluent-kafka"], indirect=True)
def test_an_open_transaction_blocks_readers_of_its_partition_only(
    producers: Producers, broker: BrokerUnderTest, ledger: str
) -> None:
    producer = producers(f"{ledger}-id")
    producer.begin()
    producer.send(ledger, 0, ["open"])
    write_ends(broker, ledger)

    def stable() -> list[int]:
        return ends(broker.bootstrap, ledger, PARTITIONS, isolation="read_committed")

    assert stable() == [0, 1]
    producer.commit()
    wait_for(lambda: stable() == [3, 1], "the record, the other record and the marker are readable")
