"""The interface of a group, of whichever protocol: what the table of groups, its history and its APIs need. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, TypeAlias

from headrace.coordinator.groups.effects import Effect, Timer
from headrace.coordinator.groups.records.codec import WrittenRecords
from headrace.coordinator.groups.records.offsets import CommittedOffset
from headrace.coordinator.groups.requests import (
    Join,
    Leaver,
    Sync,
)
from headrace.coordinator.runtime.results import Result
from headrace.errors import ErrorCode


class GroupType(StrEnum):
    """By the names that ListGroups shows."""

    CLASSIC = "classic"
    CONSUMER = "consumer"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberView:
    """One member; `partitions` is topic to what it reads, `is_waited_for` whether the group waits for it now."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    is_waited_for: bool
    partitions: Mapping[str, Sequence[int]] = field(default_factory=dict)


Reads: TypeAlias = Mapping[str, frozenset[int] | None]
"""Topic to the partitions that the members of a group read; None for all partitions."""

OffsetToCommit: TypeAlias = tuple[str, int, CommittedOffset]
"""Topic, partition, and what to commit for it."""


class Group(Protocol):
    """Times in ms. Members of the classic protocol send `join`, `sync`, `heartbeat` and `leave` to groups of both."""

    group_id: str

    @property
    def type(self) -> GroupType: ...

    @property
    def state(self) -> StrEnum: ...

    @property
    def generation(self) -> int:
        """Of a group of the consumer protocol, its epoch."""

    @property
    def protocol_type(self) -> str | None: ...

    @property
    def is_empty(self) -> bool: ...

    @property
    def is_consumer(self) -> bool:
        """Whether its members are consumers, of either protocol."""

    @property
    def size(self) -> int:
        """Number of members."""

    def members_seen(self) -> list[MemberView]:
        """In the order in which they joined."""

    def reads(self) -> Reads:
        """Subscribed topics, and partitions of others that a client's own assignor has given to a member."""

    def is_subscribed_to(self, topic: str) -> bool: ...

    def offset_kept_from(self, commit_timestamp: int) -> int | None:
        """From when the retention of an offset counts; None while it must be kept (KIP-211)."""

    def tombstones(self) -> WrittenRecords:
        """Remove all of the group, offsets excepted."""

    def join(self, request: Join, now_ms: int) -> Result[None]:
        """JoinGroup. Raises KafkaError, which is the answer."""

    def sync(self, request: Sync) -> Result[None]: ...

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> Result[ErrorCode]:
        """Raises KafkaError: unknown_member_id, fenced_instance_id, illegal_generation, coordinator_not_available."""

    def leave(self, leavers: Sequence[Leaver], now_ms: int) -> Result[list[ErrorCode]]:
        """One error code each. Raises KafkaError(coordinator_not_available)."""

    def check_offset_commit(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        offsets: Sequence[OffsetToCommit],
        *,
        knows_epochs: bool = True,
        transactional: bool = False,
    ) -> list[Effect]:
        """The effects of a commit on the member that commits, if it is one. `knows_epochs`: a version of OffsetCommit
        that members of the consumer protocol may use; `transactional`: TxnOffsetCommit.

        Raises KafkaError: unknown_member_id, fenced_instance_id, illegal_generation, rebalance_in_progress,
        coordinator_not_available, stale_member_epoch, unsupported_version.
        """

    def check_offset_fetch(self, member_id: str | None, epoch: int) -> None:
        """Raises KafkaError: unknown_member_id, stale_member_epoch, illegal_generation (a classic member)."""

    def timer_fired(self, timer: Timer, now_ms: int) -> Result[None]:
        """A timer that was scheduled and not cancelled has run out."""

    def loaded(self, now_ms: int) -> list[Effect]:
        """The group has been read from the log: expect heartbeats."""

    def unload(self, error: ErrorCode, now_ms: int) -> list[Effect]:
        """The group goes away: another coordinator takes it, or the broker stops."""

    def append_failed(self) -> None:
        """The latest decision could not be written."""

    def check(self) -> None:
        """Assert every invariant; for tests."""
