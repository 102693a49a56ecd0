"""kcat from Debian: a command-line tool on an older librdkafka."""

import itertools
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

from tests.clients.drivers.confluent_driver import ConfluentDriver
from tests.clients.drivers.contract import (
    ClientDriver,
    ConsumerSession,
    Message,
    MissingClientError,
    ProducerSession,
    Received,
)
from tests.clients.drivers.line_process import LineProcess
from tests.clients.drivers.observer import ObservedMember

KEY_DELIMITER = "\t"


class KcatDriver(ClientDriver):
    def __init__(self, bootstrap: str) -> None:
        if shutil.which("kcat") is None:
            raise MissingClientError("no kcat: apt-get install kcat")
        self._bootstrap = bootstrap
        self._kcat = ["kcat", "-b", bootstrap, "-X", "client.id=tests-kcat", "-X", "reconnect.backoff.max.ms=500", "-E"]

    def create_topic(self, topic: str, partitions: int) -> None:
        # kcat cannot create topics
        ConfluentDriver(self._bootstrap).create_topic(topic, partitions)

    def consume_from_beginning(self, topic: str, count: int) -> list[Received]:
        return self._consume(["-t", topic, "-o", "beginning"], count)

    def consume_from_offset(self, topic: str, partition: int, offset: int, count: int) -> list[Received]:
        return self._consume(["-t", topic, "-p", str(partition), "-o", str(offset)], count)

    def consume_from_timestamp(self, topic: str, partition: int, timestamp_ms: int, count: int) -> list[Received]:
        return self._consume(["-t", topic, "-p", str(partition), "-o", f"s@{timestamp_ms}"], count)

    @contextmanager
    def group_consumer(self, topic: str, group: str) -> Iterator[ConsumerSession]:
        settings = {
            "auto.offset.reset": "earliest",
            "session.timeout.ms": "6000",
            "heartbeat.interval.ms": "500",
        }
        options = [option for name, value in settings.items() for option in ("-X", f"{name}={value}")]
        # commits every 5 s: kcat does not allow changing auto.commit.interval.ms
        command = [*self._kcat, *options, "-J", "-u", "-G", group, topic]
        with closing(ObservedMember(command, _received, self._bootstrap, group, topic)) as member:
            yield member

    @contextmanager
    def producer(self, topic: str, *, codec: str = "none") -> Iterator[ProducerSession]:
        command = [*self._kcat, "-X", "enable.idempotence=true", "-P", "-t", topic, "-z", codec, "-K", KEY_DELIMITER]
        producer = _Producer(command)
        try:
            yield producer
        finally:
            producer.close()

    def _consume(self, options: list[str], count: int) -> list[Received]:
        process = LineProcess([*self._kcat, "-C", "-J", "-u", "-c", str(count), *options])
        try:
            received = [_received(process.read_line()) for _ in range(count)]
            process.wait()
        finally:
            process.close()
        return received


class _Producer:
    """One process per run of messages with the same headers: kcat reads input in blocks and has one set of headers."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._processes: list[LineProcess] = []

    def send(self, messages: Sequence[Message]) -> None:
        for headers, lot in itertools.groupby(messages, key=lambda message: message.headers):
            options = [option for name, value in headers for option in ("-H", f"{name}={value.decode()}")]
            process = LineProcess([*self._command, *options])
            self._processes.append(process)
            for message in lot:
                process.write_line(
                    message.value if message.key is None else f"{message.key}{KEY_DELIMITER}{message.value}"
                )
            process.end_input()

    def finish(self) -> None:
        for process in self._processes:
            process.wait()

    def close(self) -> None:
        for process in self._processes:
            process.close()


def _received(line: str) -> Received:
    record: dict[str, Any] = json.loads(line)
    names_and_values = record.get("headers", [])
    return Received(
        partition=record["partition"],
        offset=record["offset"],
        timestamp_ms=record["ts"],
        value=record["payload"].encode(),
        key=None if record["key"] is None else record["key"].encode(),
        headers=tuple(
            (name, value.encode()) for name, value in zip(names_and_values[::2], names_and_values[1::2], strict=True)
        ),
    )
