"""The basic operations of all clients."""

import time
from typing import Final

import pytest

from tests.clients.brokers import BrokerUnderTest
from tests.clients.drivers import CODECS, DRIVERS
from tests.clients.drivers.contract import ClientDriver
from tests.clients.messages import assert_in_order, assert_same, plain, with_headers
from tests.clients.segments import stored_codecs
from tests.support.waiting import wait_for


def clients(*gate: str) -> pytest.MarkDecorator:
    """Run a test with all clients: with those of `gate` in `make test`, with the others in `make slow`."""
    return pytest.mark.parametrize(
        "client", [pytest.param(name, marks=[] if name in gate else [pytest.mark.slow]) for name in DRIVERS]
    )


# Each codec of the Java client is a JVM.
WRITERS: Final = [
    pytest.param(name, codec, marks=[] if name != "java" or codec in ("none", "zstd") else [pytest.mark.slow])
    for name in DRIVERS
    for codec in CODECS
]


@pytest.mark.parametrize(("client", "codec"), WRITERS)
def test_records_are_read_back_with_every_compression(
    driver: ClientDriver, shared_broker: BrokerUnderTest, topic: str, codec: str
) -> None:
    sent = [*plain(40, codec), *with_headers(40, codec)]
    driver.create_topic(topic, 2)

    driver.produce(topic, sent, codec=codec)
    received = driver.consume_from_beginning(topic, len(sent))

    assert_same(received, sent)
    assert_in_order(received)
    assert stored_codecs(shared_broker.data, topic) == {codec}


def test_a_consumer_starts_at_an_offset_or_a_timestamp(driver: ClientDriver, topic: str) -> None:
    earlier, later = plain(20, "earlier"), plain(20, "later")
    driver.create_topic(topic, 1)
    driver.produce(topic, earlier)
    written_ms = driver.consume_from_beginning(topic, len(earlier))[-1].timestamp_ms
    wait_for(lambda: time.time() * 1000 > written_ms + 1, "the clock advances")
    driver.produce(topic, later)

    by_offset = driver.consume_from_offset(topic, 0, 7, 20)
    by_timestamp = driver.consume_from_timestamp(topic, 0, written_ms + 1, len(later))

    assert [record.offset for record in by_offset] == list(range(7, 27))
    assert [record.message for record in by_offset] == [*earlier[7:], *later[:7]]
    assert [record.message for record in by_timestamp] == later
    assert by_timestamp[0].offset == 20


@clients("confluent-kafka", "kafka-python", "aiokafka", "kafkajs", "java")
def test_a_group_resumes_at_its_committed_offset(driver: ClientDriver, topic: str) -> None:
    first, second = plain(30, "first"), plain(30, "second")
    group = f"{topic}-group"
    driver.create_topic(topic, 3)
    driver.produce(topic, first)

    with driver.group_consumer(topic, group) as consumer:
        assert_same(consumer.receive(len(first)), first)
        consumer.commit()
    driver.produce(topic, second)
    with driver.group_consumer(topic, group) as consumer:
        assert_same(consumer.receive(len(second)), second)
        consumer.commit()


@clients("confluent-kafka", "aiokafka")
def test_clients_survive_a_kill_of_the_broker(
    own_driver: ClientDriver, own_broker: BrokerUnderTest, topic: str
) -> None:
    before, in_flight, while_down, after = (
        plain(30, "before"),
        plain(2000, "in flight"),
        plain(30, "while down"),
        plain(30, "after"),
    )
    group = f"{topic}-group"
    own_driver.create_topic(topic, 3)

    with own_driver.producer(topic) as producer:
        with own_driver.group_consumer(topic, group) as consumer:
            producer.send(before)
            assert_same(consumer.receive(len(before)), before)
            consumer.commit()
        producer.send(in_flight)
        own_broker.sigkill()
        producer.send(while_down)
        own_broker.start()
        producer.send(after)
        producer.finish()

    sent_later = [*in_flight, *while_down, *after]
    with own_driver.group_consumer(topic, group) as consumer:
        assert_same(consumer.receive(len(sent_later)), sent_later)
        consumer.commit()
    stored = own_driver.consume_from_beginning(topic, len(before) + len(sent_later))
    assert_same(stored, [*before, *sent_later])
    assert_in_order(stored)


@clients("kafka-python", "kafkajs")
def test_a_group_member_survives_a_kill_of_the_broker(
    own_driver: ClientDriver, own_broker: BrokerUnderTest, topic: str
) -> None:
    before, after = plain(30, "before"), plain(30, "after")
    own_driver.create_topic(topic, 3)
    own_driver.produce(topic, before)

    with own_driver.group_consumer(topic, f"{topic}-group") as consumer:
        assert_same(consumer.receive(len(before)), before)
        consumer.commit()
        own_broker.sigkill()
        own_broker.start()
        own_driver.produce(topic, after)
        assert_same(consumer.receive(len(after)), after)
        consumer.commit()
