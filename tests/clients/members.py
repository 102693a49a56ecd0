"""Consumers (librdkafka) of one group, and a continuous producer."""

import contextlib
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, ConsumerGroupDescription

from tests.support.broker_process import BrokerProcess
from tests.support.topics import create_topic
from tests.support.waiting import wait_for

QUICK_GROUPS = {
    "group.min.session.timeout.ms": 1000,
    "group.initial.rebalance.delay.ms": 200,
    "group.max.size": 100,
    "group.consumer.max.size": 100,
    "group.consumer.min.heartbeat.interval.ms": 100,
    "group.consumer.heartbeat.interval.ms": 200,
    "group.consumer.min.session.timeout.ms": 1000,
    "group.consumer.session.timeout.ms": 6000,
    "group.consumer.assignment.interval.ms": 100,
}
"""Broker settings with short group timeouts."""

CLASSIC = {
    "group.protocol": "classic",
    "session.timeout.ms": 6000,
    "heartbeat.interval.ms": 200,
    "partition.assignment.strategy": "cooperative-sticky",
}
CONSUMER = {"group.protocol": "consumer"}


def _ignore(*_: object) -> None:
    """Ignore an assignment."""


class Members:
    """Consumers of one group; `poll` polls all of them."""

    def __init__(self, broker: BrokerProcess, **settings: Any) -> None:
        self.group_id = f"group-{uuid.uuid4().hex[:8]}"
        self._broker = broker
        self._settings = settings
        self.consumers: list[Consumer] = []
        self.values: list[bytes] = []
        self.errors: list[KafkaError] = []

    def join(self, topic: str, on_assign: Callable[..., None] = _ignore, /, **settings: Any) -> Consumer:
        consumer = Consumer(
            {
                "bootstrap.servers": self._broker.bootstrap,
                "group.id": self.group_id,
                "auto.offset.reset": "earliest",
                "topic.metadata.refresh.interval.ms": 500,
                "fetch.wait.max.ms": 100,
                "log_level": 2,
                "error_cb": self.errors.append,
                **self._settings,
                **settings,
            }
        )
        consumer.subscribe([topic], on_assign=on_assign)
        self.consumers.append(consumer)
        return consumer

    def leave(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        consumer.close()

    def poll(self) -> None:
        for consumer in self.consumers:
            message = consumer.poll(0.05 if len(self.consumers) < 10 else 0)
            if message is not None and message.error() is None:
                value = message.value()
                assert value is not None
                self.values.append(value)
            elif message is not None and (error := message.error()) is not None:
                self.errors.append(error)

    def wait_for_share(self, *expected: int, timeout_s: float = 20.0) -> None:
        """Wait until the members have these numbers of partitions."""
        wait_for(lambda: self.share() == list(expected), f"members share partitions {expected}", timeout_s=timeout_s)

    def wait_for_values(self, *expected: str) -> None:
        """Wait until all these values have been read."""
        wait_for(lambda: self.share() and {item.encode() for item in expected} <= set(self.values), "records arrive")

    def wait_for_count(self, count: int) -> None:
        """Wait until `count` records have been read."""
        wait_for(lambda: self.share() and len(self.values) == count, f"{count} records arrive")

    def wait_for_error(self, code: int) -> None:
        wait_for(lambda: self.share() and code in [error.code() for error in self.errors], f"the error {code}")

    def share(self) -> list[int]:
        self.poll()
        return [len(consumer.assignment()) for consumer in self.consumers]

    def describe(self) -> ConsumerGroupDescription:
        admin = AdminClient({"bootstrap.servers": self._broker.bootstrap})
        description: ConsumerGroupDescription = admin.describe_consumer_groups([self.group_id])[self.group_id].result()
        return description

    def close(self) -> None:
        """Leave, then close: librdkafka's close hangs if an assignment arrives during it (its pull request 4883)."""
        for consumer in self.consumers:
            # A fenced consumer can only be closed.
            with contextlib.suppress(KafkaException):
                consumer.unsubscribe()
        wait_for(lambda: not any(self.share()), "all members leave")
        for consumer in self.consumers:
            consumer.close()


class ContinuousProducer:
    """A context manager that continuously writes numbered records to a topic."""

    def __init__(self, broker: BrokerProcess, topic: str, partitions: int) -> None:
        create_topic(broker.bootstrap, topic, partitions)
        self._topic = topic
        self._partitions = partitions
        self._producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
        self._stops = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.sent: list[bytes] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stops.set()
        self._thread.join()
        self._producer.flush()

    def _run(self) -> None:
        while not self._stops.wait(0.01):
            number = len(self.sent)
            value = b"%d %f" % (number, time.time())
            self._producer.produce(self._topic, value, partition=number % self._partitions)
            self._producer.poll(0)
            self.sent.append(value)
