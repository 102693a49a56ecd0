"""Move a topic to Headrace and back with Kafka's own kafka-reassign-partitions, throttled, while it is written to."""

import json
import random
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError, Message, Producer

from tests.adoption.kafka import zookeeper_jars
from tests.cluster.proofs.rig import HEADRACE, Rig, Say, run_java
from tests.support.kafka_process import kafka_jars
from tests.support.kafka_tools import ELECT, REASSIGN

TOPIC: Final = "moved"
PARTITIONS: Final = 24
_VALUE_SIZE: Final = 8000
_SETTINGS: Final = {
    "offsets.topic.replication.factor": "2",
    "transaction.state.log.replication.factor": "2",
    "transaction.state.log.min.isr": "1",
    "auto.leader.rebalance.enable": "false",
}


class Plan(NamedTuple):
    size: int
    """Bytes of the topic."""
    rate: int
    """The throttle, in bytes per second."""
    seed: int
    is_killed: bool = False
    """Kill Headrace when it has copied half of the bytes."""


def run(plan: Plan, base: Path, say: Say) -> dict[str, Any]:
    """Return the figures. Raises AssertionError if a tool fails or a log differs."""
    tools = {"4.3.1": kafka_jars(), "3.9.1": zookeeper_jars()}
    for version, jars in tools.items():
        assert (jars / f"kafka-tools-{version}.jar").exists(), f"{jars} has no Kafka tools {version}: run `make setup`"
    chance = random.Random(plan.seed)
    with Rig(base, kafkas=(1, 2, 3), headraces=(HEADRACE,), settings=_SETTINGS) as rig:
        rig.create(TOPIC, list(_on_kafka().values()), min_insync_replicas=1, segment_bytes=16 << 20)
        written = _fill(rig, plan, chance)
        say(f"{written} bytes written to {PARTITIONS} partitions on three Kafka brokers")
        figures: dict[str, Any] = {"seed": plan.seed, "partitions": PARTITIONS, "bytes of the topic": written}
        with _writing(rig, chance) as more:
            for version, jars in tools.items():
                mover = _Mover(rig, jars, base, plan.rate)
                seconds = mover.move(_with_headrace(), kill_at=written // 2 if plan.is_killed else None)
                bytes_moved = _size_on(rig, HEADRACE)
                rate = bytes_moved / seconds
                assert rate < 1.5 * plan.rate, f"{rate:.0f} bytes per second, but the throttle is {plan.rate}"
                assert bytes_moved >= written // 2, f"only {bytes_moved} bytes moved"
                figures |= {
                    f"bytes moved to Headrace by {version}": bytes_moved,
                    f"kills of Headrace meanwhile ({version})": int(plan.is_killed),
                    f"seconds ({version})": round(seconds),
                    f"bytes per second ({version})": round(rate),
                }
                say(f"{version}: {bytes_moved} bytes moved in {seconds:.0f} s, verified")
                run_java(
                    jars,
                    ELECT,
                    *("--bootstrap-server", rig.bootstrap, "--election-type", "preferred", "--all-topic-partitions"),
                )
                led = sum(state.leader == HEADRACE for state in rig.states(TOPIC).values())
                assert led == PARTITIONS // 2, f"Headrace leads {led} partitions after the preferred election"
                _wait_for(more)
                if version != list(tools)[-1]:
                    seconds = mover.move(_on_kafka())
                    _wait_for_deletion(rig)
                    say(f"{version}: moved back to Kafka in {seconds:.0f} s, verified; Headrace has deleted its files")
        rig.wait_for_sync(TOPIC)
        compared = rig.compare(TOPIC, rig.high_watermarks(TOPIC))
        say(f"{compared.size} bytes are equal on all replicas; reading Headrace's files with Kafka's dump tools")
        rig.brokers[HEADRACE].sigterm()
        for version, jars in tools.items():
            figures[f"batches read by the dump tool ({version})"] = dump(jars, rig.brokers[HEADRACE].data)
    return figures | {
        "records written meanwhile": more.acknowledged,
        "batches equal on all replicas": compared.batches,
        "bytes equal on all replicas": compared.size,
    }


def _on_kafka() -> dict[int, list[int]]:
    return {partition: [1 + partition % 3, 1 + (partition + 1) % 3] for partition in range(PARTITIONS)}


def _with_headrace() -> dict[int, list[int]]:
    """Return replicas with every partition on Headrace, which is the preferred leader of half of them."""
    return {
        partition: [HEADRACE, kafka] if partition % 2 else [kafka, HEADRACE]
        for partition, (kafka, _) in _on_kafka().items()
    }


class _Mover:
    """kafka-reassign-partitions of one version."""

    def __init__(self, rig: Rig, jars: Path, base: Path, rate: int) -> None:
        self._rig = rig
        self._jars = jars
        self._plan = base / "plan.json"
        self._rate = rate

    def move(self, replicas: Mapping[int, list[int]], *, kill_at: int | None = None) -> float:
        """Reassign the partitions to these replicas, and return the duration in seconds.

        Kill Headrace, and start it again, when it has `kill_at` bytes.
        """
        moves = [
            {"topic": TOPIC, "partition": partition, "replicas": brokers} for partition, brokers in replicas.items()
        ]
        self._plan.write_text(json.dumps({"version": 1, "partitions": moves}))
        started = time.monotonic()
        printed = self._run("--execute", "--throttle", str(self._rate))
        assert "Successfully started partition reassignments" in printed, printed
        while self._rig.is_reassigning():
            assert time.monotonic() - started < 1200, f"the reassignment does not end: {self._rig.replicas(TOPIC)}"
            if kill_at is not None and _size_on(self._rig, HEADRACE) > kill_at:
                self._rig.brokers[HEADRACE].sigkill()
                self._rig.restart(HEADRACE)
                kill_at = None
            time.sleep(0.1)
        assert kill_at is None, "the move was over before the kill"
        seconds = time.monotonic() - started
        printed = self._run("--verify")
        complete = len(re.findall(rf"Reassignment of partition {TOPIC}-\d+ is completed\.", printed))
        assert complete == PARTITIONS, printed
        assert "Clearing broker-level throttles" in printed, printed
        assert "Clearing topic-level throttles" in printed, printed
        assert self._rig.replicas(TOPIC) == dict(replicas)
        return seconds

    def _run(self, *arguments: str) -> str:
        given = ("--bootstrap-server", self._rig.bootstrap, "--reassignment-json-file", str(self._plan))
        return run_java(self._jars, REASSIGN, *given, *arguments)


class _Writer(threading.Thread):
    """Appends small records to all partitions until `end`."""

    def __init__(self, bootstrap: str, seed: int) -> None:
        super().__init__(name="writer")
        self._producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 20, "log_level": 0})
        self._chance = random.Random(seed)
        self._ending = threading.Event()
        self.acknowledged = 0
        self.errors: list[str] = []

    def run(self) -> None:
        while not self._ending.wait(0.05):
            for _ in range(5):
                self._producer.produce(
                    TOPIC,
                    self._chance.randbytes(200),
                    partition=self._chance.randrange(PARTITIONS),
                    on_delivery=self._delivered,
                )
            self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.errors.append(error.str())

    def end(self) -> None:
        self._ending.set()
        self.join()
        assert self._producer.flush(120) == 0
        assert not self.errors, self.errors[:10]


@contextmanager
def _writing(rig: Rig, chance: random.Random) -> Iterator[_Writer]:
    writer = _Writer(rig.bootstrap, chance.randrange(1 << 30))
    writer.start()
    try:
        yield writer
    finally:
        writer.end()


def _wait_for(writer: _Writer) -> None:
    before = writer.acknowledged
    deadline = time.monotonic() + 120
    while writer.acknowledged < before + 100:
        assert time.monotonic() < deadline, f"nothing is acknowledged: {writer.errors[:5]}"
        time.sleep(0.05)


def _fill(rig: Rig, plan: Plan, chance: random.Random) -> int:
    """Write `size` bytes, spread evenly over the partitions, and return the number written."""
    producer = Producer(
        {"bootstrap.servers": rig.bootstrap, "acks": "all", "linger.ms": 50, "batch.size": 256_000, "log_level": 0}
    )
    failed: list[str] = []
    written = 0
    noise = chance.randbytes(1 << 20)
    number = 0
    while written < plan.size:
        begin = chance.randrange(len(noise) - _VALUE_SIZE)
        value = noise[begin : begin + _VALUE_SIZE]
        try:
            producer.produce(
                TOPIC,
                value,
                partition=number % PARTITIONS,
                on_delivery=lambda error, _: failed.append(error.str()) if error else None,
            )
        except BufferError:
            producer.poll(0.1)
            continue
        number += 1
        written += _VALUE_SIZE
        producer.poll(0)
        assert not failed, failed[:10]
    assert producer.flush(600) == 0
    assert not failed, failed[:10]
    return written


def _size_on(rig: Rig, broker: int) -> int:
    """Return the bytes of the topic's logs on a broker."""
    return sum(path.stat().st_size for path in _files(rig.brokers[broker].data, ".log"))


def _files(data: Path, suffix: str) -> list[Path]:
    """Return the files of the topic's partitions, without those that are being deleted."""
    return sorted(path for path in data.glob(f"{TOPIC}-*/*{suffix}") if not path.parent.name.endswith("-delete"))


def _wait_for_deletion(rig: Rig) -> None:
    deadline = time.monotonic() + 120
    while left := [
        path.name for path in rig.brokers[HEADRACE].data.glob(f"{TOPIC}-*") if not path.name.endswith("-delete")
    ]:
        assert time.monotonic() < deadline, f"Headrace still has {left}"
        time.sleep(0.1)


def dump(jars: Path, data: Path) -> int:
    """Read all files of the topic with Kafka's dump tool, and return the number of batches. Raises AssertionError."""
    is_scala = any(jars.glob("kafka_2.13-3.*.jar"))
    main = "kafka.tools.DumpLogSegments" if is_scala else "org.apache.kafka.tools.DumpLogSegments"
    batches = 0
    for suffix in (".log", ".index", ".timeindex"):
        files = ",".join(str(path) for path in _files(data, suffix))
        printed = run_java(jars, main, "--files", files, stderr=True)
        for complaint in ("isvalid: false", "Mismatches in", "Found timestamp", "Found out of order", "not found"):
            assert complaint not in printed, f"the dump tool says: {complaint}"
        batches += len(re.findall(r"^baseOffset: ", printed, re.MULTILINE))
    return batches
