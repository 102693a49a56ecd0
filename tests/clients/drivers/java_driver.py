"""The Java client, through Kafka's command-line tools.

Producers and members of groups are processes. Tools that end by themselves share a JVM.
"""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

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
from tests.clients.drivers.observer import ObservedMember
from tests.support.kafka_process import shared_classes
from tests.support.kafka_tools import CONSOLE_CONSUMER, CONSOLE_PRODUCER, GET_OFFSETS, TOPICS, shared_tools

JARS: Final = Path(os.environ.get("HEADRACE_KAFKA_JARS") or Path(__file__).parents[3] / ".build" / "jars" / "kafka")
# For a JVM that lives for a second: little compilation, no parallel garbage collection, no JVM output on stdout
JVM_OPTIONS: Final = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Xmx256m",
    "-Xlog:disable",
    "-Xlog:all=error:stderr",
)


NULL: Final = "NULL"
_PRINTED: Final = ("timestamp", "partition", "offset", "headers", "key", "value")
_PRINTING: Final = tuple(option for name in _PRINTED for option in ("--formatter-property", f"print.{name}=true"))


def java_command(tool: str, *arguments: str) -> list[str]:
    if shutil.which("java") is None:
        raise MissingClientError("no java: install a Java 17 runtime")
    if not any(JARS.glob("kafka-tools-*.jar")):
        raise MissingClientError(f"no Kafka tools in {JARS}: `make setup` fetches them (or set HEADRACE_KAFKA_JARS)")
    return ["java", *JVM_OPTIONS, *shared_classes(JARS), "-cp", f"{JARS}/*", tool, *arguments]


def run_tool(tool: str, *arguments: str) -> str:
    """Run a tool in the shared JVM and return what it prints; raise AssertionError unless its status is 0."""
    done = shared_tools().run(tool, *arguments)
    assert done.status == 0, f"{tool} ended with {done.status}:\n{done.printed}\n{done.errors}"
    return done.printed


class JavaDriver(ClientDriver):
    def __init__(self, bootstrap: str) -> None:
        java_command(TOPICS)
        self._bootstrap = bootstrap

    def create_topic(self, topic: str, partitions: int) -> None:
        self.run(TOPICS, "--create", "--topic", topic, "--partitions", str(partitions), "--replication-factor", "1")

    def consume_from_beginning(self, topic: str, count: int) -> list[Received]:
        return self._consume(topic, count, "--from-beginning")

    def consume_from_offset(self, topic: str, partition: int, offset: int, count: int) -> list[Received]:
        return self._consume(topic, count, "--partition", str(partition), "--offset", str(offset))

    def consume_from_timestamp(self, topic: str, partition: int, timestamp_ms: int, count: int) -> list[Received]:
        printed = self.run(GET_OFFSETS, "--topic-partitions", f"{topic}:{partition}", "--time", str(timestamp_ms))
        return self.consume_from_offset(topic, partition, int(printed.strip().rpartition(":")[2]), count)

    @contextmanager
    def group_consumer(self, topic: str, group: str) -> Iterator[ConsumerSession]:
        settings = {
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": "100",
            "session.timeout.ms": "6000",
            "heartbeat.interval.ms": "500",
        }
        options = [option for name, value in settings.items() for option in ("--command-property", f"{name}={value}")]
        command = java_command(
            CONSOLE_CONSUMER,
            *("--bootstrap-server", self._bootstrap, "--topic", topic, "--group", group, *_PRINTING, *options),
        )
        with closing(ObservedMember(command, _received, self._bootstrap, group, topic)) as member:
            yield member

    def run(self, tool: str, *arguments: str) -> str:
        return run_tool(tool, "--bootstrap-server", self._bootstrap, *arguments)

    @contextmanager
    def producer(self, topic: str, *, codec: str = "none") -> Iterator[ProducerSession]:
        command = java_command(
            CONSOLE_PRODUCER,
            *("--bootstrap-server", self._bootstrap, "--topic", topic, "--compression-codec", codec),
            *("--reader-property", "parse.headers=true", "--reader-property", "parse.key=true"),
            *("--reader-property", f"null.marker={NULL}", "--message-send-max-retries", "1000000"),
            *("--command-property", "client.id=tests-java", "--command-property", "linger.ms=5"),
        )
        process = LineProcess(command)
        try:
            yield _Producer(process)
        finally:
            process.close()

    def _consume(self, topic: str, count: int, *options: str) -> list[Received]:
        end = ("--max-messages", str(count), "--timeout-ms", str(int(1000 * DEADLINE_S)))
        printed = self.run(CONSOLE_CONSUMER, "--topic", topic, *_PRINTING, *end, *options)
        return [_received(line) for line in printed.removesuffix("\n").split("\n")]


class _Producer:
    def __init__(self, process: LineProcess) -> None:
        self._process = process

    def send(self, messages: Sequence[Message]) -> None:
        for message in messages:
            headers = ",".join(f"{name}:{value.decode()}" for name, value in message.headers)
            self._process.write_line("\t".join((headers or NULL, message.key or NULL, message.value)))

    def finish(self) -> None:
        self._process.wait()


def _received(line: str) -> Received:
    """Parse a line of the console consumer: CreateTime:N, Partition:N, Offset:N, headers, key, value, tab-separated."""
    timestamp, partition, offset, headers, key, value = line.split("\t")
    pairs = () if headers == "NO_HEADERS" else tuple(pair.split(":", 1) for pair in headers.split(","))
    return Received(
        partition=int(partition.partition(":")[2]),
        offset=int(offset.partition(":")[2]),
        timestamp_ms=int(timestamp.partition(":")[2]),
        value=value.encode(),
        key=None if key == "null" else key.encode(),
        headers=tuple((name, content.encode()) for name, content in pairs),
    )
