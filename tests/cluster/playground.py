"""`python -m tests.cluster.playground` starts ZooKeeper, two Kafka brokers and a Headrace broker (`make cluster`).

It prints addresses, logs and commands to try, and executes commands such as `kill 4`. Ctrl-C stops everything.
"""

import argparse
import contextlib
import shlex
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.adoption.kafka import WithZooKeeper
from tests.clients.drivers.java_driver import JARS
from tests.cluster.conftest import HEADRACE
from tests.cluster.mixed import MixedCluster, mixed_cluster
from tests.support.broker_process import BrokerProcess

_SETTINGS: Final = {
    "default.replication.factor": 3,
    "num.partitions": 6,
    "offsets.topic.replication.factor": 3,
    "offsets.topic.num.partitions": 6,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.num.partitions": 6,
    "transaction.state.log.min.isr": 2,
}
_TOOLS: Final = {
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
}
_COMMANDS: Final = "kill, pause, continue or start, and the number of a broker: for example `kill 4`"


class Playground:
    """A running cluster that executes commands of its user."""

    def __init__(self, cluster: MixedCluster) -> None:
        self._cluster = cluster

    def prepare(self) -> None:
        """Write scripts for Kafka's tools, and plans for moving the partitions of the topic `orders`."""
        directory = self._cluster.base / "bin"
        directory.mkdir(exist_ok=True)
        for name, tool in _TOOLS.items():
            command = ["java", "-XX:TieredStopAtLevel=1", "-Xlog:disable", "-cp", f"{JARS.resolve()}/*", tool]
            options = ["--bootstrap-server", self._cluster.bootstrap]
            script = directory / name
            script.write_text(f'#!/bin/sh\nexec {shlex.join([*command, *options])} "$@"\n')
            script.chmod(0o755)
        everywhere = self._cluster.brokers
        without = [broker for broker in everywhere if broker != HEADRACE]
        self._write_plan("to-headrace.json", [HEADRACE, *without])
        self._write_plan("from-headrace.json", without)

    def _write_plan(self, name: str, replicas: Sequence[int]) -> None:
        moves = ", ".join(
            f'{{"topic": "orders", "partition": {partition}, "replicas": {list(replicas)}}}' for partition in range(6)
        )
        (self._cluster.base / name).write_text(f'{{"version": 1, "partitions": [{moves}]}}\n')

    def description(self) -> list[str]:
        """Return the lines with the addresses, data directories and logs of all processes."""
        cluster = self._cluster
        rows = [("broker", "address", "data", "log")]
        rows += [("4 Headrace", cluster.headrace.bootstrap, str(cluster.headrace.data), str(cluster.headrace.log_path))]
        for number, kafka in cluster.kafkas.items():
            rows += [(f"{number} Kafka 3.9", kafka.bootstrap, str(kafka.data), str(kafka.directory / "kafka.log"))]
        zookeeper = cluster.base / "zookeeper"
        rows += [("ZooKeeper", cluster.zookeeper, str(zookeeper / "data"), str(zookeeper / "zookeeper.log"))]
        shortened = [(*row[:2], *(cell.replace(f"{cluster.base}/", "") for cell in row[2:])) for row in rows]
        widths = [max(map(len, column)) for column in zip(*shortened, strict=True)]
        table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in shortened]
        return [*(line.rstrip() for line in table), "", f"All paths are below {cluster.base}"]

    def suggestions(self) -> list[str]:
        """Return the lines with commands to try."""
        base = self._cluster.base
        steps = {
            "create a topic with replicas on all brokers": ["headrace topics create orders --partitions 6"],
            "produce and consume through either kind of broker": [
                "seq 1000 | headrace produce orders",
                "headrace consume orders --group readers",
            ],
            "leaders and in-sync replicas": ["bin/kafka-topics --describe --topic orders"],
            "move all leaders to Headrace, then all replicas away from it": [
                "bin/kafka-reassign-partitions --reassignment-json-file to-headrace.json --execute",
                "bin/kafka-leader-election --election-type preferred --all-topic-partitions",
                "bin/kafka-reassign-partitions --reassignment-json-file from-headrace.json --execute",
            ],
            "a consumer group, coordinated by any broker": ["bin/kafka-consumer-groups --describe --group readers"],
        }
        lines = ["Try in another terminal:", "", f"  cd {base}"]
        lines += [f"  export HEADRACE_BOOTSTRAP={self._cluster.bootstrap} PATH={Path(sys.executable).parent}:$PATH", ""]
        for title, commands in steps.items():
            lines += [f"  # {title}", *(f"  {command}" for command in commands)]
        return [*lines, "", f"Here: {_COMMANDS}. Ctrl-C stops everything."]

    def obey(self, line: str) -> str:
        """Execute a command and return the message to print."""
        verb, _, number = line.strip().partition(" ")
        if not number.isdecimal() or int(number) not in self._cluster.brokers:
            return f"Not understood. Commands: {_COMMANDS}."
        actions = self._actions(int(number))
        if verb not in actions:
            return f"Not understood. Commands: {_COMMANDS}."
        try:
            actions[verb]()
        except (AssertionError, RuntimeError, OSError) as error:
            return f"Broker {number}: {error}"
        return f"Broker {number}: {verb} done"

    def _actions(self, number: int) -> dict[str, Callable[[], object]]:
        broker: BrokerProcess | WithZooKeeper
        if number == HEADRACE:
            broker, start = self._cluster.headrace, self._cluster.headrace.start
        else:
            broker, start = self._cluster.kafkas[number], self._cluster.kafkas[number].restart_after_a_kill
        return {"kill": broker.sigkill, "pause": broker.pause, "continue": broker.resume, "start": start}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.playground", description=__doc__)
    parser.add_argument("--directory", type=Path, help="keep data and logs in this directory")
    options = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt), tempfile.TemporaryDirectory(prefix="headrace-cluster-") as temporary:
        base = (options.directory or Path(temporary)).resolve()
        base.mkdir(parents=True, exist_ok=True)
        try:
            with mixed_cluster(base, _SETTINGS, note=lambda step: say([f"Starting {step} ..."])) as cluster:
                play(Playground(cluster), sys.stdin)
        except pytest.skip.Exception as missing:
            print(f"{missing}", file=sys.stderr)
            return 1
        finally:
            say(["", "Stopped." if options.directory is None else f"Stopped. The data is in {base}"])
    return 0


def play(playground: Playground, commands: Iterable[str]) -> None:
    """Print everything, and execute commands until Ctrl-C."""
    playground.prepare()
    say(["", *playground.description(), "", *playground.suggestions(), ""])
    for line in commands:
        if line.strip():
            say([playground.obey(line)])
    threading.Event().wait()  # the input has ended


def say(lines: Iterable[str]) -> None:
    print("\n".join(lines), flush=True)


if __name__ == "__main__":
    sys.exit(main())
