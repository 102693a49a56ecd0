"""Lag counts neither transaction markers nor records of open transactions."""

import json
import urllib.request
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from typer.testing import CliRunner

from headrace.cli.main import app
from headrace.testing import Broker
from tests.broker.watched_groups import get
from tests.support.topics import create_topic
from tests.support.waiting import wait_for

SETTINGS = {"headrace.http.listener": "127.0.0.1:0", "headrace.group.history.interval.ms": "100"}


def write(broker: Broker, *, then_open: bool = False) -> Producer:
    """Write three transactions of two records and a marker: nine offsets; then open a fourth with one record."""
    create_topic(broker.bootstrap, "t")
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "writer"})
    producer.init_transactions(30)
    for number in range(4 if then_open else 3):
        producer.begin_transaction()
        producer.produce("t", b"x", partition=0)
        if number < 3:
            producer.produce("t", b"x", partition=0)
            producer.commit_transaction(30)
    producer.flush(30)
    return producer


def commit(broker: Broker, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
    consumer.commit(offsets=[TopicPartition("t", 0, offset)], asynchronous=False)
    consumer.close()


def lag(broker: Broker) -> int | None:
    partitions = get(broker.http, "/groups/describe?group=g")["partitions"]
    found = partitions[0]["lag"] if partitions else None
    assert found is None or isinstance(found, int)
    return found


def test_markers_do_not_count_as_lag() -> None:
    with Broker(SETTINGS) as broker:
        write(broker)
        commit(broker, 2)
        wait_for(lambda: lag(broker) == 4, "a lag of the four records after the first marker")

        def scraped() -> bool:
            with urllib.request.urlopen(f"{broker.http}/metrics") as answer:
                text = answer.read().decode()
            return 'kafka_consumergroup_group_sum_lag{group="g"} 4' in text

        wait_for(scraped, "the same lag in the metrics")
        commit(broker, 8)
        result = CliRunner().invoke(app, ["groups", "list", "--lag", "--json", "-b", broker.bootstrap])
        assert [load["lag"] for load in json.loads(result.stdout)] == [0]


def test_records_of_an_open_transaction_do_not_count_as_lag() -> None:
    with Broker(SETTINGS) as broker:
        producer = write(broker, then_open=True)
        commit(broker, 8)
        wait_for(lambda: lag(broker) == 0, "no lag while the transaction is open")
        producer.commit_transaction(30)
        wait_for(lambda: lag(broker) == 1, "a lag of its one record")


def test_markers_from_before_a_restart_do_not_count_as_lag(tmp_path: Path) -> None:
    with Broker(SETTINGS, data=tmp_path) as broker:
        write(broker)
        commit(broker, 2)
    with Broker(SETTINGS, data=tmp_path) as broker:
        wait_for(lambda: lag(broker) == 4, "a lag without markers, counted from batch headers")
