"""The controller's view of the cluster: brokers, assignments, leaders, and phases of partitions and replicas. Pure.

Only the functions of this package change it, one event at a time, together with the writes that make it durable.
"""

import uuid
from collections.abc import Iterator
from copy import copy
from typing import NamedTuple

from headrace.cluster.commands import DURING_DELETION
from headrace.cluster.controller.transitions import PartitionPhase, ReplicaPhase
from headrace.cluster.image import NO_LEADER, Assignment, BrokerImage, LeaderState
from headrace.types import TopicPartition

UNKNOWN_EPOCH = -1


class Replica(NamedTuple):
    """One replica of a partition."""

    partition: TopicPartition
    broker: int


class Context:
    """The state of the controller on broker `controller_id` in controller epoch `epoch`."""

    def __init__(self, controller_id: int, epoch: int) -> None:
        self.controller_id = controller_id
        self.epoch = epoch
        self.brokers: dict[int, BrokerImage] = {}
        """Registered brokers, including those that are shutting down."""
        self.stopping: set[int] = set()
        """Brokers that are shutting down."""
        self.offline_logs: dict[int, set[TopicPartition]] = {}
        """By broker, the partitions in failed log directories."""
        self.topic_ids: dict[str, uuid.UUID] = {}
        self.topic_names: dict[uuid.UUID, str] = {}
        self.assignments: dict[str, dict[int, Assignment]] = {}
        self.states: dict[TopicPartition, LeaderState] = {}
        self.partition_phases: dict[TopicPartition, PartitionPhase] = {}
        self.replica_phases: dict[Replica, ReplicaPhase] = {}
        self.moving: set[TopicPartition] = set()
        """Partitions whose replicas are being reassigned."""
        self.deleting: set[str] = set()
        """Topics to delete."""
        self.deletion_started: set[str] = set()
        """Topics in `deleting` whose partitions are no longer served."""
        self.undeletable: set[str] = set()
        """Topics in `deleting` that cannot be deleted now: a replica is offline, or its deletion has failed."""

    def copy(self) -> "Context":
        """Return a copy that later changes do not affect."""
        copied = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, (dict, set)):
                setattr(copied, name, value.copy())
        copied.assignments = {topic: assignments.copy() for topic, assignments in self.assignments.items()}
        copied.offline_logs = {broker: offline.copy() for broker, offline in self.offline_logs.items()}
        return copied

    # Brokers

    @property
    def live(self) -> set[int]:
        """Brokers that may lead, or join an ISR."""
        return self.brokers.keys() - self.stopping

    def is_online(self, broker: int, partition: TopicPartition, *, or_stopping: bool = False) -> bool:
        """Return True if the broker can serve the partition; with `or_stopping`, also while it shuts down."""
        if broker not in self.brokers or (not or_stopping and broker in self.stopping):
            return False
        return partition not in self.offline_logs.get(broker, ())

    # Topics

    def add_topic(self, name: str, topic_id: uuid.UUID) -> None:
        self.topic_ids[name] = topic_id
        self.topic_names[topic_id] = name
        self.assignments.setdefault(name, {})

    def remove_topic(self, name: str) -> None:
        for partition in self.partitions_of(name):
            self.states.pop(partition, None)
            self.partition_phases.pop(partition, None)
            for broker in self.assignment(partition).replicas:
                self.replica_phases.pop(Replica(partition, broker), None)
            self.moving.discard(partition)
        self.topic_names.pop(self.topic_ids.pop(name), None)
        del self.assignments[name]
        for topics in (self.deleting, self.deletion_started, self.undeletable):
            topics.discard(name)

    def partitions_of(self, topic: str) -> list[TopicPartition]:
        return [TopicPartition(topic, index) for index in self.assignments.get(topic, ())]

    def assignment(self, partition: TopicPartition) -> Assignment:
        """Return the replicas of a partition; an empty assignment if it does not exist."""
        return self.assignments.get(partition.topic, {}).get(partition.partition, _NONE)

    def assign(self, partition: TopicPartition, assignment: Assignment) -> None:
        self.assignments[partition.topic][partition.partition] = assignment

    def partitions(self) -> Iterator[TopicPartition]:
        for topic, assignments in self.assignments.items():
            for index in assignments:
                yield TopicPartition(topic, index)

    def exists(self, partition: TopicPartition) -> bool:
        return partition.partition in self.assignments.get(partition.topic, ())

    def leader_epoch(self, partition: TopicPartition) -> int:
        """Return the leader epoch for StopReplica: -2, which overrides all, if the topic is being deleted (KIP-570)."""
        if partition.topic in self.deleting:
            return DURING_DELETION
        state = self.states.get(partition)
        return UNKNOWN_EPOCH if state is None else state.leader_epoch

    # Replicas

    def replicas_on(self, brokers: set[int]) -> list[Replica]:
        return [
            Replica(TopicPartition(topic, index), broker)
            for topic, assignments in self.assignments.items()
            for index, assignment in assignments.items()
            for broker in assignment.replicas
            if broker in brokers
        ]

    def replicas_of(self, topic: str) -> list[Replica]:
        return [
            Replica(TopicPartition(topic, index), broker)
            for index, assignment in self.assignments[topic].items()
            for broker in assignment.replicas
        ]

    def in_phase(self, topic: str, phase: ReplicaPhase) -> list[Replica]:
        return [replica for replica in self.replicas_of(topic) if self.replica_phases.get(replica) is phase]

    def led_by(self, broker: int) -> list[TopicPartition]:
        """Return the partitions with several replicas that a broker leads."""
        return [
            partition
            for partition, state in self.states.items()
            if state.leader == broker
            and partition.topic not in self.deleting
            and len(self.assignment(partition).replicas) > 1
        ]

    def with_offline_leader(self) -> list[TopicPartition]:
        return [
            partition
            for partition, state in self.states.items()
            if partition.topic not in self.deleting and not self.is_online(state.leader, partition)
        ]

    # Metrics

    def offline_count(self) -> int:
        """Return the number of partitions that have lost their leader."""
        return sum(
            phase is PartitionPhase.OFFLINE and partition.topic not in self.deletion_started
            for partition, phase in self.partition_phases.items()
        )

    def imbalance_count(self) -> int:
        """Return the number of partitions that their preferred replica does not lead."""
        return sum(
            partition.topic not in self.deleting and state.leader != _first(self.assignment(partition))
            for partition, state in self.states.items()
        )


def _first(assignment: Assignment) -> int:
    return assignment.replicas[0] if assignment.replicas else NO_LEADER


_NONE = Assignment(())
