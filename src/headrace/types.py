"""Types shared by all packages. Imports no other module of Headrace."""

import uuid
from typing import Any, NamedTuple, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Contiguous bytes."""

Request: TypeAlias = Any
"""A decoded request: an instance of kio's class for this API and version."""


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class PartitionState(NamedTuple):
    """The leader and the replicas of one partition, as decided by the controller (LeaderAndIsr)."""

    topic: str
    topic_id: uuid.UUID
    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    is_new: bool
    """True if the broker that receives this state should not have a log of the partition yet."""
    controller_epoch: int = 0
    """The epoch of the controller that elected the leader."""
    partition_epoch: int = 0
    """The version of the state, which a change to the ISR must name."""
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    """Replicas that a reassignment adds and removes (KIP-455)."""
    leader_recovery_state: int = 0
    """1 while the partition recovers from an unclean election (KIP-704)."""


new_tuple = tuple.__new__
"""`new_tuple(SomeNamedTuple, values)` skips the constructor of the class, which is too slow for hot paths."""
