"""Effects that only groups have: their replies and timers, and events for the operator."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from headrace.coordinator.runtime.results import CancelTimer, Complete, ScheduleTimer, Then, Write
from headrace.errors import ErrorCode

UNKNOWN_MEMBER_ID = ""
NO_GENERATION = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinResult:
    """The reply to a JoinGroup; only the leader gets `members` (id, instance id, metadata)."""

    error: ErrorCode = ErrorCode.none
    member_id: str = UNKNOWN_MEMBER_ID
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[tuple[str, str | None, bytes], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResult:
    """The reply to a SyncGroup."""

    error: ErrorCode = ErrorCode.none
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


class TimerKind(StrEnum):
    HEARTBEAT = "heartbeat"
    """The session of a member or pending member has timed out."""
    JOIN = "join"
    """The time for members to rejoin is over."""
    SYNC = "sync"
    """The time for members to fetch their assignment is over."""
    REVOCATION = "revocation"
    """The time for a member of the consumer protocol to revoke partitions is over."""
    ASSIGNMENT = "assignment"
    """A group of the consumer protocol may compute its next target assignment."""


class Timer(NamedTuple):
    """A timer of a group, or of one member if it has a `member_id`. Classic members of a consumer group have their own
    JOIN and SYNC timers.
    """

    kind: TimerKind
    member_id: str = ""

    def __str__(self) -> str:
        return str(self.kind)


class Happening(StrEnum):
    """An event in the rebalance timeline of a group."""

    MEMBER_ID_ASSIGNED = "was given its member id and asked to rejoin with it"
    JOINED = "joined"
    REJOINED = "rejoined"
    REPLACED = "replaced the static member's earlier id"
    FENCED = "was fenced"
    LEFT = "left"
    TIMED_OUT = "timed out and was removed"
    NOT_REJOINED = "did not rejoin in time and was removed"
    BECAME_LEADER = "became the leader"
    ASSIGNED = "sent the assignment"
    REBALANCING = "is preparing to rebalance"
    COMPLETING = "completed the join phase"
    STABLE = "is stable"
    EMPTY = "is empty"
    SUBSCRIBED = "changed its subscription"
    UPGRADED = "switched to the consumer protocol"
    DOWNGRADED = "switched to the classic protocol"
    BUMPED = "rebalances towards a new assignment"
    TARGETED = "computed a new assignment"
    REVOKING = "was asked to revoke partitions"
    RECONCILED = "has its new assignment"
    AWAY = "left and keeps its place until its session times out"
    STALLED = "cannot complete the rebalance"
    LOADED = "was loaded by its coordinator"
    DELETED = "was deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """An event of the group (without a member) or of one of its members, and the reason for it."""

    what: Happening
    generation: int
    member_id: str = ""
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Downgraded:
    """The group has switched to the classic protocol."""

    protocols: Mapping[str, tuple[tuple[str, bytes], ...]]
    """By member id: assignors and their subscriptions. Not stored: members send them again after a restart."""
    reason: str | None
    """The reason for a rebalance; None if the members keep their assignments."""


Effect: TypeAlias = Complete | ScheduleTimer[Timer] | CancelTimer[Timer] | Write | Then | Note | Downgraded
