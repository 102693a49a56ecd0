"""Requests of the classic protocol, independent of their version."""

from dataclasses import dataclass
from typing import TypeAlias

Protocols: TypeAlias = tuple[tuple[str, bytes], ...]
"""A member's assignors, preferred first, with its metadata for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """A JoinGroup request. `new_member_id` is the id to assign to a member without one; timeouts in ms."""

    reply_to: object
    member_id: str
    new_member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    protocol_type: str
    protocols: Protocols
    session_timeout_ms: int
    rebalance_timeout_ms: int
    requires_known_member_id: bool
    supports_skipping_assignment: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """A SyncGroup request; only the leader's contains assignments."""

    reply_to: object
    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol_name: str | None
    assignments: dict[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaver:
    """A member of a LeaveGroup request; admins identify static members by instance id alone."""

    member_id: str
    instance_id: str | None
    reason: str
