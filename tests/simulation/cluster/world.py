"""A simulated cluster: complete brokers, any of which may be controller, with fake network, clock, disk and ZooKeeper.

`play` returns the first violation of these guarantees:

- The invariants of `checks` and `store` hold after every step, and the product logs no bug.
- No acknowledged record is lost; records of idempotent producers are in order and without duplicates.
- The guarantees about groups of `groups`.
- After the faults, there is one controller, nothing is left in `/admin`, all partitions have leaders and a full ISR,
  their replicas and high watermarks are equal and where they are assigned, and images equal the store.
"""

import asyncio
import logging
import random
import shutil
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import Context
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final
from unittest.mock import patch
from uuid import UUID

from headrace.cluster import znodes
from headrace.cluster.image import NO_LEADER, TOPIC_CONFIG, ConfigResource, LeaderState
from headrace.cluster.store import StoreError
from headrace.cluster.topic_names import GROUP_OFFSETS
from headrace.errors import KafkaError
from headrace.storage.files.checkpoint import HIGH_WATERMARK_FILE
from headrace.storage.log.config import LogConfig
from headrace.types import TopicPartition
from headrace.wire.records import iter_records
from tests.simulation import acts
from tests.simulation.cluster import plots, zookeeper
from tests.simulation.cluster.admin import Admin
from tests.simulation.cluster.broker import Broker, LateCopies, host_of
from tests.simulation.cluster.checks import Checks
from tests.simulation.cluster.clients import Consumer, Producer
from tests.simulation.cluster.disks import Disks
from tests.simulation.cluster.groups import OFFSETS_PARTITIONS, CoordinatorChecks, GroupClient, groups_without_threads
from tests.simulation.cluster.history import FAULTS_S, OTHERS, PARTITIONS, REPLICAS, TOPIC, History
from tests.simulation.cluster.loop import ProcessLoop, current_process, virtual_clocks
from tests.simulation.cluster.net import Network
from tests.simulation.cluster.store import Key, Store, ViolationError

_SETTLE_S: Final = 30.0
_RESTART_S: Final = 0.5
"""Time until a broker that could not start, or has stopped itself, is started again."""
_MEMORY: Final = Path("/dev/shm")
_BUGS: Final = ("this is a bug", "unexpected error", "cannot change from")
"""Signs of a bug in log lines."""
_DECISIONS: Final = logging.getLogger("headrace.cluster.offices.term")


class World:
    """The cluster. Events are appended to `trace` as text."""

    def __init__(self, history: History, directory: Path, trace: list[str] | None = None) -> None:
        self.history = history
        seed = history.seed
        self._disks = Disks(
            directory, random.Random(f"disks {seed}"), recorded=any(act.kind == "power" for act in history.acts)
        )
        self._trace = trace
        self.random = random.Random(f"world {seed}")
        self.loop = ProcessLoop(random.Random(f"disk {seed}"))
        self.network = Network(self.loop, random.Random(f"network {seed}"))
        self.zookeeper = zookeeper.Ensemble(self.loop, self.network, random.Random(f"zookeeper {seed}"))
        self.zookeeper.committed = self._committed
        self.store = Store(self.note, self._known_live)
        self.checks = Checks(self.store, lambda topic: self._config_of(topic).min_insync_replicas)
        self.brokers: dict[int, Broker] = {}
        self._copies = LateCopies(self.loop, random.Random(f"copies {seed}"))
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
        self._other_config = replace(self._config, min_insync_replicas=1)
        self._offsets_config = replace(self._config, retention_bytes=-1)
        self._coordinators = CoordinatorChecks()
        self.names = [TopicPartition(TOPIC, index) for index in range(PARTITIONS)]
        self.producers: list[Producer] = []
        self.group_clients: list[GroupClient] = []
        self.admin = Admin(self, self.loop)
        self._blocks: set[int] = set()
        self._awaited: list[tuple[Callable[[], bool], asyncio.Event]] = []
        self._violation: AssertionError | None = None

    def note(self, text: str) -> None:
        if self._trace is not None:
            self._trace.append(f"{self.loop.now - 1000:8.3f} s  {text}")

    # Running

    def run(self) -> None:
        """Raises AssertionError."""
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
        brokers = self.history.brokers
        for broker_id in brokers:
            self._start(broker_id)
        self.network.break_rate = self.history.break_rate
        self._copies.rate = self.history.late_copies
        assignments = [
            tuple(brokers[(index + shift) % len(brokers)] for shift in range(REPLICAS)) for index in range(PARTITIONS)
        ]
        self._operate(self._create_first_topics(assignments))
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
            partitions = self._all_names if careless else lambda: self.names
            self.loop.spawn(producer.process, partial(self._guarded, producer.run(partitions)))
        for name in self.names:
            consumer = Consumer(name, self, self.loop, random.Random(f"consumer {self.history.seed} {name}"))
            self.loop.spawn(consumer.process, partial(self._guarded, consumer.run(self._start_of)))
        if self.history.has_groups:
            chance = random.Random(f"groups {self.history.seed}")
            client = GroupClient(self, self.loop, chance, TOPIC, self.history.pause_s)
            self.group_clients.append(client)
            self.loop.spawn(client.process, lambda: self._guarded(client.run()))
        for act in self.history.acts:
            self.loop.call_at(1000 + act.at, self.do, act.kind, *act.arguments)

    async def _create_first_topics(self, assignments: Sequence[Sequence[int]]) -> None:
        while TOPIC not in self.store.topic_ids:
            await asyncio.sleep(0.05)
            if len(self.store.brokers) == len(self.history.brokers):
                await self.admin.create_topic(TOPIC, assignments)
        await self.admin.create_topic(OTHERS[0], [replicas[1:] for replicas in assignments])
        if self.history.has_groups:
            await self.admin.create_topic(GROUP_OFFSETS, list(assignments)[-OFFSETS_PARTITIONS:])

    def _all_names(self) -> list[TopicPartition]:
        return sorted(key.name for key in self.store.states if key.topic != GROUP_OFFSETS)

    async def _guarded(self, work: Awaitable[object]) -> None:
        try:
            await work
        except AssertionError as error:
            self._fail(error)
        except Exception as error:
            self._fail(AssertionError(repr(error)))
            raise

    def _operate(self, work: Awaitable[object]) -> None:
        self.loop.spawn(self.admin.process, partial(self._guarded, work))

    def _fail(self, error: AssertionError) -> None:
        if self._violation is None:
            self._violation = error

    def logged(self, record: logging.LogRecord) -> None:
        """Handle a line of a broker's log: bugs are violations."""
        process = current_process()
        message = record.getMessage()
        if record.exc_info is not None:
            message = f"{message}: {record.exc_info[1]!r}"
        if any(sign in message for sign in _BUGS):
            self._fail(ViolationError(message))
        self.note(f"{'?' if process is None else process.host}: {message}")

    def _committed(self, changes: zookeeper.Changes) -> None:
        try:
            self.store.committed(changes)
        except AssertionError as error:
            self._fail(error)
        for is_true, awaited in self._awaited:
            if is_true():
                awaited.set()

    async def until(self, is_true: Callable[[], bool], timeout_s: float = 3.0) -> bool:
        """Wait until a transaction of ZooKeeper makes something true. Return False after the timeout."""
        if is_true():
            return True
        entry = is_true, asyncio.Event()
        self._awaited.append(entry)
        try:
            async with asyncio.timeout(timeout_s):
                await entry[1].wait()
        except TimeoutError:
            return False
        finally:
            self._awaited.remove(entry)
        return True

    def _known_live(self) -> set[int] | None:
        """Return the brokers that the controller believes to be alive; None if it is not known."""
        for broker in self.brokers.values():
            term = broker.member.candidate.term if broker.has_started else None
            if term is not None and term.epoch == self.store.controller_epoch:
                return term.machine.context.live
        return None

    def _run_until(self, end: float) -> None:
        self.loop.call_at(end, self.loop.stop)
        self.loop.run_forever()
        if self._violation is not None:
            raise self._violation

    def _after_step(self) -> None:
        if self._violation is None:
            try:
                self.checks.check(self.brokers.values(), self.loop.ran)
                if self.history.has_groups:
                    self._check_coordinators()
            except AssertionError as error:
                self._violation = error
        if self._violation is not None:
            self.loop.stop()

    def _check_coordinators(self) -> None:
        for broker in self.brokers.values():
            if broker.is_up and broker.process in self.loop.ran:
                self._coordinators.check(broker)

    # Brokers

    def _config_of(self, topic: str) -> LogConfig:
        if topic == GROUP_OFFSETS:
            return self._offsets_config
        return self._config if topic == TOPIC else self._other_config

    def _start(self, broker_id: int) -> None:
        broker = Broker(
            broker_id,
            self._disks.root(host_of(broker_id)),
            loop=self.loop,
            network=self.network,
            config_of=self._config_of,
            boot_id=self._disks.boot_id(host_of(broker_id)),
            copies=self._copies,
            fetch_bytes=self.history.fetch_bytes,
            has_groups=self.history.has_groups,
        )
        self.brokers[broker_id] = broker
        self.note(f"broker {broker_id} starts")
        self.loop.spawn(broker.process, lambda: self._guarded(self._live(broker)))

    async def _live(self, broker: Broker) -> None:
        try:
            await broker.start()
            await broker.failed.wait()
            self.note(f"broker {broker.id} stops itself")
        except (StoreError, KafkaError) as error:
            self.note(f"broker {broker.id} cannot start: {error}")
        broker.kill()
        self._restart_later(broker.id, _RESTART_S)

    def _restart_later(self, broker_id: int, after_s: float) -> None:
        # Not in the context of the dead process, which runs nothing.
        self.loop.call_later(after_s, self._restart, broker_id, context=Context())

    def _restart(self, broker_id: int) -> None:
        if not self.brokers[broker_id].process.is_alive:
            self._start(broker_id)

    def _kill(self, broker_id: int, down_s: float) -> bool:
        """Kill a broker, and start it again later. Return False if it is down already."""
        broker = self.brokers[broker_id]
        if not broker.process.is_alive:
            return False
        broker.kill()
        self._restart_later(broker_id, down_s)
        return True

    @property
    def controller(self) -> Broker | None:
        """The broker in `/controller`."""
        number = self.store.controller
        return None if number is None else self.brokers[number]

    def _session_of(self, broker: Broker) -> zookeeper.Session | None:
        node = self.zookeeper.nodes.get(znodes.broker_path(broker.id))
        return None if node is None else self.zookeeper.sessions.get(node.stat.ephemeralOwner)

    # Acts upon brokers

    def do(self, kind: str, *arguments: object) -> None:
        """Perform an act of a history."""
        self.note(f"{kind}({', '.join(map(repr, arguments))})")
        getattr(self, f"_do_{kind}")(*arguments)

    def _do_plot(self, name: str) -> None:
        chance = random.Random(f"plot {self.history.seed} {name}")
        self._operate(getattr(plots, name)(self, chance))

    def _do_crash(self, broker_id: int, down_s: float, loses_checkpoint: bool) -> None:
        if self._kill(broker_id, down_s) and loses_checkpoint:
            (self._disks.root(host_of(broker_id)) / HIGH_WATERMARK_FILE).unlink(missing_ok=True)

    def _do_stop(self, broker_id: int, down_s: float) -> None:
        """Stop a broker cleanly."""
        broker = self.brokers[broker_id]
        if broker.is_up:
            self.loop.spawn(broker.process, lambda: self._guarded(self._stop(broker, down_s)))

    async def _stop(self, broker: Broker, down_s: float) -> None:
        await broker.stop()
        self._kill(broker.id, down_s)

    def _do_power(self, broker_id: int, down_s: float) -> None:
        """Fail the power of a broker, unless it is the last one with committed records."""
        if all(self._has_others(name, broker_id) for name in self.names) and self._kill(broker_id, down_s):
            self._disks.fail(host_of(broker_id))
            self.checks.lost_power(broker_id)
            self.store.lost_power(broker_id)

    def _has_others(self, name: TopicPartition, broker_id: int) -> bool:
        """Return True if the ISR has another live member, or not this one."""
        state = self.store.state(name)
        if state is None or broker_id not in state.isr:
            return True
        return any(self.brokers[member].is_up for member in state.isr if member != broker_id)

    def _do_freeze(self, broker_id: int, duration: float) -> None:
        """Stop a process for a while, perhaps for longer than its session."""
        broker = self.brokers[broker_id]
        if broker.is_up and not broker.process.is_frozen:
            self.loop.freeze(broker.process)
            self.loop.call_later(duration, self._resume, broker)

    def _resume(self, broker: Broker) -> None:
        if broker.process.is_frozen and broker.process.is_alive:
            self.note(f"broker {broker.id} continues")
            self.loop.resume(broker.process)

    def _do_expire(self, broker_id: int) -> None:
        """Expire the session of a broker that keeps running."""
        session = self._session_of(self.brokers[broker_id])
        if session is not None:
            self.zookeeper.expire(session)

    def _do_skew(self, broker_id: int, seconds: float) -> None:
        self.brokers[broker_id].process.clock_skew_s = seconds

    def _do_depose(self, how: str, broker_id: int, later: float, duration: float) -> None:
        """Cut the controller from a broker, then depose it; if it lives on, its commands arrive after the cut."""
        controller = self.controller
        if controller is not None:
            if controller.id != broker_id:
                self.cut(duration + later, self.both(host_of(broker_id), host_of(controller.id)))
            self.loop.call_later(later, self._depose, controller, how, duration)

    def _depose(self, controller: Broker, how: str, duration: float) -> None:
        if how == "kill":
            self._do_crash(controller.id, duration, False)
        elif how == "freeze":
            self._do_freeze(controller.id, duration)
        elif how == "cut":
            self._do_zookeeper_cut(controller.id, 0, duration)
        elif how == "expire":
            self._do_expire(controller.id)
        else:
            self._write(zookeeper.Operation("delete", znodes.CONTROLLER))

    # Acts upon the network

    def outvote(self, controller: Broker, duration: float) -> None:
        """Depose a controller that does not hear of it for a while, and goes on."""
        self.cut(duration, {(zookeeper.HOST, host_of(controller.id))})
        self._write(zookeeper.Operation("delete", znodes.CONTROLLER))

    @staticmethod
    def both(one: str, other: str) -> set[tuple[str, str]]:
        return {(one, other), (other, one)}

    def cut(self, duration: float, routes: set[tuple[str, str]]) -> None:
        """Cut routes between hosts for a while."""
        self.network.cuts |= routes
        self.loop.call_later(duration, self.network.heal, routes)

    def _do_cut(self, one: int, other: int, both: bool, duration: float) -> None:
        routes = self.both(host_of(one), host_of(other))
        self.cut(duration, routes if both else {(host_of(one), host_of(other))})

    def _do_isolate(self, broker_id: int, both: bool, duration: float) -> None:
        """Cut a broker from the controller, but not from other brokers."""
        controller = self.controller
        if controller is not None and controller.id != broker_id:
            self._do_cut(controller.id, broker_id, both, duration)

    def _others_of(self, broker_id: int) -> set[tuple[str, str]]:
        return {
            route
            for other in self.history.brokers
            if other != broker_id
            for route in self.both(host_of(broker_id), host_of(other))
        }

    def _do_usurp(self, index: int, is_alone: bool, duration: float) -> None:
        """Cut a leader from ZooKeeper, and sometimes from all brokers, so that another one is elected."""
        state = self.store.state(self.names[index])
        if state is not None and state.leader != NO_LEADER:
            routes = self.both(host_of(state.leader), zookeeper.HOST)
            self.cut(duration, routes | self._others_of(state.leader) if is_alone else routes)

    def _do_alone(self, index: int, duration: float, down_s: float) -> None:
        """Cut a leader from its followers until the ISR is small, then kill it and drop its high watermark."""
        state = self.store.state(self.names[index])
        if state is not None and state.leader != NO_LEADER:
            self.cut(duration, self._others_of(state.leader))
            self.loop.call_later(duration, self._do_crash, state.leader, down_s, True)

    def _do_zookeeper_cut(self, broker_id: int, direction: int, duration: float) -> None:
        """Cut a broker from ZooKeeper, in both directions (0) or in one."""
        host = host_of(broker_id)
        routes = [self.both(host, zookeeper.HOST), {(host, zookeeper.HOST)}, {(zookeeper.HOST, host)}]
        self.cut(duration, routes[direction])

    def _do_zookeeper_away(self, duration: float) -> None:
        self.zookeeper.go_away()
        self.loop.call_later(duration, self.zookeeper.come_back)

    def _do_zookeeper_reconnects(self) -> None:
        """Break all connections to ZooKeeper, as a failover of its leader does."""
        self.zookeeper.drop_connections()

    # Acts of operators

    def _do_create(self, topic: str, assignments: tuple[tuple[int, ...], ...]) -> None:
        self._operate(self.admin.create_topic(topic, assignments))

    def _do_grow(self, topic: str, brokers: tuple[int, ...]) -> None:
        count = sum(key.topic == topic for key in self.store.assignments)
        if count:
            self._operate(self.admin.add_partition(topic, count + 1, brokers))

    def _do_delete(self, topic: str) -> None:
        self._operate(self.admin.delete_topic(topic))

    def _do_reassign(self, topic: str, index: int, target: tuple[int, ...], with_node: bool) -> None:
        """Reassign a partition, by request or with the deprecated node."""
        name = TopicPartition(topic, index)
        if with_node:
            data = znodes.encode_reassignments({name: target})
            self._write(zookeeper.Operation("create", znodes.REASSIGNMENTS, data))
        else:
            self._operate(self.admin.reassign(name, target))

    def _do_cancel(self) -> None:
        for key, assignment in self.store.assignments.items():
            if assignment.is_moving:
                self._operate(self.admin.reassign(key.name, None))

    def _do_elect(self, with_node: bool) -> None:
        """Elect all preferred leaders, by request or with the deprecated node."""
        if with_node:
            partitions = [{"topic": name.topic, "partition": name.partition} for name in self.names]
            data = str({"version": 1, "partitions": partitions}).replace("'", '"').encode()
            self._write(zookeeper.Operation("create", znodes.ELECTIONS, data))
        else:
            self._operate(self.admin.elect(None, unclean=False))

    def _do_elect_unclean(self, topic: str, index: int) -> None:
        self.store.may_be_unclean.add(topic)
        self._operate(self.admin.elect(TopicPartition(topic, index), unclean=True))

    def _do_configure_unclean(self, topic: str, is_enabled: bool) -> None:
        live = [broker for broker in self.brokers.values() if broker.is_up]
        if live:
            if is_enabled:
                self.store.may_be_unclean.add(topic)
            broker = self.random.choice(live)
            resource = ConfigResource(TOPIC_CONFIG, topic)
            value = str(is_enabled).lower()

            def alter(values: Mapping[str, str]) -> Mapping[str, str]:
                return {**values, "unclean.leader.election.enable": value}

            work = partial(broker.member.admin.alter_configs, [(resource, alter)])
            self.loop.spawn(broker.process, lambda: self._guarded(work()))

    def _do_allocate_ids(self, broker_id: int) -> None:
        broker = self.brokers[broker_id]
        if broker.is_up:
            self.loop.spawn(broker.process, lambda: self._guarded(self._allocate_ids(broker)))

    async def _allocate_ids(self, broker: Broker) -> None:
        try:
            first, _ = await broker.member.controller.allocate_producer_ids()
        except KafkaError as error:
            self.note(f"broker {broker.id} gets no producer ids: {error}")
            return
        if first in self._blocks:
            raise ViolationError(f"the producer ids from {first} are allocated twice")
        self._blocks.add(first)

    def _do_delete_records(self, index: int, part: float) -> None:
        """Delete some of the committed records."""
        name = self.names[index]
        key = self.store.key_of(name)
        if key is not None:
            self._operate(self.admin.delete_records(name, int(self.checks.committed_end(key) * part)))

    def _write(self, operation: zookeeper.Operation) -> None:
        """Write to ZooKeeper as an operator. Errors are ignored."""
        self.zookeeper.execute(zookeeper.Session(0, 0.0, 0.0), [operation])

    # The end

    def _end_faults(self) -> None:
        self.note("the faults end")
        self.network.heal()
        self.network.break_rate = self.network.slow_reads = 0.0
        self.zookeeper.slow_servers = 0.0
        self.zookeeper.come_back()
        self._copies.rate = 0.0
        for broker in self.brokers.values():
            self._resume(broker)

    def _settle(self) -> None:
        end = self.loop.now + _SETTLE_S
        for client in self._clients():
            client.is_stopped = True
        problem: str | None = "?"
        while problem is not None:
            if self.loop.now > end:
                raise ViolationError(f"{_SETTLE_S:g} s after the faults: {problem}")
            self._run_until(self.loop.now + 0.5)
            problem = self._unsettled()
        self._check_records()

    def _clients(self) -> list[Producer | GroupClient]:
        return [*self.producers, *self.group_clients]

    def _unsettled(self) -> str | None:
        """Return the reason why the cluster has not settled after the faults; None if it has."""
        for broker in self.brokers.values():
            if not broker.is_up or self.store.brokers.get(broker.id) != broker.broker_epoch:
                return f"broker {broker.id} is not up"
        problem = self._unsettled_controller()
        if problem is not None:
            return problem
        for client in self._clients():
            if not client.is_done:
                return f"{client.name} waits for an answer"
        if self.store.requested:
            return f"{self.store.requested} is left"
        if TOPIC not in self.store.topic_ids:
            return "the topic was not created"
        for key in self.store.assignments:
            problem = self._unsettled_partition(key)
            if problem is not None:
                return f"{key}: {problem} ({self.store.states.get(key)})"
        for broker in self.brokers.values():
            shown = {topic.name: topic.topic_id for topic in broker.cache.image.topics.values()}
            for name, topic_id in shown.items() - self.store.topic_ids.items():
                deleted = self.store.deleted.get(topic_id)
                if (
                    name in self.store.topic_ids
                    or deleted is None
                    or not self.store.may_have_missed(broker.id, deleted)
                ):
                    return f"broker {broker.id} shows {name} with id {topic_id}"
            if not self.store.topic_ids.keys() <= shown.keys():
                return f"broker {broker.id} shows only the topics {set(shown)}"
        return None

    def _unsettled_controller(self) -> str | None:
        controllers = [broker for broker in self.brokers.values() if broker.is_controller]
        if [broker.id for broker in controllers] != [self.store.controller]:
            return f"the controllers are {[broker.id for broker in controllers]}, in ZooKeeper {self.store.controller}"
        term = controllers[0].member.candidate.term
        assert term is not None
        if len(term.queue) or any(term.channels.waiting.values()):
            return "the controller is busy"
        for broker in self.brokers.values():
            if broker.cache.image.controller_id != controllers[0].id:
                return f"broker {broker.id} shows the controller {broker.cache.image.controller_id}"
        return None

    def _unsettled_partition(self, key: Key) -> str | None:
        assignment, state = self.store.assignments[key], self.store.states.get(key)
        if assignment.is_moving:
            return f"a reassignment is under way: {assignment}"
        if state is None or state.leader == NO_LEADER:
            return "there is no leader"
        if set(state.isr) != set(assignment.replicas):
            return f"the ISR is {state.isr} of {assignment.replicas}"
        ends = {}
        for broker in self.brokers.values():
            hosted = broker.hosted.get(key.name)
            shown = broker.cache.image.topics.get(key.topic)
            image = None if shown is None or key.partition >= len(shown.partitions) else shown.partitions[key.partition]
            if image is None or (image.leader, image.leader_epoch, image.isr, image.version, image.replicas) != (
                state.leader,
                state.leader_epoch,
                state.isr,
                state.version,
                assignment.replicas,
            ):
                return f"broker {broker.id} shows {image}"
            if broker.id not in assignment.replicas:
                if broker.replicas.find(*key.name) is not None:
                    return f"broker {broker.id} leads a partition that was moved"
                moved = self.store.moved.get((key, broker.id))
                is_left = hosted is not None and hosted.topic_id == key.topic_id
                if is_left and (moved is None or not self.store.may_have_missed(broker.id, moved)):
                    return f"broker {broker.id} keeps a replica that was moved"
                continue
            if (broker.replicas.find(*key.name) is not None) != (broker.id == state.leader):
                return f"broker {broker.id} is in the wrong role"
            if hosted is None or hosted.topic_id != key.topic_id:
                return f"broker {broker.id} has no replica"
            if hosted.leader_epoch != state.leader_epoch:
                return f"broker {broker.id} has epoch {hosted.leader_epoch}"
            ends[broker.id] = (hosted.log_end_offset, hosted.high_watermark)
        if len({*ends.values()}) != 1 or any(end != high for end, high in ends.values()):
            return f"log ends and high watermarks are {ends}"
        return None

    def _check_records(self) -> None:
        """Read everything, and compare it with the producers' acknowledgements."""
        for name in self.names:
            key = self.store.key_of(name)
            if key is None or key in self.store.tainted:
                continue
            values: list[bytes] = []
            offsets: dict[bytes, int] = {}
            for held in self.checks.committed[key].history:
                for record in iter_records(held.data):
                    assert record.value is not None
                    value = record.value.rstrip(b".")
                    values.append(value)
                    offsets[value] = record.offset
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

    def known_controller(self) -> int:
        live = [broker for broker in self.brokers.values() if broker.is_up]
        return self.random.choice(live).cache.image.controller_id if live else NO_LEADER

    def leader_of(self, name: TopicPartition) -> int:
        live = [broker for broker in self.brokers.values() if broker.is_up]
        if not live:
            return NO_LEADER
        topic = self.random.choice(live).cache.image.topics.get(name.topic)
        if topic is None or name.partition >= len(topic.partitions):
            return NO_LEADER
        return topic.partitions[name.partition].leader

    def leads(self, name: TopicPartition, broker: int) -> bool:
        state: LeaderState | None = self.store.state(name)
        if state is None or state.leader != broker or not self.brokers[broker].is_up:
            return False
        led = self.brokers[broker].replicas.find(*name)
        return led is not None and led.leader_epoch == state.leader_epoch

    def led_epoch(self, name: TopicPartition, broker: int) -> int | None:
        """Return the current leader epoch if the broker is the leader, and knows it."""
        state = self.store.state(name)
        return None if state is None or not self.leads(name, broker) else state.leader_epoch

    def may_lack_records(self, name: TopicPartition) -> bool:
        return self.store.key_of(name) in self.store.tainted

    def topic_id(self, topic: str) -> bytes:
        return self.store.topic_ids[topic].bytes

    def _start_of(self, name: TopicPartition) -> int:
        key = self.store.key_of(name)
        return 0 if key is None else self.checks.committed_start(key)

    def read(self, name: TopicPartition, offset: int, data: bytes) -> None:
        key = self.store.key_of(name)
        if key is not None and key not in self.store.tainted:
            self.checks.read(key, offset, data)

    def acknowledged(self, name: TopicPartition, offset: int, values: list[bytes], acks: int) -> None:
        self.note(f"acknowledged {name} {offset} {values} acks={acks}")
        key = self.store.key_of(name)
        if acks == -1 and key is not None and key not in self.store.tainted:
            self.checks.acknowledged(key, offset, len(values))


class _NoWatchdog:
    """Replaces the thread that ends a process whose event loop is blocked."""

    def __init__(self, *_: object, **__: object) -> None:
        """Watch nothing."""

    def start(self) -> None:
        """Watch nothing."""

    stop = start


class _Log(logging.Handler):
    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self._thread = threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread == self._thread:  # brokers of other tests may run in other threads
            self._world.logged(record)


@contextmanager
def _logs_of(world: World, level: int) -> Iterator[None]:
    """Show the brokers' logs only to the world."""
    product, handler = logging.getLogger("headrace"), _Log(world)
    disabled, before, propagate = logging.root.manager.disable, product.level, product.propagate
    logging.disable(logging.NOTSET)
    product.addHandler(handler)
    product.setLevel(level)
    _DECISIONS.setLevel(logging.INFO)
    product.propagate = False
    try:
        yield
    finally:
        product.removeHandler(handler)
        product.setLevel(before)
        product.propagate = propagate
        logging.disable(disabled)


def play(history: History, trace: list[str] | None = None) -> AssertionError | None:
    """Play a history and return the first violation, if any."""
    directory = Path(tempfile.mkdtemp(prefix="headrace-cluster-", dir=_MEMORY if _MEMORY.is_dir() else None))
    state = random.getstate()
    random.seed(history.seed)
    ids = random.Random(f"ids {history.seed}")
    try:
        world = World(history, directory, trace)
        with (
            _logs_of(world, logging.ERROR if trace is None else logging.INFO),
            patch("headrace.cluster.stores.zookeeper.KazooClient", world.zookeeper.client),
            patch("headrace.broker.membership.member.Watchdog", _NoWatchdog),
            patch("headrace.wire.ids.uuid4", lambda: UUID(int=ids.getrandbits(128))),
            ExitStack() as patched,
        ):
            if history.has_groups:
                patched.enter_context(groups_without_threads())
            world.run()
    except AssertionError as violation:
        return violation
    finally:
        random.setstate(state)
        shutil.rmtree(directory)
    return None


def shortest(history: History) -> History:
    """Remove acts and faults that the failure does not need."""
    short = acts.shortest(history, _fails)
    for simpler in (replace(short, break_rate=0.0), replace(short, late_copies=0.0), replace(short, has_groups=False)):
        if _fails(simpler):
            short = simpler
    return short


def _fails(history: History) -> bool:
    return play(history) is not None


def explain(history: History, violation: AssertionError) -> str:
    """Return the report of a failing seed."""
    short = shortest(history)
    trace: list[str] = []
    found = play(short, trace)
    return acts.report("cluster", history, short, violation, [*trace[-150:], str(found)])
