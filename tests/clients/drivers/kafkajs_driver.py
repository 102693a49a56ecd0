"""KafkaJS, in a Node process controlled through `tests/clients/node/driver.mjs`."""

import json
import shutil
import uuid
from base64 import b64decode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.clients.drivers.contract import (
    DEADLINE_S,
    ClientDriver,
    ConsumerSession,
    Message,
    MissingClientError,
    ProducerSession,
    Received,
)
from tests.clients.drivers.line_process import LineProcess

NODE_PROJECT: Final = Path(__file__).parents[1] / "node"


class KafkajsError(AssertionError):
    """A failed KafkaJS call; `type` is the broker's error, if any."""

    def __init__(self, text: str, type: str | None) -> None:
        super().__init__(text)
        self.type = type


class KafkajsDriver(ClientDriver):
    def __init__(self, bootstrap: str) -> None:
        if shutil.which("node") is None:
            raise MissingClientError("no node: install Node.js 18 or newer")
        if not (NODE_PROJECT / "node_modules" / "kafkajs").is_dir():
            raise MissingClientError("no KafkaJS: run `npm ci` in tests/clients/node (`make setup` does)")
        self._process = LineProcess(["node", "driver.mjs", bootstrap], cwd=str(NODE_PROJECT))

    def create_topic(self, topic: str, partitions: int) -> None:
        assert self.call("createTopic", topic=topic, partitions=partitions), f"{topic} already exists"

    def consume_from_beginning(self, topic: str, count: int) -> list[Received]:
        with self._consumer(topic) as consumer:
            return consumer.receive(count)

    def consume_from_offset(self, topic: str, partition: int, offset: int, count: int) -> list[Received]:
        with self._consumer(topic, start={"partition": partition, "offset": str(offset)}) as consumer:
            return consumer.receive(count)

    def consume_from_timestamp(self, topic: str, partition: int, timestamp_ms: int, count: int) -> list[Received]:
        offset = self.call("offsetAt", topic=topic, partition=partition, timestamp=timestamp_ms)
        return self.consume_from_offset(topic, partition, offset, count)

    @contextmanager
    def group_consumer(self, topic: str, group: str) -> Iterator[ConsumerSession]:
        with self._consumer(topic, group=group) as consumer:
            yield consumer

    def close(self) -> None:
        try:
            self._process.wait()
        finally:
            self._process.close()

    def call(self, function: str, /, **given: object) -> Any:
        """Call a function of driver.mjs and return its result, or raise KafkajsError."""
        self._process.write_line(json.dumps({"call": function, **given}))
        answer = json.loads(self._process.read_line(2 * DEADLINE_S))
        if "error" in answer:
            raise KafkajsError(answer["error"], answer.get("type"))
        return answer["result"]

    @contextmanager
    def producer(self, topic: str, *, codec: str = "none") -> Iterator[ProducerSession]:
        self.call("startProducer", topic=topic, codec=codec)
        try:
            yield _Producer(self)
        finally:
            self.call("stopProducer")

    @contextmanager
    def _consumer(
        self, topic: str, *, group: str | None = None, start: dict[str, object] | None = None
    ) -> "Iterator[_Consumer]":
        # KafkaJS has no consumers without a group: use a group that never commits
        self.call("startConsumer", topic=topic, group=group or f"{topic}-{uuid.uuid4().hex}", start=start)
        try:
            yield _Consumer(self, topic)
        finally:
            self.call("stopConsumer")


class _Producer:
    def __init__(self, driver: KafkajsDriver) -> None:
        self._driver = driver

    def send(self, messages: Sequence[Message]) -> None:
        self._driver.call(
            "send",
            messages=[
                {
                    "key": message.key,
                    "value": message.value,
                    "headers": [(name, value.decode()) for name, value in message.headers],
                }
                for message in messages
            ],
        )

    def finish(self) -> None:
        self._driver.call("finishProducer")


class _Consumer:
    def __init__(self, driver: KafkajsDriver, topic: str) -> None:
        self._driver = driver
        self._topic = topic
        self._positions: dict[int, int] = {}

    def receive(self, count: int) -> list[Received]:
        received = [
            Received(
                partition=record["partition"],
                offset=record["offset"],
                timestamp_ms=record["timestamp_ms"],
                value=b64decode(record["value"]),
                key=None if record["key"] is None else b64decode(record["key"]),
                headers=tuple((name, b64decode(value)) for name, value in record["headers"]),
            )
            for record in self._driver.call("receive", count=count)
        ]
        for record in received:
            self._positions[record.partition] = record.offset + 1
        return received

    def commit(self) -> None:
        self._driver.call("commit", topic=self._topic, offsets=sorted(self._positions.items()))
