"""`python -m tests.cluster.playground` starts ZooKeeper and three Headrace brokers (`make cluster`).

It prints addresses, logs and commands to try, and executes commands such as `kill 1`. With `--kafka`, two Kafka brokers
join the cluster. Ctrl-C stops everything.
"""

import argparse
import contextlib
import shlex
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.adoption.kafka import WithZooKeeper, ZooKeeper
from tests.clients.drivers.java_driver import JARS
from tests.cluster.conftest import SESSION_TIMEOUT_MS, metadata
from tests.support.broker_process import BrokerProcess
from tests.support.ports import free_port
from tests.support.waiting import wait_for

_HEADRACES: Final = (1, 2, 3)
_KAFKAS: Final = (7, 8)
_SETTINGS: Final[Mapping[str, str]] = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "num.partitions": "6",
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "6",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.num.partitions": "6",
    "transaction.state.log.min.isr": "2",
    "group.initial.rebalance.delay.ms": "0",
    "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS),
    "zookeeper.connection.timeout.ms": "30000",  # on a busy machine, ZooKeeper's first answers take long
}
_TOOLS: Final = {
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
}
_COMMANDS: Final = "kill, stop, pause, continue or start, and the number of a broker: for example `kill 1`"
_WITHIN_S: Final = 120.0


class Playground:
    """A running cluster that executes commands of its user. All files are below `base`."""

    def __init__(
        self, base: Path, zookeeper: str, headraces: Mapping[int, BrokerProcess], kafkas: Mapping[int, WithZooKeeper]
    ) -> None:
        self._base = base
        self._zookeeper = zookeeper
        self._headraces = headraces
        self._kafkas = kafkas

    @property
    def brokers(self) -> dict[int, BrokerProcess | WithZooKeeper]:
        return {**self._headraces, **self._kafkas}

    @property
    def _bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    def prepare(self) -> None:
        """Write scripts for Kafka's tools."""
        directory = self._base / "bin"
        directory.mkdir(exist_ok=True)
        for name, tool in _TOOLS.items():
            command = ["java", "-XX:TieredStopAtLevel=1", "-Xlog:disable", "-cp", f"{JARS.resolve()}/*", tool]
            options = ["--bootstrap-server", self._bootstrap]
            script = directory / name
            script.write_text(f'#!/bin/sh\nexec {shlex.join([*command, *options])} "$@"\n')
            script.chmod(0o755)

    def description(self) -> list[str]:
        """Return the lines with the addresses, data directories and logs of all processes."""
        rows = [("broker", "address", "metrics", "data", "log")]
        for number, headrace in self._headraces.items():
            metrics = f"{headrace.host}:{headrace.settings['headrace.http.listener']}"
            rows += [(f"{number} Headrace", headrace.bootstrap, metrics, str(headrace.data), str(headrace.log_path))]
        for number, kafka in self._kafkas.items():
            rows += [(f"{number} Kafka 3.9", kafka.bootstrap, "-", str(kafka.data), str(kafka.directory / "kafka.log"))]
        zookeeper = self._base / "zookeeper"
        rows += [("ZooKeeper", self._zookeeper, "-", str(zookeeper / "data"), str(zookeeper / "zookeeper.log"))]
        shortened = [(*row[:3], *(cell.replace(f"{self._base}/", "") for cell in row[3:])) for row in rows]
        widths = [max(map(len, column)) for column in zip(*shortened, strict=True)]
        table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in shortened]
        return [*(line.rstrip() for line in table), "", f"All paths are below {self._base}"]

    def suggestions(self) -> list[str]:
        """Return the lines with commands to try."""
        first = self._headraces[_HEADRACES[0]]
        steps = {
            "a topic with three replicas, and records with acks=all": [
                "headrace topics create orders --partitions 6",
                "seq 1000 | headrace produce orders",
                "headrace consume orders --group readers",
            ],
            "brokers, controller, leaders, and replicas that are not in sync": [
                "headrace cluster --watch",
                "bin/kafka-topics --describe --topic orders",
                f"curl -s {first.host}:{first.settings['headrace.http.listener']}/metrics | grep kafka_controller",
            ],
            "after `kill 1` and `start 1` here: make the preferred replicas leaders again": [
                "headrace elect --execute"
            ],
            "take all replicas from broker 3, and give them back": [
                "headrace reassign plan --replication-factor 2 --retire 3 --output plan.json --reverse back.json",
                "headrace reassign execute plan.json --watch",
                "headrace reassign execute back.json --watch",
            ],
        }
        if self._kafkas:
            steps["move everything from Headrace's brokers to Kafka's, and back"] = [
                "headrace reassign plan --add 7,8 --retire 1,2 --output to-kafka.json --reverse to-headrace.json",
                "headrace reassign execute to-kafka.json --watch",
                "headrace reassign execute to-headrace.json --watch",
            ]
        lines = ["Try in another terminal:", "", f"  cd {self._base}"]
        lines += [f"  export HEADRACE_BOOTSTRAP={self._bootstrap} PATH={Path(sys.executable).parent}:$PATH", ""]
        for title, commands in steps.items():
            lines += [f"  # {title}", *(f"  {command}" for command in commands)]
        return [*lines, "", f"Here: {_COMMANDS}. Ctrl-C stops everything."]

    def obey(self, line: str) -> str:
        """Execute a command and return the message to print."""
        verb, _, number = line.strip().partition(" ")
        if not number.isdecimal() or int(number) not in self.brokers:
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
        broker = self.brokers[number]
        start = broker.start if isinstance(broker, BrokerProcess) else broker.restart_after_a_kill
        return {
            "kill": broker.sigkill,
            "stop": broker.sigterm,
            "pause": broker.pause,
            "continue": broker.resume,
            "start": start,
        }


@contextmanager
def cluster(base: Path, *, with_kafka: bool) -> Iterator[Playground]:
    """Start everything, and wait until all brokers know each other."""
    with ExitStack() as running:
        say(["Starting ZooKeeper ..."])
        zookeeper = running.enter_context(ZooKeeper(base / "zookeeper"))
        headraces = {number: _headrace(base, zookeeper.address, number) for number in _HEADRACES}
        kafkas = {number: _kafka(base, zookeeper.address, number) for number in _KAFKAS if with_kafka}
        playground = Playground(base, zookeeper.address, headraces, kafkas)
        for headrace in headraces.values():
            running.callback(headrace.close)
        for kafka in kafkas.values():
            running.callback(kafka.sigkill)
        first, *others = playground.brokers.values()
        say([f"Starting {len(headraces)} Headrace brokers{' and 2 Kafka brokers' if kafkas else ''} ..."])
        first.start()  # it creates the cluster
        with ThreadPoolExecutor() as threads:
            list(threads.map(lambda broker: broker.start(), others))
        for broker in playground.brokers.values():
            wait_for(
                lambda: {item["node_id"] for item in metadata(broker.bootstrap)["brokers"]} == set(playground.brokers),  # noqa: B023
                f"{broker.bootstrap} knows all brokers",
                timeout_s=_WITHIN_S,
            )
        yield playground


def _headrace(base: Path, zookeeper: str, number: int) -> BrokerProcess:
    own = {"broker.id": number, "zookeeper.connect": zookeeper, "headrace.http.listener": free_port()}
    return BrokerProcess(base / f"headrace-{number}", settings={**_SETTINGS, **own})


def _kafka(base: Path, zookeeper: str, number: int) -> WithZooKeeper:
    kafka = WithZooKeeper(base / f"kafka-{number}", zookeeper, _SETTINGS)
    kafka.settings["broker.id"] = str(number)
    return kafka


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.playground", description=__doc__)
    parser.add_argument("--directory", type=Path, help="keep data and logs in this directory")
    parser.add_argument("--kafka", action="store_true", help="add two Kafka 3.9 brokers")
    options = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt), tempfile.TemporaryDirectory(prefix="headrace-cluster-") as temporary:
        base = (options.directory or Path(temporary)).resolve()
        base.mkdir(parents=True, exist_ok=True)
        try:
            with cluster(base, with_kafka=options.kafka) as playground:
                play(playground, sys.stdin)
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
