"""A run from one seed: a broker, a proxy, clients and faults; then the check of the histories."""

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.checker.analysis import Anomaly, analyse
from tests.checker.history import End, History, Partition, load
from tests.checker.worker import COPY, GROUP, PARTITIONS, RESTART, SOURCE, TRANSACTION_TIMEOUT_MS
from tests.support.killable_broker import KillableBroker, killable_broker
from tests.support.ports import free_port
from tests.support.proxy import NO_FAULTS, Faults, Proxy
from tests.support.topics import create_topic
from tests.support.waiting import wait_for

_ROOT: Final = Path(__file__).resolve().parents[2]
CREW: Final = {
    "writer-0": "writer",
    "writer-1": "writer",
    "copier-0": "copier",
    "copier-1": "copier",
    "reader": "reader",
}
BROKER_SETTINGS: Final[Mapping[str, object]] = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 1000,
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.num.partitions": 2,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
}
_DRAIN_S: Final = 90.0
_STUCK_S: Final = 25.0

MakeBroker = Callable[[Path, Mapping[str, object]], KillableBroker]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    seed: int
    anomalies: list[Anomaly]
    committed: int
    copied: int
    faults: list[str]

    def __str__(self) -> str:
        summary = f"seed {self.seed}: {self.committed} transactions, {self.copied} copies, {len(self.faults)} faults"
        if not self.anomalies:
            return f"{summary}: good"
        shown = "\n  ".join(map(str, self.anomalies[:20]))
        return f"{summary}: {len(self.anomalies)} anomalies\n  {shown}\n  faults: {', '.join(self.faults)}"


class _Worker:
    """The successive processes of one client name."""

    def __init__(self, name: str, bootstrap: str, directory: Path, seed: int) -> None:
        self.name = name
        self.kind = CREW[name]
        self._arguments = [bootstrap, str(directory), str(seed)]
        self._directory = directory
        self._log = directory / f"{name}.log"
        self._started_at = 0.0
        self._incarnation = 0
        self._process: subprocess.Popen[bytes] | None = None
        self.zombie: subprocess.Popen[bytes] | None = None
        """The paused process that has been replaced."""
        self._is_stopped = False

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.checker.worker", self.kind, self.name, str(self._incarnation)]
        self._incarnation += 1
        self._started_at = time.time()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, *self._arguments], stdin=subprocess.DEVNULL, stderr=log, cwd=_ROOT
            )

    def restart_if_needed(self) -> None:
        """Restart a process that has given up or is stuck.

        librdkafka may wait forever in `send_offsets_to_transaction` if its connections are lost while it looks up the
        group's coordinator.
        """
        if self._is_stopped:
            return
        assert self._process is not None
        if time.time() - self._last_sign_of_life() > _STUCK_S:
            self._process.kill()
            self._process.wait()
            self.start()
            return
        status = self._process.poll()
        if status is not None:
            assert status == RESTART, f"{self.name} ended with {status}:\n{self._log.read_text()[-2000:]}"
            self.start()

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self.start()

    def replace(self) -> None:
        """Pause the process and start its successor."""
        if self.zombie is None and self._process is not None:
            self._process.send_signal(signal.SIGSTOP)
            self.zombie = self._process
            self.start()

    def wake(self) -> None:
        """Resume a paused process, which then ends because it is fenced."""
        if self.zombie is not None:
            self.zombie.send_signal(signal.SIGCONT)

    def bury(self) -> None:
        if self.zombie is not None:
            self.zombie.kill()
            self.zombie.wait()
            self.zombie = None

    def stop(self) -> None:
        """Let the process finish its transaction and end; it may also give up."""
        self.bury()
        self._is_stopped = True
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STUCK_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _last_sign_of_life(self) -> float:
        """Time of its last write to its history, touch or start, in seconds since the epoch."""
        path = self._directory / f"{self.name}.{self._incarnation - 1}.jsonl"
        return max(self._started_at, path.stat().st_mtime if path.exists() else 0)

    def close(self) -> None:
        self.bury()
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class _Run:
    def __init__(self, seed: int, broker: KillableBroker, proxy: Proxy, directory: Path, only: Collection[str]) -> None:
        self._chance = random.Random(seed)
        self._broker = broker
        self._proxy = proxy
        self._crew = {name: _Worker(name, proxy.address, directory, seed) for name in CREW}
        self._only = only
        self.faults: list[str] = []

    def close(self) -> None:
        for worker in self._crew.values():
            worker.close()

    def play(self, seconds: float) -> None:
        for worker in self._crew.values():
            worker.start()
        faults = {
            self._kill_broker: 1,
            self._pause_broker: 1,
            self._kill_client: 3,
            self._replace_client: 2,
            self._cut: 2,
            self._disturb_network: 3,
        }
        if self._only:
            faults = {fault: 1 for fault in faults if fault.__name__.strip("_") in self._only}
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._idle(min(left, self._chance.uniform(0.3, 2.5)))
            (fault,) = self._chance.choices(list(faults), list(faults.values()))
            self.faults.append(fault.__name__.strip("_"))
            fault()
        self._proxy.faults = NO_FAULTS

    def drain(self) -> dict[Partition, End]:
        """Run without faults until every committed record is copied; return the final partitions."""
        bootstrap = self._proxy.address
        for worker in self._crew.values():
            worker.bury()  # a stuck process would still be a member of the group
        for worker in self._workers("writer"):
            worker.stop()
            _fence(bootstrap, worker.name)
        ends = _ends(bootstrap, SOURCE)
        deadline = time.monotonic() + _DRAIN_S
        while not _is_copied(bootstrap, ends) and time.monotonic() < deadline:
            self._idle(0.3)
        for worker in self._workers("copier"):
            worker.stop()
            _fence(bootstrap, worker.name)
        ends |= _ends(bootstrap, COPY)
        self._crew["reader"].stop()
        return ends

    def _workers(self, kind: str) -> list[_Worker]:
        return [worker for worker in self._crew.values() if worker.kind == kind]

    def _idle(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for worker in self._crew.values():
                worker.restart_if_needed()
            time.sleep(min(0.05, max(end - time.monotonic(), 0)))

    def _kill_broker(self) -> None:
        self._broker.sigkill()
        self._idle(self._chance.uniform(0, 1))
        self._broker.start()

    def _pause_broker(self) -> None:
        self._broker.pause()
        self._idle(self._chance.uniform(0.1, 3))
        self._broker.resume()

    def _kill_client(self) -> None:
        self._chance.choice(list(self._crew.values())).kill()

    def _replace_client(self) -> None:
        worker = self._chance.choice(self._workers("writer") + self._workers("copier"))
        worker.bury()
        worker.replace()
        self._idle(self._chance.uniform(0.5, 6))
        worker.wake()

    def _cut(self) -> None:
        self._proxy.cut(self._chance.choice([0.3, 1.0]))

    def _disturb_network(self) -> None:
        chance = self._chance
        self._proxy.faults = Faults(
            lose_request=chance.choice([0, 0.01]),
            lose_answer=chance.choice([0, 0.02]),
            tear=chance.choice([0, 0.01]),
            repeat=chance.choice([0, 0.1]),
            silence=chance.choice([0, 0.002]),
            delay=chance.choice([0, 0.3]),
            longest_delay_s=0.1,
        )
        self._idle(chance.uniform(0.5, 3))
        self._proxy.faults = NO_FAULTS


def play(
    seed: int,
    seconds: float,
    directory: Path,
    make_broker: MakeBroker = killable_broker,
    *,
    only: Collection[str] = (),
) -> Verdict:
    """Play a run in `directory` and check its histories; `only` restricts the faults."""
    histories = directory / "histories"
    histories.mkdir(parents=True)
    port = free_port()
    settings = {**BROKER_SETTINGS, "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}"}
    with ExitStack() as stack:
        broker = stack.enter_context(make_broker(directory / "broker", settings))
        proxy = stack.enter_context(Proxy(broker.bootstrap, port=port, seed=seed))
        _create_topics(proxy.address)
        run = stack.enter_context(closing(_Run(seed, broker, proxy, histories, only)))
        run.play(seconds)
        ends = run.drain()
    history = load(histories, ends, {SOURCE: COPY})
    return _judge(seed, history, run.faults)


def _judge(seed: int, history: History, faults: list[str]) -> Verdict:
    present = {value for end in history.final.values() for _, value in end.records}
    return Verdict(
        seed=seed,
        anomalies=analyse(history),
        committed=sum(
            any(value in present for _, value in transaction.records) for transaction in history.transactions
        ),
        copied=sum(len(end.records) for partition, end in history.final.items() if partition.topic == COPY),
        faults=faults,
    )


def _create_topics(bootstrap: str) -> None:
    for topic in (SOURCE, COPY):
        create_topic(bootstrap, topic, PARTITIONS)


def _fence(bootstrap: str, transactional_id: str) -> None:
    """End a transaction left open by an incarnation."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "log_level": 0})

    def started() -> bool:
        try:
            producer.init_transactions(5)
        except KafkaException as failure:
            if not failure.args[0].retriable():
                raise
            return False
        return True

    wait_for(started, f"{transactional_id} starts", timeout_s=_DRAIN_S)


def _is_copied(bootstrap: str, ends: Mapping[Partition, End]) -> bool:
    config = {"bootstrap.servers": bootstrap, "group.id": GROUP, "isolation.level": "read_committed"}
    with closing(Consumer({**config, "log_level": 0})) as consumer:
        try:
            committed = consumer.committed([TopicPartition(*partition) for partition in ends], timeout=5)
        except KafkaException:
            return False
    positions = {Partition(item.topic, item.partition): item.offset for item in committed if item.error is None}
    return all(not end.records or positions.get(partition, 0) > end.records[-1][0] for partition, end in ends.items())


def _ends(bootstrap: str, topic: str) -> dict[Partition, End]:
    """Return the partitions of a topic once no transaction holds back an end, or after a long wait."""
    deadline = time.monotonic() + 1.5 * TRANSACTION_TIMEOUT_MS / 1000
    return {Partition(topic, number): _end(bootstrap, topic, number, deadline) for number in range(PARTITIONS)}


def _end(bootstrap: str, topic: str, number: int, deadline: float) -> End:
    position = TopicPartition(topic, number)
    config = {"bootstrap.servers": bootstrap, "group.id": "not-used", "log_level": 0, "enable.auto.commit": False}
    eager = {"enable.partition.eof": True, "fetch.wait.max.ms": 10}
    with (
        closing(Consumer({**config, **eager, "isolation.level": "read_committed"})) as committed,
        closing(Consumer({**config, "isolation.level": "read_uncommitted"})) as uncommitted,
    ):

        def limits() -> tuple[int, int]:
            return committed.get_watermark_offsets(position, 20)[1], uncommitted.get_watermark_offsets(position, 20)[1]

        while len(set(stable_and_high := limits())) > 1 and time.monotonic() < deadline:
            time.sleep(0.1)
        records: list[tuple[int, str]] = []
        committed.assign([TopicPartition(topic, number, OFFSET_BEGINNING)])
        while True:
            message = committed.poll(30)
            assert message is not None, f"{topic}-{number} has not reached its end"
            error, offset, value = message.error(), message.offset(), message.value()
            if error is None and offset is not None and value is not None:
                records.append((offset, value.decode()))
            elif error is not None and error.code() == KafkaError._PARTITION_EOF:
                return End(records=records, stable=stable_and_high[0], high_watermark=stable_and_high[1])
