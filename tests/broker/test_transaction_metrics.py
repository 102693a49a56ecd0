"""Metrics of transactions."""

import logging
import urllib.request
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.testing import Broker
from tests.support.waiting import wait_for

SETTINGS = {
    "headrace.http.listener": "127.0.0.1:0",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
}


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(SETTINGS) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("t", 2, 1)])["t"].result()
        yield broker


def open_transaction(broker: Broker, timeout_ms: int = 60_000) -> Producer:
    """A producer with two records in an open transaction."""
    settings = {
        "bootstrap.servers": broker.bootstrap,
        "client.id": "billing",
        "transactional.id": "writer",
        "transaction.timeout.ms": timeout_ms,
    }
    producer = Producer(settings)
    producer.init_transactions(30)
    producer.begin_transaction()
    for _ in range(2):
        producer.produce("t", b"x", partition=1)
    producer.flush(30)
    return producer


def metrics(broker: Broker) -> dict[str, float]:
    with urllib.request.urlopen(f"{broker.http}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    found = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in found.items()}


def test_an_open_transaction_holds_back_the_last_stable_offset(broker: Broker) -> None:
    producer = open_transaction(broker)
    [distance] = [
        value for name, value in metrics(broker).items() if name.startswith("kafka_cluster_partition_laststableoffset")
    ]
    assert distance == 2
    producer.commit_transaction(30)
    assert not [name for name in metrics(broker) if name.startswith("kafka_cluster_partition_laststableoffset")]


def test_transactions_are_counted_by_state(broker: Broker) -> None:
    producer = open_transaction(broker)
    assert metrics(broker)['headrace_transactions{state="Ongoing"}'] == 1
    producer.commit_transaction(30)
    wait_for(lambda: metrics(broker)['headrace_transactions{state="CompleteCommit"}'] == 1, "the end")


def test_the_oldest_open_transaction_has_an_age(broker: Broker) -> None:
    assert metrics(broker)["headrace_transactions_oldest_open_seconds"] == 0
    producer = open_transaction(broker)
    wait_for(lambda: metrics(broker)["headrace_transactions_oldest_open_seconds"] > 0, "an age")
    producer.abort_transaction(30)
    wait_for(lambda: metrics(broker)["headrace_transactions_oldest_open_seconds"] == 0, "no open transaction")


def test_a_transaction_that_outlives_its_timeout_is_logged_with_its_client(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        open_transaction(broker, timeout_ms=1000)
        wait_for(lambda: "open for more than 1000 ms" in caplog.text, "the abort")
    assert "transactional id writer (client billing at 127.0.0.1, producer " in caplog.text
