"""The common interface of groups of both protocols. Pure."""

from collections.abc import Iterator, Mapping, Sequence
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
    """Types of groups, named as in ListGroups."""

    CLASSIC = "classic"
    CONSUMER = "consumer"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberView:
    """A member and its assignment by topic. `is_waited_for` is True if the group's rebalance waits for it."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    is_waited_for: bool
    partitions: Mapping[str, Sequence[int]] = field(default_factory=dict)


Reads: TypeAlias = Mapping[str, frozenset[int] | None]
"""By topic: the partitions that members read; None for all."""

OffsetToCommit: TypeAlias = tuple[str, int, CommittedOffset]
"""Topic, partition and offset."""


class Group(Protocol):
    """A group of either protocol; times in ms. Classic members use `join`, `sync`, `heartbeat` and `leave` in both."""

    group_id: str

    @property
    def type(self) -> GroupType: ...

    @property
    def state(self) -> StrEnum: ...

    @property
    def generation(self) -> int:
        """The generation; in the consumer protocol, the group epoch."""

    @property
    def protocol_type(self) -> str | None: ...

    @property
    def is_empty(self) -> bool: ...

    @property
    def is_consumer(self) -> bool:
        """True if its members are consumers, of either protocol."""

    @property
    def size(self) -> int: ...

    def members_seen(self) -> Iterator[MemberView]:
        """Yield views of all members. The group may change in between."""

    def reads(self) -> Reads:
        """Return the subscribed topics, and the partitions of other topics that a client-side assignor assigned."""

    def is_subscribed_to(self, topic: str) -> bool: ...

    def offset_kept_from(self, commit_timestamp: int) -> int | None:
        """Return the start of an offset's retention time; None while it must be kept (KIP-211)."""

    def tombstones(self) -> WrittenRecords:
        """Return the tombstones that remove the group, except its offsets."""

    def join(self, request: Join, now_ms: int) -> Result[None]:
        """Handle JoinGroup. Raises the KafkaError to reply with."""

    def sync(self, request: Sync) -> Result[None]: ...

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> Result[ErrorCode]:
        """Handle a Heartbeat of a classic member.

        Raises KafkaError: unknown_member_id, fenced_instance_id, illegal_generation, coordinator_not_available.
        """

    def leave(self, leavers: Sequence[Leaver], now_ms: int) -> Result[list[ErrorCode]]:
        """Return an error code per leaver. Raises KafkaError(coordinator_not_available)."""

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
        """Check a commit and return its effects on the committing member. `knows_epochs`: the version of OffsetCommit
        supports the consumer protocol; `transactional`: TxnOffsetCommit.

        Raises KafkaError: unknown_member_id, fenced_instance_id, illegal_generation, rebalance_in_progress,
        coordinator_not_available, stale_member_epoch, unsupported_version.
        """

    def check_offset_fetch(self, member_id: str | None, epoch: int) -> None:
        """Check the member of an OffsetFetch.

        Raises KafkaError: unknown_member_id, stale_member_epoch, illegal_generation (a classic member).
        """

    def timer_fired(self, timer: Timer, now_ms: int) -> Result[None]:
        """Handle the expiry of a timer."""

    def loaded(self, now_ms: int) -> list[Effect]:
        """Start the session timers of a group loaded from the log."""

    def unload(self, error: ErrorCode, now_ms: int) -> list[Effect]:
        """Return effects that answer parked requests with `error`: the coordinator moves, or the broker stops."""

    def append_failed(self) -> None:
        """Handle a failed write of the records that the last call returned."""

    def check(self) -> None:
        """Assert every invariant; for tests."""
