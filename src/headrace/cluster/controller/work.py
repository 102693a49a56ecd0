"""The decisions about one event: changes to the context, and the resulting writes and orders. Pure."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

from headrace.cluster import znodes
from headrace.cluster.controller.batches import Batch, Send
from headrace.cluster.controller.context import Context
from headrace.cluster.image import BrokerImage, LeaderState
from headrace.cluster.store import Create, Operation, Set
from headrace.types import TopicPartition


class Write(NamedTuple):
    """Create missing `parents`, then execute `operations` in order."""

    operations: Sequence[Operation]
    parents: Sequence[str] = ()


class Remove(NamedTuple):
    """Delete these nodes, with everything below them, if they exist."""

    paths: Sequence[str]


class Connect(NamedTuple):
    """Open a channel to a newly registered broker, replacing an earlier one, or use a broker's new address."""

    broker: BrokerImage


class Disconnect(NamedTuple):
    """Close the channel to a broker, and forget the orders that wait in it."""

    broker_id: int


class Note(NamedTuple):
    """Write a line to the log."""

    text: str


Effect: TypeAlias = Write | Remove | Send | Connect | Disconnect | Note
"""Carry effects out in order. If a write fails, the context is ahead of the store, so the controller leaves office."""


class Work:
    """The changes of one event. `may_be_unclean` returns True for a topic with `unclean.leader.election.enable`."""

    def __init__(self, context: Context, may_be_unclean: Callable[[str], bool]) -> None:
        self.context = context
        self.may_be_unclean = may_be_unclean
        self.batch = Batch(context)
        self.unclean_elections = 0
        self._effects: list[Effect] = []
        self._operations: list[Operation] = []
        self._parents: dict[str, None] = {}

    def create_state(self, partition: TopicPartition, state: LeaderState) -> None:
        """Write the first state of a partition."""
        self._parents[znodes.partitions_path(partition.topic)] = None
        self._parents[znodes.partition_path(*partition)] = None
        self._operations.append(Create(znodes.state_path(*partition), _encoded(state)))
        self.context.states[partition] = state

    def set_state(self, partition: TopicPartition, state: LeaderState) -> LeaderState:
        """Write a new state of a partition, and return it with its version."""
        before = self.context.states[partition]
        state = state._replace(version=before.version + 1, controller_epoch=self.context.epoch, zxid=-1)
        self._operations.append(Set(znodes.state_path(*partition), _encoded(state), before.version))
        self.context.states[partition] = state
        return state

    def write_assignments(self, topic: str) -> None:
        """Write the assignments of a topic's partitions from the context."""
        context = self.context
        data = znodes.encode_assignments(context.topic_ids[topic], context.assignments[topic])
        self._operations.append(Set(znodes.topic_path(topic), data))

    def remove(self, paths: Iterable[str]) -> None:
        """Delete nodes after all earlier writes."""
        paths = tuple(paths)
        if paths:
            self._end_write()
            self._effects.append(Remove(paths))

    def note(self, text: str) -> None:
        self._effects.append(Note(text))

    def connect(self, broker: BrokerImage) -> None:
        self._effects.append(Connect(broker))

    def disconnect(self, broker_id: int) -> None:
        self._effects.append(Disconnect(broker_id))

    def flush(self) -> None:
        """End a step: its writes are carried out first, then its orders, then the next step."""
        self._end_write()
        self._effects += self.batch.take()

    def effects(self) -> list[Effect]:
        """Return all effects."""
        self.flush()
        return self._effects

    def _end_write(self) -> None:
        if self._operations:
            self._effects.append(Write(tuple(self._operations), tuple(self._parents)))
            self._operations, self._parents = [], {}


def _encoded(state: LeaderState) -> bytes:
    return znodes.encode_leader_state(state)
