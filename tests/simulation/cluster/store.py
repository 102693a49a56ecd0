"""The state of the cluster in ZooKeeper, written by controllers. Every write checks versions and epochs."""

from collections.abc import Mapping
from typing import Final, NamedTuple
from uuid import UUID

from headrace.types import TopicPartition

NO_LEADER: Final = -1


class State(NamedTuple):
    """One partition."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]
    version: int = 0
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    target: tuple[int, ...] | None = None
    """The replicas of a reassignment when it is complete."""


class DeposedError(Exception):
    """There is a newer controller."""


class Store:
    """The topics, the partitions, the registered brokers and the epoch of the controller."""

    def __init__(self) -> None:
        self.topic_ids: dict[str, UUID] = {}
        self.partitions: dict[TopicPartition, State] = {}
        self.brokers: dict[int, int] = {}
        """Epochs of the registered brokers."""
        self.handled: dict[int, int] = {}
        """The registrations that a controller has handled."""
        self.stopping: dict[tuple[TopicPartition, int], int] = {}
        """Leader epochs of replicas that have to be deleted."""
        self.controller_epoch = 0
        self.zxid = 100
        self.changes = 0
        """Grows with every write."""

    def next_zxid(self) -> int:
        self.zxid += 1
        return self.zxid

    def write(self, topic_partition: TopicPartition, state: State, controller_epoch: int) -> State:
        """Replace the state of this version, and return it with its new version."""
        if controller_epoch != self.controller_epoch:
            raise DeposedError
        known = self.partitions[topic_partition]
        assert state.version == known.version, f"{topic_partition}: {state} over {known}"
        assert state.leader_epoch >= known.leader_epoch, f"{topic_partition}: {state} over {known}"
        assert state.leader == NO_LEADER or state.leader in state.isr, f"{topic_partition}: {state}"
        assert set(state.isr) <= set(state.replicas), f"{topic_partition}: {state}"
        written = state._replace(version=state.version + 1)
        self.partitions[topic_partition] = written
        self.changes += 1
        return written

    def of_topics(self) -> Mapping[str, list[tuple[int, State]]]:
        topics: dict[str, list[tuple[int, State]]] = {}
        for (topic, index), state in self.partitions.items():
            topics.setdefault(topic, []).append((index, state))
        return topics
