"""Types shared by all packages. Imports no other module."""

import uuid
from typing import Any, NamedTuple, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Contiguous bytes that can be sliced and written without a copy."""

Request: TypeAlias = Any
"""A decoded request: an instance of the schema class of its version. Only the wire package names these classes."""


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
    """True if no replica has ever had a log of this partition."""
    controller_epoch: int = 0
    """The epoch of the controller that elected the leader."""
    partition_epoch: int = 0
    """The version of the state (partition epoch). A change to the ISR must be based on the latest one."""
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    """Replicas that a reassignment adds and removes (KIP-455)."""
    leader_recovery_state: int = 0
    """1 while the partition recovers from an unclean election (KIP-704)."""


new_tuple = tuple.__new__
"""`new_tuple(SomeNamedTuple, values)` skips the class's constructor, which is several times slower: for hot paths."""
