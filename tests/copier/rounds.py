"""A round: an input topic, two copiers, and a victim that is killed and restarted while they work."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from confluent_kafka import Producer

from tests.clients.drivers.java_driver import java_command
from tests.support.killable_broker import KillableBroker
from tests.support.topics import create_topic, ends, read_records

COPIER: Final = "org.apache.kafka.tools.TransactionalMessageCopier"
PARTITIONS: Final = 2
BROKER_SETTINGS: Final[Mapping[str, object]] = {
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.num.partitions": 3,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
}
_RUNS: Final = 12
"""Starts allowed per copier, which fails if the broker is away too long."""

Mode = Literal["assigned", "group"]
Victim = Literal["client", "broker"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    mode: Mode
    victim: Victim
    seed: int
    records: int = 1200
    kills: int = 1
    timeout_s: float = 150.0


class Copier:
    """The successive processes of one transactional id."""

    def __init__(self, command: list[str], log: Path) -> None:
        self._command = command
        self._log = log
        self._runs = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._runs += 1
        assert self._runs <= _RUNS, f"the copier was started {_RUNS} times:\n{self.end_of_log()}"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def is_done(self) -> bool:
        """Return True if everything is copied; restart a failed process."""
        assert self._process is not None
        status = self._process.poll()
        if status not in (None, 0):
            self.start()
        return status == 0

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def end_of_log(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]


def run_round(broker: KillableBroker, plan: Plan, directory: Path) -> None:
    """Raise AssertionError unless every partition of the output holds the records of the input once, in order."""
    chance = random.Random(plan.seed)
    name = f"{plan.mode}-{plan.victim}-{plan.seed}-{os.urandom(3).hex()}"
    source, target = f"in-{name}", f"out-{name}"
    written = _write_input(broker.bootstrap, source, target, plan.records)
    copiers = [
        Copier(_command(broker.bootstrap, plan.mode, source, target, number), directory / f"{name}-{number}.log")
        for number in range(PARTITIONS)
    ]
    points = sorted(chance.uniform(0.05, 0.8) * plan.records for _ in range(plan.kills))
    deadline = time.monotonic() + plan.timeout_s
    with ExitStack() as stack:
        for copier in copiers:
            copier.start()
            stack.callback(copier.kill)
        while {copier.is_done() for copier in copiers} != {True}:
            logs = "\n".join(copier.end_of_log() for copier in copiers)
            assert time.monotonic() < deadline, f"{plan}: not copied within {plan.timeout_s:g} s:\n{logs}"
            time.sleep(0.02)
            if points and _size(broker.bootstrap, target) >= points[0]:
                points.pop(0)
                _kill(broker, copiers, plan.victim, chance)
    found: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}
    for record in read_records(broker.bootstrap, target, isolation="read_committed"):
        found[record.partition() or 0].append(bytes(record.value() or b""))
    assert found == written, f"{plan}: the output differs from the input"


def _kill(broker: KillableBroker, copiers: list[Copier], victim: Victim, chance: random.Random) -> None:
    if victim == "broker":
        broker.sigkill()
        broker.start()
        return
    copier = chance.choice(copiers)
    copier.kill()
    copier.start()


def _command(bootstrap: str, mode: Mode, source: str, target: str, number: int) -> list[str]:
    command = java_command(
        COPIER,
        *("--broker-list", bootstrap, "--input-topic", source, "--output-topic", target),
        *("--input-partition", str(number), "--transactional-id", f"{target}-{number}"),
        *("--consumer-group", f"{target}-group", "--transaction-size", "50", "--enable-random-aborts"),
        # The copier fetches its offsets before it aborts its predecessor's transaction, and so waits for the timeout.
        *("--transaction-timeout", "5000"),
    )
    return [*command, "--group-mode", "--use-group-metadata"] if mode == "group" else command


def _write_input(bootstrap: str, source: str, target: str, count: int) -> dict[int, list[bytes]]:
    for topic in (source, target):
        create_topic(bootstrap, topic, PARTITIONS)
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    written: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}
    for number in range(count):
        value = b"%d" % number
        producer.produce(source, value, partition=number % PARTITIONS)
        written[number % PARTITIONS].append(value)
    assert producer.flush(60) == 0
    return written


def _size(bootstrap: str, topic: str) -> int:
    """Return the number of offsets used in all partitions, including markers and aborted records."""
    return sum(ends(bootstrap, topic, PARTITIONS))
