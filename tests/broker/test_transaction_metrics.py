"""Metrics of transactions."""

import logging
import urllib.request
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from headrace.testing import Broker
from tests.support.topics import create_topic
from tests.support.waiting import wait_for

SETTINGS = {
    "headrace.http.listener": "127.0.0.1:0",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
}


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(SETTINGS) as broker:
        create_topic(broker.bootstrap, "t", 2)
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


def test_an_open_transaction_is_counted_has_an_age_and_holds_back_the_last_stable_offset(broker: Broker) -> None:
    def distances() -> list[float]:
        prefix = "kafka_cluster_partition_laststableoffset"
        return [value for name, value in metrics(broker).items() if name.startswith(prefix)]

    assert metrics(broker)["headrace_transactions_oldest_open_seconds"] == 0
    producer = open_transaction(broker)
    assert distances() == [2]
    assert metrics(broker)['headrace_transactions{state="Ongoing"}'] == 1
    wait_for(lambda: metrics(broker)["headrace_transactions_oldest_open_seconds"] > 0, "an age")
    producer.commit_transaction(30)
    assert distances() == []
    wait_for(lambda: metrics(broker)['headrace_transactions{state="CompleteCommit"}'] == 1, "the end")
    assert metrics(broker)["headrace_transactions_oldest_open_seconds"] == 0


def test_a_transaction_that_outlives_its_timeout_is_logged_with_its_client(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        open_transaction(broker, timeout_ms=1000)
        wait_for(lambda: "open for more than 1000 ms" in caplog.text, "the abort")
    assert "transactional id writer (client billing at 127.0.0.1, producer " in caplog.text
