"""Clients keep their positions when a broker restarts under a new leader epoch."""

import json
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from headrace.testing import Broker
from tests.support.ports import free_port
from tests.support.topics import create_topic
from tests.support.waiting import wait_for


def test_a_consumer_of_an_empty_partition_continues(tmp_path: Path) -> None:
    port = free_port()
    bootstrap = f"127.0.0.1:{port}"
    known: dict[str, Any] = {}

    def note(statistics: str) -> None:
        topics = json.loads(statistics)["topics"]
        known.update(topics["t"]["partitions"]["0"] if "t" in topics else {})

    # a reset of the position is an error; with the default, `latest`, the consumer would skip records
    config = {
        "group.id": "g",
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        "reconnect.backoff.max.ms": 100,
        "log_level": 0,
    }
    consumer = Consumer({"bootstrap.servers": bootstrap, **config, "statistics.interval.ms": 50, "stats_cb": note})

    def has_fetched(leader_epoch: int) -> bool:
        message = consumer.poll(0.05)
        assert message is None, message.error()
        return known.get("leader_epoch") == leader_epoch and known["hi_offset"] == 0

    with closing(consumer):
        for leader_epoch in range(3):
            with Broker(data=tmp_path, port=port):
                if not leader_epoch:
                    create_topic(bootstrap, "t")
                    consumer.assign([TopicPartition("t", 0, OFFSET_BEGINNING)])
                wait_for(partial(has_fetched, leader_epoch), "a fetch under the leader epoch")
                if leader_epoch == 2:
                    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
                    producer.produce("t", b"after the restarts")
                    assert producer.flush(10) == 0
                    message = consumer.poll(10)
    assert message is not None
    assert (message.error(), message.value()) == (None, b"after the restarts")
