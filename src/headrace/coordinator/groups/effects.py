"""The effects of group machines beside those of the runtime: answers, timers by name, and notes for the operator."""

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
    """The answer to one JoinGroup; `members` (id, instance id, metadata) is filled for the leader only."""

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
    """The answer to one SyncGroup."""

    error: ErrorCode = ErrorCode.none
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


class TimerKind(StrEnum):
    HEARTBEAT = "heartbeat"
    """A member, or a pending member, has not been heard of for its session timeout."""
    JOIN = "join"
    """The time that members have to rejoin is over."""
    SYNC = "sync"
    """The time that members have to ask for their assignment is over."""
    REVOCATION = "revocation"
    """The time that a member of the consumer protocol has to give up partitions is over."""
    ASSIGNMENT = "assignment"
    """A group of the consumer protocol may compute its next assignment."""


class Timer(NamedTuple):
    """Names one timer of a group; `member_id` for those of one member. In a group of the consumer protocol members of
    the classic one have their own joins and syncs.
    """

    kind: TimerKind
    member_id: str = ""

    def __str__(self) -> str:
        return str(self.kind)


class Happening(StrEnum):
    """What can happen in the life of a group; each is one line of its rebalance timeline."""

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
    UPGRADED = "is of the consumer protocol from now on"
    DOWNGRADED = "is of the classic protocol from now on"
    BUMPED = "rebalances towards a new assignment"
    TARGETED = "computed a new assignment"
    REVOKING = "was asked to give up partitions"
    RECONCILED = "has its new assignment"
    AWAY = "left and keeps its place until its session times out"
    STALLED = "cannot complete the rebalance"
    LOADED = "was read by its coordinator"
    DELETED = "was deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """One thing that happened to the group (no member) or to one of its members, and why."""

    what: Happening
    generation: int
    member_id: str = ""
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Downgraded:
    """The group has become one of the classic protocol. `protocols` are soft state: members send them again after a
    restart.
    """

    protocols: Mapping[str, tuple[tuple[str, bytes], ...]]
    """Member id to the names of its assignors and its subscription for each."""
    reason: str | None
    """Why it has to rebalance; None where its members keep what they have."""


Effect: TypeAlias = Complete | ScheduleTimer[Timer] | CancelTimer[Timer] | Write | Then | Note | Downgraded
