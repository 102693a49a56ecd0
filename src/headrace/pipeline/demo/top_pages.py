"""Read the top pages as any consumer can: from the topic that the query publishes them to."""

import json
import logging

from confluent_kafka import Consumer, TopicPartition

from headrace.pipeline.demo.state import DemoState
from headrace.pipeline.topics import Topics

log = logging.getLogger(__name__)


class TopPagesReader:
    """Reads a changelog from its beginning, without a group."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topics = Topics(bootstrap)
        self._topic = topic
        self._assigned = False
        self._consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "headrace-demo", "enable.auto.commit": False}, logger=log
        )

    def read(self, state: DemoState) -> None:
        """Update the state's top pages with new records; does not wait."""
        if not self._assigned:
            if not state.jobs:
                return  # the queries, which create the topic, do not run yet
            partitions = self._topics.end_offsets(self._topic)
            self._consumer.assign([TopicPartition(self._topic, partition, 0) for partition in partitions])
            self._assigned = True
        for message in self._consumer.consume(num_messages=100, timeout=0):
            value = message.value()
            if message.error() is None and value is not None:
                row = json.loads(value)
                state.top_pages[row["rank"]] = row

    def close(self) -> None:
        self._consumer.close()
