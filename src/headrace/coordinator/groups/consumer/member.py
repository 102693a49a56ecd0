"""A member of a group of the consumer protocol (KIP-848), as the log knows it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

LEAVE_EPOCH: Final = -1
"""The member epoch with which a member leaves for good."""
STATIC_LEAVE_EPOCH: Final = -2
"""The member epoch with which a static member leaves and keeps its place until its session times out."""


class TopicIdPartition(NamedTuple):
    topic_id: bytes
    """16 bytes."""
    partition: int


Partitions: TypeAlias = frozenset[TopicIdPartition]
PartitionEpochs: TypeAlias = Mapping[TopicIdPartition, int]
"""Partition to the member epoch in which it was given to its member."""


class ClassicMemberMetadata(NamedTuple):
    """What a member that speaks the classic protocol has said of itself; timeout in ms."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    """Names of its assignors, best first, each with its subscription."""


class MemberState(IntEnum):
    """How far a member is on its way to its target assignment; the numbers are those of its record."""

    STABLE = 0
    """It has what the target assignment of its epoch gives it."""
    UNREVOKED_PARTITIONS = 1
    """It was asked to give up partitions, and has not yet said that it did."""
    UNRELEASED_PARTITIONS = 2
    """It waits for partitions that other members have not given up yet."""
    UNKNOWN = 127
    """Written by a newer coordinator: the member has to start anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMember:
    """Replaced, never changed; timeouts in ms."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    """Subscribed by name, sorted."""
    regex: str = ""
    """Subscribed by regular expression; empty for none."""
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    """The assignor that the member would like."""
    epoch: int = 0
    previous_epoch: int = 0
    """Heartbeats with it are accepted: the answer that told of `epoch` may have been lost."""
    state: MemberState = MemberState.STABLE
    assigned: PartitionEpochs = field(default_factory=dict, hash=False)
    revoking: PartitionEpochs = field(default_factory=dict, hash=False)
    """What the member was asked to give up and may still be reading."""
    classic: ClassicMemberMetadata | None = None
    """Of a member that speaks the classic protocol."""

    def is_reconciled_to(self, assignment_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == assignment_epoch
