"""The cluster as the nodes in ZooKeeper describe it, followed by transaction, with checks of every write."""

import json
from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

from headrace.cluster import znodes
from headrace.cluster.image import NO_LEADER, Assignment, LeaderState
from headrace.types import TopicPartition
from tests.simulation.cluster.zookeeper import Changes, ZNode


class ViolationError(AssertionError):
    """An invariant does not hold."""


class Key(NamedTuple):
    """A partition of one topic id: a topic of the same name that is created later is another one."""

    topic: str
    partition: int
    topic_id: UUID

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def name(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class Moment(NamedTuple):
    """The controller and the registered brokers at some time."""

    controller_epoch: int
    brokers: dict[int, int]
    """Epochs by broker."""


class Store:
    """Brokers, topics and partitions.

    `note` gets all changes of states. `live` returns the brokers that the controller believes to be alive; None if it
    is not known.
    """

    def __init__(self, note: Callable[[str], None], live: Callable[[], set[int] | None]) -> None:
        self._note = note
        self._live = live
        self.may_be_unclean: set[str] = set()
        """Topics for which an operator has ever allowed an unclean election, or asked for one."""
        self.topic_ids: dict[str, UUID] = {}
        self.assignments: dict[Key, Assignment] = {}
        self.states: dict[Key, LeaderState] = {}
        self.brokers: dict[int, int] = {}
        """Epochs of the registered brokers."""
        self.controller: int | None = None
        """The broker in `/controller`."""
        self.controller_epoch = 0
        self.requested: set[str] = set()
        """Nodes below `/admin`."""
        self.changes = 0
        """Grows with every write of a topic, a partition, or a node below `/admin`, and with failures of the power."""
        self.tainted: set[Key] = set()
        """Partitions that may have lost committed records: after unclean elections, or failures of the power."""
        self.at_risk: dict[Key, set[int]] = {}
        """Brokers in the ISR that have lost data since they joined, or while the request to add them was under way."""
        self._lost_power: dict[int, int] = {}
        """The epoch under which a broker last lost its power."""
        self.last_producer_id = -1
        self.moved: dict[tuple[Key, int], Moment] = {}
        """Replicas that were moved away from a broker, and the moment when the move began."""
        self.deleted: dict[UUID, Moment] = {}
        """Deleted topics, and the moment when the deletion began."""
        self._assigned: dict[Key, Moment] = {}
        """The moments when assignments were last written."""
        self._deleting: dict[str, Moment] = {}

    def key_of(self, name: TopicPartition) -> Key | None:
        topic_id = self.topic_ids.get(name.topic)
        return None if topic_id is None else Key(name.topic, name.partition, topic_id)

    def state(self, name: TopicPartition) -> LeaderState | None:
        key = self.key_of(name)
        return None if key is None else self.states.get(key)

    def is_deleting(self, topic: str) -> bool:
        return znodes.deletion_path(topic) in self.requested

    def may_have_missed(self, broker: int, change: Moment) -> bool:
        """Return True if a broker may never hear of a replica or topic that was removed: as in Kafka, only the
        controller that removes it sends orders to the brokers that are registered then.
        """
        epoch = self.brokers.get(broker)
        return change.controller_epoch != self.controller_epoch or change.brokers.get(broker) != epoch

    def _now(self) -> Moment:
        return Moment(self.controller_epoch, dict(self.brokers))

    def lost_power(self, broker: int) -> None:
        self.changes += 1
        if broker in self.brokers:
            self._lost_power[broker] = self.brokers[broker]
        for key, state in self.states.items():
            if broker in state.isr:
                self.at_risk.setdefault(key, set()).add(broker)
                if set(state.isr) <= self.at_risk[key]:
                    self.tainted.add(key)

    # Transactions

    def committed(self, changes: Changes) -> None:
        """Follow a transaction. Raises ViolationError."""
        for path, node in changes.items():
            match path.split("/")[1:]:
                case ["controller"]:
                    self.controller = None if node is None else json.loads(node.data)["brokerid"]
                    self._note(f"zookeeper: the controller is {self.controller}")
                case ["controller_epoch"] if node is not None:
                    epoch = int(node.data)
                    if epoch <= self.controller_epoch:
                        raise ViolationError(f"the controller's epoch changes from {self.controller_epoch} to {epoch}")
                    self.controller_epoch = epoch
                case ["latest_producer_id_block"] if node is not None and node.data:
                    first, last = znodes.decode_producer_ids(node.data)
                    if first <= self.last_producer_id:
                        raise ViolationError(f"producer id {first} is allocated again")
                    self.last_producer_id = last
                case ["brokers", "ids", number]:
                    self._registered(int(number), node)
                case ["brokers", "topics", topic]:
                    self._topic(topic, node)
                case ["brokers", "topics", topic, "partitions", index, "state"]:
                    self._state(TopicPartition(topic, int(index)), node)
                case ["admin", "delete_topics", _] | ["admin", "reassign_partitions" | "preferred_replica_election"]:
                    self.changes += 1
                    self._note(f"zookeeper: {path} {'is deleted' if node is None else node.data.decode()}")
                    (self.requested.discard if node is None else self.requested.add)(path)
                    if node is not None:
                        self._deleting[path] = self._now()

    def _registered(self, broker: int, node: ZNode | None) -> None:
        if node is None:
            self.brokers.pop(broker, None)
            self._note(f"zookeeper: broker {broker} is gone")
        else:
            self.brokers[broker] = node.stat.czxid
            self._note(f"zookeeper: broker {broker} has registered with epoch {node.stat.czxid}")

    def _topic(self, topic: str, node: ZNode | None) -> None:
        self.changes += 1
        if node is None:
            self._note(f"zookeeper: topic {topic} is deleted")
            topic_id = self.topic_ids.pop(topic)
            self.deleted[topic_id] = self._deleting[znodes.deletion_path(topic)]
            for mapping in (self.assignments, self.states, self.at_risk, self._assigned):
                for key in [key for key in mapping if key.topic_id == topic_id]:
                    del mapping[key]
            return
        found, assignments = znodes.decode_assignments(node.data)
        assert found is not None
        self._note(f"zookeeper: topic {topic} has {[tuple(item) for item in assignments.values()]}")
        self.topic_ids[topic] = found
        keys = {Key(topic, index, found): assignment for index, assignment in assignments.items()}
        for key in self.assignments:
            if key.topic_id == found and key not in keys:
                raise ViolationError(f"{key} vanishes")
        for key, assignment in keys.items():
            before = self.assignments.get(key)
            if before == assignment:
                continue
            self._reassigned(key, before, assignment)
            for broker in set(before.replicas if before else ()) - set(assignment.replicas):
                self.moved[key, broker] = self._assigned[key]
            for broker in assignment.replicas:
                self.moved.pop((key, broker), None)
            self.assignments[key] = assignment
            self._assigned[key] = self._now()

    def _reassigned(self, key: Key, before: Assignment | None, after: Assignment) -> None:
        """Check that a reassignment ends only when its target is in sync."""
        state = self.states.get(key)
        if before is None or not before.is_moving or after.is_moving or state is None:
            return
        if not set(after.replicas) <= {*state.isr, *before.origin}:
            raise ViolationError(f"{key}: the reassignment {before} ends as {after} with the ISR {state.isr}")
        if set(after.replicas) == set(before.target) and not set(after.replicas) <= set(state.isr):
            raise ViolationError(f"{key}: the reassignment {before} ends with the ISR {state.isr}")

    def _state(self, name: TopicPartition, node: ZNode | None) -> None:
        self.changes += 1
        key = self.key_of(name)
        if key is None or node is None:
            return
        state = znodes.decode_leader_state(node.data, node.stat.version, node.stat.mzxid)
        self._note(
            f"zookeeper: {name} leader {state.leader} epoch {state.leader_epoch} isr {state.isr} v{state.version}"
            f" by controller epoch {state.controller_epoch}"
        )
        before = self.states.get(key)
        self.states[key] = state
        self._check(key, before, state)
        for member in set(state.isr) - set(() if before is None else before.isr):
            if member in self.brokers and self._lost_power.get(member) == self.brokers[member]:
                self.at_risk.setdefault(key, set()).add(member)
        risky = self.at_risk.get(key)
        if risky is not None:
            if state.leader in risky or set(state.isr) <= risky:
                self.tainted.add(key)
            risky &= set(state.isr)

    def _check(self, key: Key, before: LeaderState | None, state: LeaderState) -> None:
        change = f"{key}: {before} -> {state}"
        if state.controller_epoch != self.controller_epoch:
            raise ViolationError(f"{change}, but the controller has epoch {self.controller_epoch}")
        if not state.isr or (state.leader != NO_LEADER and state.leader not in state.isr):
            raise ViolationError(f"{change}: the leader is not in the ISR")
        if not set(state.isr) <= set(self.assignments[key].replicas):
            raise ViolationError(f"{change}: the ISR is not in {self.assignments[key]}")
        if before is None:
            return
        if state.version <= before.version:
            raise ViolationError(f"{change}: the version")
        if state.leader_epoch < before.leader_epoch:
            raise ViolationError(f"{change}: the leader epoch goes back")
        if state.leader != before.leader and state.leader_epoch == before.leader_epoch:
            raise ViolationError(f"{change}: two leaders in a leader epoch")
        if state.leader != NO_LEADER and state.leader not in before.isr:
            if state.recovery != 1:
                raise ViolationError(f"{change}: the leader was not in the ISR")
            if key.topic not in self.may_be_unclean:
                raise ViolationError(f"{change}: nobody has allowed an unclean election")
            self.tainted.add(key)
            return
        joined = set(state.isr) - set(before.isr)
        live = self._live() if joined else None
        if live is not None and not joined <= live:
            raise ViolationError(f"{change}: {joined - live} joins the ISR, and is dead or stopping")
