"""A controller, its tree, and its brokers in memory. The tree refuses writes with a wrong version."""

import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from headrace.cluster import znodes
from headrace.cluster.controller.batches import Announce, Announced, Lead, Send, Stop
from headrace.cluster.controller.machine import ControllerMachine, ReadTopic, Tree
from headrace.cluster.controller.work import Connect, Disconnect, Effect, Note, Remove, Write
from headrace.cluster.image import Assignment, BrokerImage, Endpoint, LeaderState
from headrace.cluster.store import Create, Delete, Operation, Set
from headrace.errors import ErrorCode
from headrace.types import PartitionState, TopicPartition

_decode_assignments = cache(znodes.decode_assignments)


class _Node(NamedTuple):
    data: bytes
    version: int
    mzxid: int


class Broker:
    """A registered broker: it executes orders, unless they are of an earlier controller, and leads what it is told."""

    def __init__(self, broker_id: int, epoch: int, logs: set[TopicPartition], controller_epoch: int) -> None:
        self.id = broker_id
        self.epoch = epoch
        self.logs = logs
        """Partitions with a log on this broker, which survive it."""
        self.states: dict[TopicPartition, PartitionState] = {}
        self.announced: dict[TopicPartition, Announced] = {}
        self.live: set[int] = set()
        self.inbox: deque[tuple[Send, int]] = deque()
        self.failed: set[TopicPartition] = set()
        """Partitions in failed directories."""
        self.controller_epoch = controller_epoch

    def execute(self, send: Send, controller_epoch: int) -> dict[TopicPartition, ErrorCode] | None:
        """Execute an order, and return the results of partitions; None if it is stale."""
        if controller_epoch < self.controller_epoch or send.broker_epoch < self.epoch:
            return None
        self.controller_epoch = controller_epoch
        match send.order:
            case Announce(brokers, partitions):
                self.live = {broker.id for broker in brokers}
                self.announced.update(partitions)
                return {}
            case Lead(partitions, _):
                return {partition: self._lead(partition, state) for partition, state in partitions.items()}
            case Stop(replicas):
                for partition, stopped in replicas.items():
                    self.states.pop(partition, None)
                    if stopped.delete:
                        self.logs.discard(partition)
                return {partition: ErrorCode.none for partition, stopped in replicas.items() if stopped.delete}

    def _lead(self, partition: TopicPartition, state: PartitionState) -> ErrorCode:
        if partition in self.failed and not state.is_new:
            return ErrorCode.kafka_storage_error
        known = self.states.get(partition)
        if known is not None and state.leader_epoch < known.leader_epoch:
            return ErrorCode.stale_controller_epoch
        self.states[partition] = state
        self.logs.add(partition)
        return ErrorCode.none

    @property
    def led(self) -> list[PartitionState]:
        return [state for state in self.states.values() if state.leader == self.id]


class World:
    """Brokers `ids`, of which all are alive, and the first controller, which has taken office."""

    def __init__(self, *ids: int, unclean: Iterable[str] = ()) -> None:
        self.zxid = 0
        self.nodes: dict[str, _Node] = {}
        self.brokers: dict[int, Broker] = {}
        self.logs: dict[int, set[TopicPartition]] = {}
        self.racks: dict[int, str] = {}
        self.unclean = set(unclean)
        self.epoch = 0
        self.notes: list[str] = []
        self.sent: list[Send] = []
        """Orders of the last event."""
        self.on_write: Callable[[Operation], None] = lambda _: None
        self.machine: ControllerMachine
        for broker_id in ids:
            self.register(broker_id)
        self.take_office()

    # The tree

    def write(self, operations: Iterable[Operation], parents: Iterable[str] = ()) -> None:
        self.zxid += 1
        for parent in parents:
            self.nodes.setdefault(parent, _Node(b"", 0, self.zxid))
        for operation in operations:
            self.on_write(operation)
            match operation:
                case Create(path, data):
                    assert path not in self.nodes, f"{path} exists"
                    self.nodes[path] = _Node(data, 0, self.zxid)
                case Set(path, data, version):
                    known = self.nodes[path]
                    assert version in (-1, known.version), f"{path} has version {known.version}, not {version}"
                    self.nodes[path] = _Node(data, known.version + 1, self.zxid)
                case Delete(path):
                    del self.nodes[path]

    def topics(self) -> dict[str, ReadTopic]:
        found = {}
        for path, node in self.nodes.items():
            parent, _, name = path.rpartition("/")
            if parent == znodes.TOPICS:
                topic_id, assignments = _decode_assignments(node.data)
                assert topic_id is not None
                found[name] = ReadTopic(topic_id, dict(assignments))
        return found

    def states(self) -> dict[TopicPartition, LeaderState]:
        found = {}
        for name, topic in self.topics().items():
            for index in topic.assignments:
                node = self.nodes.get(znodes.state_path(name, index))
                if node is not None:
                    state = znodes.decode_leader_state(node.data, node.version, node.mzxid)
                    found[TopicPartition(name, index)] = state
        return found

    def deletions(self) -> list[str]:
        return [path.rpartition("/")[2] for path in self.nodes if path.startswith(f"{znodes.DELETIONS}/")]

    def assignment(self, topic: str, index: int) -> Assignment:
        return _decode_assignments(self.nodes[f"{znodes.TOPICS}/{topic}"].data)[1][index]

    # Events

    def take_office(self) -> None:
        """Let another controller take over."""
        self.epoch += 1
        self.machine = ControllerMachine(0, self.epoch, lambda topic: topic in self.unclean)
        self.carry_out(
            self.machine.take_office(Tree(self.registered(), self.topics(), self.states(), self.deletions()))
        )

    def registered(self) -> list[BrokerImage]:
        return [
            BrokerImage(broker.id, (Endpoint("PLAINTEXT", "h", 9000 + broker.id, "PLAINTEXT"),), None, broker.epoch)
            for broker in self.brokers.values()
        ]

    def register(self, broker_id: int) -> None:
        """Start a broker, which has the logs that it had before."""
        self.zxid += 1
        logs = self.logs.setdefault(broker_id, set())
        self.brokers[broker_id] = Broker(broker_id, self.zxid, logs, 0)

    def start(self, *ids: int) -> None:
        for broker_id in ids:
            self.register(broker_id)
        self.carry_out(self.machine.brokers_changed(self.registered()))

    def kill(self, *ids: int) -> None:
        for broker_id in ids:
            del self.brokers[broker_id]
        self.carry_out(self.machine.brokers_changed(self.registered()))

    def create(self, topic: str, *replicas: Sequence[int]) -> None:
        assignments = {index: Assignment(tuple(brokers)) for index, brokers in enumerate(replicas)}
        self.write([Create(znodes.topic_path(topic), znodes.encode_assignments(uuid.uuid4(), assignments))])
        self.notice_topics()

    def grow(self, topic: str, *added: Sequence[int]) -> None:
        known = self.topics()[topic]
        assignments = dict(known.assignments)
        for brokers in added:
            assignments[len(assignments)] = Assignment(tuple(brokers))
        self.write([Set(znodes.topic_path(topic), znodes.encode_assignments(known.topic_id, assignments))])
        self.carry_out(self.machine.topics_changed(list(self.topics()), {topic: self.topics()[topic]}))

    def notice_topics(self) -> None:
        topics = self.topics()
        known = self.machine.context.topic_ids
        new = {name: topic for name, topic in topics.items() if name not in known}
        self.carry_out(self.machine.topics_changed(list(topics), new))

    def delete(self, *topics: str) -> None:
        self.write([Create(znodes.deletion_path(topic)) for topic in topics])
        self.carry_out(self.machine.delete_topics(self.deletions()))

    def reassign(self, moves: Mapping[TopicPartition, Sequence[int] | None]) -> dict[TopicPartition, ErrorCode]:
        results, effects = self.machine.reassign(moves)
        self.carry_out(effects)
        return {partition: ErrorCode.none if error is None else error.code for partition, error in results.items()}

    def deliver(self, *ids: int) -> None:
        """Let brokers execute all orders that they have, and the controller handle the answers."""
        for broker_id in ids or tuple(self.brokers):
            broker = self.brokers.get(broker_id)
            while broker is not None and broker.inbox:
                self.deliver_one(broker)

    def deliver_one(self, broker: Broker) -> None:
        send, epoch = broker.inbox.popleft()
        results = broker.execute(send, epoch)
        if results and epoch == self.epoch:
            decide = self.machine.led if isinstance(send.order, Lead) else self.machine.stopped
            self.carry_out(decide(broker.id, results))

    def settle(self) -> None:
        """Deliver all orders, and all answers to them."""
        while any(broker.inbox for broker in self.brokers.values()):
            self.deliver()

    def carry_out(self, effects: Sequence[Effect], *, steps: int | None = None) -> None:
        """Write and send; with `steps`, only that many effects, as if the controller died then."""
        self.sent = []
        for effect in effects[:steps]:
            match effect:
                case Write(operations, parents):
                    self.write(operations, parents)
                case Remove(paths):
                    for path in paths:
                        self.nodes = {
                            known: node
                            for known, node in self.nodes.items()
                            if known != path and not known.startswith(f"{path}/")
                        }
                case Send(broker_id, epoch, _):
                    self.sent.append(effect)
                    broker = self.brokers.get(broker_id)
                    if broker is not None and broker.epoch == epoch:
                        broker.inbox.append((effect, self.epoch))
                case Note(text):
                    self.notes.append(text)
                case Connect() | Disconnect():
                    pass

    def orders(self, kind: type, broker_id: int | None = None) -> list[Send]:
        """Return the orders of the last event."""
        return [send for send in self.sent if isinstance(send.order, kind) and broker_id in (None, send.broker_id)]
