"""Three Headrace brokers and three of Kafka 3.9, on which the same commands of Kafka's tools print the same."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, Producer

from tests.adoption.kafka import ZooKeeper
from tests.cluster.trio import IDS, Trio, headrace, kafka, second_disk
from tests.support.kafka_tools import REASSIGN, TOPICS, KafkaTools, Output

_CLEANED: Final = (
    (re.compile(r"TopicId: \S{22}"), "TopicId: ID"),
    # Kafka with ZooKeeper does not know eligible leader replicas.
    (re.compile(r"\tElr: .*"), ""),
    # Kafka names defaults only of settings that are also static.
    (re.compile(r"(, )?DEFAULT_CONFIG:[^,}]*"), ""),
    (re.compile(r"\b(\w+)-[0-9a-f]{8}-[0-9a-f-]{27}"), r"\1-MEMBER"),
    (re.compile(r"(?m)^\s+\.\.\. \d+ more\n"), ""),
)
_UNORDERED: Final = re.compile(r"(?<=Isr: )[\d,]+|(?<=for partitions ).*")


class Twins:
    """Both clusters, with two log directories per broker, and a JVM with the tools."""

    def __init__(self, base: Path, tools: KafkaTools) -> None:
        self._files = base / "files"
        self._files.mkdir()
        self._names = count()
        self._stack = ExitStack()
        self._tools = tools
        self.trios: list[Trio] = []
        try:
            for kind in (headrace, kafka):
                directory = base / kind.__name__
                zookeeper = self._stack.enter_context(ZooKeeper(directory / "zookeeper")).address
                brokers = {broker_id: kind(directory, zookeeper, broker_id, two_disks=True) for broker_id in IDS}
                trio = Trio(zookeeper, brokers)
                self._stack.callback(trio.close)
                trio.start()
                self.trios.append(trio)
        except BaseException:
            self._stack.close()
            raise
        self.headrace, self.kafka = self.trios

    def close(self) -> None:
        self._stack.close()

    def settle(self, *stopped: int) -> None:
        for trio in self.trios:
            trio.settle(*stopped)

    # Tools

    def on(self, trio: Trio, tool: str, *arguments: str | Callable[[Trio], str]) -> Output:
        """Run a tool on one cluster. Return what it prints, without what differs between any two clusters."""
        texts = [argument if isinstance(argument, str) else argument(trio) for argument in arguments]
        output = self._tools.run(tool, "--bootstrap-server", trio.bootstrap, *texts)
        return Output(output.status, _cleaned(trio, output.printed), _cleaned(trio, output.errors))

    def same(self, tool: str, *arguments: str | Callable[[Trio], str], status: int = 0) -> str:
        """Run a tool on both clusters, check that it prints the same, and return what Headrace prints."""
        ours, theirs = (self.on(trio, tool, *arguments) for trio in self.trios)
        assert ours == theirs, f"{tool} {arguments}:\n\nHeadrace: {ours}\n\nKafka: {theirs}"
        assert ours.status == status, ours
        return ours.printed

    def refused(self, tool: str, *arguments: str | Callable[[Trio], str]) -> None:
        """Check that both clusters refuse a command, with the same exceptions; messages may differ."""
        ours, theirs = (self.on(trio, tool, *arguments) for trio in self.trios)
        assert ours.status, ours
        assert (ours.status, _exceptions(ours)) == (theirs.status, _exceptions(theirs)), f"{tool} {arguments}: {ours}"

    # Operations that need no comparison

    def create(self, topic: str, *replicas: Sequence[int], **configs: object) -> None:
        """Create a topic with one partition per list of replicas."""
        assignment = ",".join(":".join(map(str, brokers)) for brokers in replicas)
        settings = [option for name, value in configs.items() for option in ("--config", f"{name}={value}")]
        self.same(TOPICS, "--create", "--topic", topic, "--replica-assignment", assignment, *settings)
        self.settle()

    def produce(self, topic: str, records: int, *, size: int = 10, partitions: int = 1, first_ms: int = 0) -> None:
        """Write records to partitions in turn. With `first_ms`, each is a second younger than the previous one."""
        for trio in self.trios:
            producer = Producer({"bootstrap.servers": trio.bootstrap, "acks": "all"})
            for number in range(records):
                timestamp = first_ms + 1000 * number if first_ms else 0
                producer.produce(topic, b"v" * size, partition=number % partitions, timestamp=timestamp)
                producer.poll(0)
            assert producer.flush(60) == 0

    def consumers(self, topic: str, group: str, records: int) -> list[Consumer]:
        """Return a member of the group in each cluster, after it has read and committed these records."""
        members = []
        for trio in self.trios:
            consumer = Consumer(
                {
                    "bootstrap.servers": trio.bootstrap,
                    "group.id": group,
                    "client.id": "tester",
                    "auto.offset.reset": "earliest",
                    "enable.auto.commit": False,
                }
            )
            consumer.subscribe([topic])
            found = 0
            while found < records:
                found += sum(message.error() is None for message in consumer.consume(records - found, 1))
            consumer.commit(asynchronous=False)
            members.append(consumer)
        return members

    def json_file(self, content: Mapping[str, object]) -> str:
        """Return the path of a new file with this content."""
        return str(self.text_file(json.dumps(content)))

    def text_file(self, text: str) -> Path:
        path = self._files / str(next(self._names))
        path.write_text(text)
        return path

    def plan(self, moves: Mapping[tuple[str, int], Sequence[int]]) -> tuple[str, str]:
        """Return the options of the tool that name a plan with these replicas."""
        partitions = [
            {"topic": topic, "partition": index, "replicas": list(replicas)}
            for (topic, index), replicas in moves.items()
        ]
        return "--reassignment-json-file", self.json_file({"version": 1, "partitions": partitions})

    def same_move(self, *arguments: str | Callable[[Trio], str], status: int = 0) -> str:
        return self.same(REASSIGN, *arguments, status=status)


def directories(trio: Trio, broker_id: int) -> list[Path]:
    """Return the log directories of a broker."""
    data: Path = trio.brokers[broker_id].data
    return [data, second_disk(data)]


def sizeless(described: str) -> Any:
    """Return what kafka-log-dirs prints, by broker, without sizes and directories, which differ in each cluster."""
    found = json.loads(described.splitlines()[-1])
    return {
        broker["broker"]: {
            (partition["partition"], partition["offsetLag"] == 0, partition["isFuture"], directory["error"])
            for directory in broker["logDirs"]
            for partition in directory["partitions"]
        }
        for broker in found["brokers"]
    }


def _cleaned(trio: Trio, text: str) -> str:
    for broker_id, broker in trio.brokers.items():
        text = text.replace(broker.bootstrap, f"broker{broker_id}")
        for directory in reversed(directories(trio, broker_id)):
            text = text.replace(str(directory), f"directory{broker_id}")
    for pattern, replacement in _CLEANED:
        text = pattern.sub(replacement, text)
    return _UNORDERED.sub(lambda found: ",".join(sorted(re.split(r",\s*", found[0]))), text)


def _exceptions(output: Output) -> Iterable[str]:
    return sorted(set(re.findall(r"errors\.(\w+Exception)", output.printed + output.errors)))
