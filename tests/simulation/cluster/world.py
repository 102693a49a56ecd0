"""A simulated cluster: real replication on a fake network, with virtual time, under a scripted controller.

`play` returns the first violation of these guarantees:

- The invariants of `checks` hold after every step.
- No acknowledged record is lost; records of idempotent producers are in order and without duplicates.
- After the faults, the ISR is full, all replicas and high watermarks are equal, and images equal the store.
"""

import logging
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final
from uuid import UUID

from headrace.storage.files.checkpoint import HIGH_WATERMARK_FILE
from headrace.storage.log.config import LogConfig
from headrace.types import TopicPartition
from headrace.wire.apis import ApiKey
from headrace.wire.records import iter_records
from tests.simulation.cluster.broker import Broker, host_of
from tests.simulation.cluster.checks import Checks, ViolationError
from tests.simulation.cluster.clients import Admin, ClientError, Consumer, Producer
from tests.simulation.cluster.controller import Chances, Controller
from tests.simulation.cluster.disks import Disks
from tests.simulation.cluster.history import FAULTS_S, PARTITIONS, REPLICAS, Act, History
from tests.simulation.cluster.loop import ProcessLoop, virtual_clocks
from tests.simulation.cluster.net import Network
from tests.simulation.cluster.store import NO_LEADER, State, Store

TOPIC: Final = "t"
_SETTLE_S: Final = 20.0
_MEMORY: Final = Path("/dev/shm")


class World:
    """The cluster. Events are appended to `trace` as text."""

    def __init__(self, history: History, directory: Path, trace: list[str] | None = None) -> None:
        self.history = history
        self._disks = Disks(
            directory,
            random.Random(f"disks {history.seed}"),
            recorded=any(act.kind == "power" for act in history.acts),
        )
        self._trace = trace
        self.random = random.Random(f"world {history.seed}")
        self.loop = ProcessLoop(random.Random(f"disk {history.seed}"))
        self.network = Network(self.loop, random.Random(f"network {history.seed}"))
        self.store = Store()
        self.checks = Checks(self.store, history.min_isr)
        self.brokers: dict[int, Broker] = {}
        self.controllers: list[Controller] = []
        self._config = LogConfig(
            segment_bytes=history.segment_bytes,
            index_interval_bytes=100,
            segment_index_bytes=4096,
            retention_bytes=history.retention_bytes,
            retention_ms=-1,
            flush_messages=history.flush_messages,
            file_delete_delay_ms=0,
            min_insync_replicas=history.min_isr,
        )
        self.names = [TopicPartition(TOPIC, index) for index in range(PARTITIONS)]
        self.producers: list[Producer] = []
        self._admin = Admin(self, self.loop)
        self._violation: AssertionError | None = None

    def note(self, text: str) -> None:
        if self._trace is not None:
            self._trace.append(f"{self.loop.now - 1000:8.3f} s  {text}")

    # Running

    def run(self) -> None:
        """Raises AssertionError."""
        self.store.topic_ids[TOPIC] = UUID(int=77)
        for index, name in enumerate(self.names):
            brokers = self.history.brokers
            replicas = tuple(brokers[(index + shift) % len(brokers)] for shift in range(REPLICAS))
            self.store.partitions[name] = State(replicas[0], 0, replicas, replicas)
        self.loop.after_step = self._after_step
        with virtual_clocks(self.loop):
            try:
                self._begin()
                self._run_until(1000 + FAULTS_S)
                self._end_faults()
                self._settle()
            finally:
                for broker in self.brokers.values():
                    broker.unlock()
                self.loop.end()
                self._disks.close()

    def _begin(self) -> None:
        for broker_id in self.history.brokers:
            broker = self._start(broker_id)
            self.store.brokers[broker_id] = broker.broker_epoch
        self.store.handled.update(self.store.brokers)
        self._new_controller()
        self.network.break_rate = self.history.break_rate
        for number in range(3):
            careless = number == 2
            producer = Producer(
                f"p{number}",
                self,
                self.loop,
                random.Random(f"producer {self.history.seed} {number}"),
                acks=1 if careless else -1,
                producer_id=-1 if careless else number,
                pause_s=self.history.pause_s,
            )
            self.producers.append(producer)
            self.loop.spawn(producer.process, lambda producer=producer: self._guarded(producer.run(self.names)))  # type: ignore[misc]
        for name in self.names:
            consumer = Consumer(name, self, self.loop, random.Random(f"consumer {self.history.seed} {name}"))
            self.loop.spawn(consumer.process, lambda consumer=consumer: self._guarded(consumer.run(self._start_of)))  # type: ignore[misc]
        for act in self.history.acts:
            self.loop.call_at(1000 + act.at, self._act, act)

    async def _guarded(self, work: object) -> None:
        try:
            await work  # type: ignore[misc]
        except AssertionError as error:
            self._fail(error)
        except Exception as error:
            self._fail(AssertionError(repr(error)))
            raise

    def _fail(self, error: AssertionError) -> None:
        if self._violation is None:
            self._violation = error

    def _run_until(self, end: float) -> None:
        self.loop.call_at(end, self.loop.stop)
        self.loop.run_forever()
        if self._violation is not None:
            raise self._violation

    def _after_step(self) -> None:
        if self._violation is None:
            try:
                self.checks.check(broker for broker in self.brokers.values() if broker.is_up)
            except AssertionError as error:
                self._violation = error
        if self._violation is not None:
            self.loop.stop()

    # Brokers and controllers

    def _start(self, broker_id: int) -> Broker:
        broker = Broker(
            broker_id,
            self._disks.root(host_of(broker_id)),
            loop=self.loop,
            network=self.network,
            config_of=lambda _: self._config,
            broker_epoch=self.store.next_zxid(),
            boot_id=self._disks.boot_id(host_of(broker_id)),
        )
        self.brokers[broker_id] = broker
        self.note(f"broker {broker_id} starts with epoch {broker.broker_epoch}")
        self.loop.spawn(broker.process, lambda: self._guarded(broker.start()))
        return broker

    def _restart(self, broker_id: int) -> None:
        if not self.brokers[broker_id].process.is_alive:
            self.loop.call_later(self.random.uniform(0.02, 0.4), self._register, self._start(broker_id))

    def _register(self, broker: Broker) -> None:
        if broker.process.is_alive:
            self.store.brokers[broker.id] = broker.broker_epoch
            self._registrations_changed()

    def _registrations_changed(self) -> None:
        for controller in self.controllers:
            if controller.is_active:
                controller.registrations_changed()

    def _new_controller(self) -> None:
        # As in Kafka, only the order of commands protects a deleted replica from an older LeaderAndIsr.
        may_delete = len(self.history.brokers) > REPLICAS
        copied = (ApiKey.STOP_REPLICA,) if may_delete else (ApiKey.LEADER_AND_ISR,)
        chances = Chances(self.history.late_copies, copied, 0.05, 0.05)
        controller = Controller(
            self.store, loop=self.loop, network=self.network, random=self.random, chances=chances, note=self.note
        )
        self.controllers.append(controller)
        controller.take_office()

    # Acts

    def _act(self, act: Act) -> None:
        self.note(str(act))
        getattr(self, f"_do_{act.kind}")(*act.arguments)

    def _do_crash(
        self, broker_id: int, down_s: float, noticed_s: float, loses_checkpoint: bool, is_repeated: bool
    ) -> None:
        """Kill a broker. With `is_repeated`, its next process gets a command meant for this one."""
        broker = self.brokers[broker_id]
        if not broker.process.is_alive:
            return
        broker.kill()
        if loses_checkpoint:
            (self._disks.root(host_of(broker_id)) / HIGH_WATERMARK_FILE).unlink(missing_ok=True)
        self.loop.call_later(noticed_s, self._expire, broker)
        self.loop.call_later(down_s, self._restart, broker_id)
        if is_repeated:
            for controller in self.controllers:
                self.loop.call_later(down_s, controller.repeat_latest, broker_id)

    def _do_power(self, broker_id: int, down_s: float) -> None:
        """Fail the power of a broker, unless it is the last one with committed records."""
        broker = self.brokers[broker_id]
        if not broker.process.is_alive or not all(map(self._has_others, self.names, (broker_id, broker_id))):
            return
        broker.kill()
        self._disks.fail(host_of(broker_id))
        self._expire(broker)
        self.checks.lost_power(broker_id)
        self.loop.call_later(down_s, self._restart, broker_id)

    def _has_others(self, name: TopicPartition, broker_id: int) -> bool:
        """Return True if the ISR has another live member, or not this one."""
        isr = self.store.partitions[name].isr
        others = [self.brokers[member] for member in isr if member != broker_id]
        return broker_id not in isr or any(
            other.process.is_alive and self.store.brokers.get(other.id) == other.broker_epoch for other in others
        )

    def _expire(self, broker: Broker) -> None:
        """Expire the session of a broker's process."""
        if self.store.brokers.get(broker.id) == broker.broker_epoch:
            del self.store.brokers[broker.id]
            self._registrations_changed()

    def _do_elect(self, index: int, broker: int) -> None:
        for controller in self.controllers:
            controller.elect(self.names[index], broker)

    def _do_cut(self, one: int, other: int, both: bool, duration: float) -> None:
        route, back = self._both(host_of(one), host_of(other))
        cuts = {route, back} if both else {route}
        self.network.cuts |= cuts
        self.loop.call_later(duration, self._heal, cuts)

    def _heal(self, cuts: set[tuple[str, str]]) -> None:
        self.network.heal(cuts)

    def _do_isolate(self, broker_id: int, duration: float) -> None:
        """Cut a broker from the controllers, but not from other brokers."""
        host = host_of(broker_id)
        cuts = {pair for controller in self.controllers for pair in self._both(host, controller.process.host)}
        self.network.cuts |= cuts
        self.loop.call_later(duration, self._heal, cuts)

    @staticmethod
    def _both(one: str, other: str) -> tuple[tuple[str, str], tuple[str, str]]:
        return (one, other), (other, one)

    def _do_usurp(self, index: int, is_zombie: bool, later: float, duration: float) -> None:
        """Cut a leader from its followers, and sometimes from the controller, then elect one of them."""
        name = self.names[index]
        leader = self.store.partitions[name].leader
        hosts = [host_of(broker) for broker in self.history.brokers if broker != leader]
        if is_zombie:
            hosts += [controller.process.host for controller in self.controllers]
        cuts = {pair for host in hosts for pair in self._both(host_of(leader), host)}
        self.network.cuts |= cuts
        self.loop.call_later(later, self._elect_other, name, leader)
        self.loop.call_later(later + duration, self._heal, cuts)

    def _do_alone(self, index: int, duration: float, down_s: float) -> None:
        """Cut a leader from its followers until the ISR is small, then kill it and drop its high watermark."""
        leader = self.store.partitions[self.names[index]].leader
        if leader == NO_LEADER:
            return
        cuts = {
            pair
            for broker in self.history.brokers
            if broker != leader
            for pair in self._both(host_of(leader), host_of(broker))
        }
        self.network.cuts |= cuts
        self.loop.call_later(duration, self._do_crash, leader, down_s, down_s / 2, True, False)
        self.loop.call_later(duration, self._heal, cuts)

    def _elect_other(self, name: TopicPartition, leader: int) -> None:
        others = [broker for broker in self.store.partitions[name].isr if broker != leader]
        if others:
            self._do_elect(name.partition, self.random.choice(others))

    def _do_reassign(self, index: int, target: tuple[int, ...]) -> None:
        for controller in self.controllers:
            controller.reassign(self.names[index], target)

    def _do_freeze(self, broker_id: int, duration: float) -> None:
        """Stop a process for a while; its session ends, and it registers again afterwards."""
        broker = self.brokers[broker_id]
        if not broker.is_up or broker.process.is_frozen:
            return
        self.loop.freeze(broker.process)
        self.loop.call_later(min(duration, 1.0), self._expire_if_frozen, broker)
        self.loop.call_later(duration, self._resume, broker)

    def _expire_if_frozen(self, broker: Broker) -> None:
        if broker.process.is_frozen:
            self._expire(broker)

    def _resume(self, broker: Broker) -> None:
        if not broker.process.is_frozen or not broker.process.is_alive:
            return
        self.note(f"broker {broker.id} continues")
        self.loop.resume(broker.process)
        if self.store.brokers.get(broker.id) != broker.broker_epoch:
            self.loop.call_later(0.05, self._register_again, broker)

    def _register_again(self, broker: Broker) -> None:
        if broker.is_up:
            broker.broker_epoch = self.store.next_zxid()
            self._register(broker)

    def _do_expire(self, broker_id: int) -> None:
        """Expire the session of a broker that keeps running."""
        broker = self.brokers[broker_id]
        if broker.is_up and not broker.process.is_frozen:
            self._expire(broker)
            self.loop.call_later(0.1, self._register_again, broker)

    def _do_skew(self, broker_id: int, seconds: float) -> None:
        self.brokers[broker_id].process.clock_skew_s = seconds

    def _do_delete(self, index: int, part: float) -> None:
        """Delete some of the committed records."""
        name = self.names[index]
        offset = int(self.checks.committed_end(name) * part)
        self.loop.spawn(self._admin.process, lambda: self._guarded(self._admin.delete_records(name, offset)))

    def _do_depose(self, kill: bool, broker_id: int, later: float, duration: float) -> None:
        """Cut the controller from a broker, then depose it; if it lives on, its commands arrive after the cut."""
        controller = self.controllers[-1]
        cuts = set(self._both(host_of(broker_id), controller.process.host))
        self.network.cuts |= cuts
        self.loop.call_later(later, self._depose, controller, kill)
        self.loop.call_later(later + duration, self._heal, cuts)

    def _depose(self, controller: Controller, kill: bool) -> None:
        if not controller.is_active:
            return
        if kill:
            self.loop.kill(controller.process)
            self.network.died(controller.process)
        self._new_controller()

    # The end

    def _end_faults(self) -> None:
        self.note("the faults end")
        self.network.heal()
        self.network.break_rate = self.network.slow_reads = 0.0
        for controller in self.controllers:
            controller.chances = Chances(0.0, (), 0.0, 0.0)
        for broker in self.brokers.values():
            if broker.process.is_frozen:
                self._resume(broker)

    def _settle(self) -> None:
        end = self.loop.now + _SETTLE_S
        for producer in self.producers:
            producer.is_stopped = True
        problem: str | None = "?"
        while problem is not None:
            if self.loop.now > end:
                raise ViolationError(f"{_SETTLE_S:g} s after the faults: {problem}")
            self._run_until(self.loop.now + 0.5)
            problem = self._unsettled()
        self._check_records()

    def _unsettled(self) -> str | None:
        """Return the reason why the cluster has not settled after the faults; None if it has."""
        if any(not controller.is_idle for controller in self.controllers if controller.is_active):
            return "commands are under way"
        for producer in self.producers:
            if not producer.is_done:
                return f"{producer.name} waits for an acknowledgement"
        for broker in self.brokers.values():
            if not broker.is_up or self.store.brokers.get(broker.id) != broker.broker_epoch:
                return f"broker {broker.id} is not up"
        for name, state in self.store.partitions.items():
            problem = self._unsettled_partition(name, state)
            if problem is not None:
                return f"{name}: {problem} ({state})"
        return None

    def _unsettled_partition(self, name: TopicPartition, state: State) -> str | None:
        if state.target is not None:
            return "a reassignment is under way"
        if set(state.isr) != set(state.replicas):
            return f"the ISR is {state.isr}"
        ends = {}
        for number in state.replicas:
            broker = self.brokers[number]
            hosted = {partition.topic_partition: partition for partition in broker.replicas.hosted()}.get(name)
            if hosted is None:
                return f"broker {number} has no replica"
            if hosted.leader_epoch != state.leader_epoch:
                return f"broker {number} has epoch {hosted.leader_epoch}"
            if (broker.replicas.find(*name) is not None) != (number == state.leader):
                return f"broker {number} is in the wrong role"
            ends[number] = (hosted.log_end_offset, hosted.high_watermark)
            image = broker.cache.image.topics.get(TOPIC)
            shown = None if image is None else image.partitions[name.partition]
            if shown is None or (shown.leader, shown.leader_epoch, shown.isr, shown.version) != (
                state.leader,
                state.leader_epoch,
                state.isr,
                state.version,
            ):
                return f"broker {number} shows {shown}"
        for broker in self.brokers.values():
            is_stray = broker.id not in state.replicas and broker.replicas.find(*name) is not None
            if is_stray:
                return f"broker {broker.id} leads it, and has no replica"
        if len({*ends.values()}) != 1 or any(end != high for end, high in ends.values()):
            return f"log ends and high watermarks are {ends}"
        return None

    def _check_records(self) -> None:
        """Read everything, and compare it with the producers' acknowledgements."""
        for name in self.names:
            values: list[bytes] = []
            offsets: dict[bytes, int] = {}
            for held in self.checks.committed[name].history:
                for record in iter_records(held.data):
                    assert record.value is not None
                    value = record.value.rstrip(b".")
                    values.append(value)
                    offsets[value] = held.header.base_offset + record.offset - held.header.base_offset
            for producer in self.producers:
                self._check_producer(producer, name, values, offsets)

    def _check_producer(
        self, producer: Producer, name: TopicPartition, values: list[bytes], offsets: dict[bytes, int]
    ) -> None:
        written = producer.written.get(name)
        if written is None:
            return
        for value, offset in written.acknowledged.items():
            if offsets.get(value) != offset:
                raise ViolationError(f"{name}: {value!r} was acknowledged at {offset}, and is at {offsets.get(value)}")
        if producer.producer_id >= 0:
            own = [value for value in values if value.startswith(producer.name.encode() + b"-")]
            if own != written.sent:
                raise ViolationError(f"{name}: {producer.name} sent {written.sent}, and the log has {own}")

    # For clients

    def leader_of(self, name: TopicPartition) -> int:
        brokers = [broker for broker in self.brokers.values() if broker.is_up]
        if not brokers:
            return NO_LEADER
        topic = self.random.choice(brokers).cache.image.topics.get(name.topic)
        if topic is None or name.partition >= len(topic.partitions):
            return NO_LEADER
        return topic.partitions[name.partition].leader

    def leads(self, name: TopicPartition, broker: int) -> bool:
        state = self.store.partitions[name]
        led = self.brokers[broker].replicas.find(*name) if state.leader == broker else None
        return led is not None and led.leader_epoch == state.leader_epoch

    def topic_id(self, topic: str) -> bytes:
        return self.store.topic_ids[topic].bytes

    def _start_of(self, name: TopicPartition) -> int:
        return self.checks.committed_start(name)

    def read(self, name: TopicPartition, offset: int, data: bytes) -> None:
        self.checks.read(name, offset, data)

    def acknowledged(self, name: TopicPartition, offset: int, values: list[bytes], acks: int) -> None:
        self.note(f"acknowledged {name} {offset} {values} acks={acks}")
        if acks == -1:
            self.checks.acknowledged(name, offset, len(values))


@contextmanager
def _quiet() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def play(history: History, trace: list[str] | None = None) -> AssertionError | None:
    """Play a history and return the first violation, if any."""
    directory = Path(tempfile.mkdtemp(prefix="headrace-cluster-", dir=_MEMORY if _MEMORY.is_dir() else None))
    state = random.getstate()
    random.seed(history.seed)
    try:
        with _quiet():
            World(history, directory, trace).run()
    except AssertionError as violation:
        return violation
    finally:
        random.setstate(state)
        shutil.rmtree(directory)
    return None


def shortest(history: History, play: Callable[[History], AssertionError | None] = play) -> History:
    """Remove acts that the failure does not need."""
    acts = list(history.acts)
    for act in history.acts:
        fewer = [item for item in acts if item is not act]
        if play(replace(history, acts=tuple(fewer))) is not None:
            acts = fewer
    short = replace(history, acts=tuple(acts))
    for simpler in (replace(short, break_rate=0.0), replace(short, late_copies=0.0)):
        if play(simpler) is not None:
            short = simpler
    return short


def explain(history: History, violation: AssertionError) -> str:
    """Return the report of a failing seed."""
    short = shortest(history)
    trace: list[str] = []
    found = play(short, trace)
    return "\n".join(
        [
            str(violation),
            f"The shortest history that fails ({len(short.acts)} of {len(history.acts)} acts):",
            str(short),
            *trace[-80:],
            str(found),
            f"To replay: .venv/bin/python -m tests.simulation --only cluster --replay {history.seed}",
        ]
    )


__all__ = ["ClientError", "World", "explain", "play", "shortest"]
