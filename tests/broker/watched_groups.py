"""Members of groups that a broker keeps a history of, and requests for it over HTTP."""

import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, Producer

from tests.support.waiting import wait_for

SETTINGS = {
    "headrace.http.listener": "127.0.0.1:0",
    "headrace.group.history.interval.ms": "100",
    "group.consumer.min.heartbeat.interval.ms": "200",
    "group.consumer.heartbeat.interval.ms": "200",
}


def produce(bootstrap: str, count: int, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for _ in range(count):
        producer.produce("orders", b"x", partition=partition)
    assert producer.flush(10) == 0


@contextmanager
def member(bootstrap: str, group: str, client_id: str = "app", **settings: Any) -> Iterator[Consumer]:
    """A member with assigned partitions."""
    with_dots = {name.replace("_", "."): value for name, value in settings.items()}
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "client.id": client_id,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **with_dots,
        }
    )
    consumer.subscribe(["orders"])
    try:
        wait_for(lambda: consumer.poll(0.05) or consumer.assignment(), "an assignment")
        yield consumer
    finally:
        consumer.close()


def get(http: str | None, path: str) -> Any:
    with urllib.request.urlopen(f"{http}{path}", timeout=10) as answer:
        return json.load(answer)
