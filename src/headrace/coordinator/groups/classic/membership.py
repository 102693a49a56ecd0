"""The members of a classic group: static instances, pending members, the leader and the shared protocols.

Bookkeeping only: no states, generations, timers or records.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.coordinator.groups.requests import Protocols


@dataclass(slots=True, kw_only=True)
class ClassicMember:
    """A member. `awaiting_join` and `awaiting_sync` are the `reply_to` of parked requests."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    assignment: bytes = b""
    awaiting_join: object | None = None
    awaiting_sync: object | None = None
    is_new: bool = False
    """True until its first join phase completes. It sends no heartbeats yet, so a parked join may be abandoned."""

    def metadata(self, protocol_name: str | None) -> bytes:
        """Return the member's metadata for this protocol; empty if the member does not support the protocol."""
        for name, metadata in self.protocols:
            if name == protocol_name:
                return metadata
        return b""

    @property
    def is_alive_while_waiting(self) -> bool:
        """True if a parked request counts as a heartbeat, as it does for all but new members."""
        return not self.is_new and (self.awaiting_join is not None or self.awaiting_sync is not None)


class Membership:
    """The members of one group, in the order in which they joined."""

    __slots__ = (
        "_awaiting_join",
        "_protocol_counts",
        "leader_id",
        "members",
        "pending_joins",
        "pending_syncs",
        "static",
    )

    def __init__(self) -> None:
        self.members: dict[str, ClassicMember] = {}
        self.static: dict[str, str] = {}
        """Member ids by instance id."""
        self.pending_joins: dict[str, tuple[str, str]] = {}
        """Member ids assigned by MEMBER_ID_REQUIRED that have not joined yet, with client id and host."""
        self.pending_syncs: set[str] = set()
        """Members of the current generation that have not sent SyncGroup yet."""
        self.leader_id: str | None = None
        self._protocol_counts: dict[str, int] = {}
        self._awaiting_join = 0

    def __len__(self) -> int:
        return len(self.members)

    @property
    def awaiting_join_count(self) -> int:
        return self._awaiting_join

    @property
    def all_joined(self) -> bool:
        return len(self.members) == self._awaiting_join and not self.pending_joins

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((m.rebalance_timeout_ms for m in self.members.values()), default=0)

    def add(self, member: ClassicMember, reply_to: object | None = None) -> None:
        """Add a new member; the first one becomes the leader."""
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id
        self.members[member.member_id] = member
        self._count(member.protocols, +1)
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.park_join(member, reply_to)
        self.pending_joins.pop(member.member_id, None)

    def remove(self, member_id: str) -> ClassicMember | None:
        """Remove and return a member; None if it was only pending. The oldest member succeeds a removed leader."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self._count(member.protocols, -1)
            self.park_join(member, None)
            if member.instance_id is not None:
                self.static.pop(member.instance_id, None)
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)
        self.pending_joins.pop(member_id, None)
        self.pending_syncs.discard(member_id)
        return member

    def rename(self, old_id: str, new_id: str) -> ClassicMember:
        """Change the id of a static member, which keeps its assignment and leadership."""
        member = self.members.pop(old_id)
        assert member.instance_id is not None
        self.pending_syncs.discard(old_id)
        member.member_id = new_id
        self.members[new_id] = member
        self.static[member.instance_id] = new_id
        if self.leader_id == old_id:
            self.leader_id = new_id
        return member

    def update(
        self, member: ClassicMember, protocols: Protocols, rebalance_timeout_ms: int, session_timeout_ms: int
    ) -> None:
        self._count(member.protocols, -1)
        member.protocols = protocols
        self._count(protocols, +1)
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms

    def park_join(self, member: ClassicMember, reply_to: object | None) -> None:
        """Set or clear the member's parked join."""
        self._awaiting_join += (reply_to is not None) - (member.awaiting_join is not None)
        member.awaiting_join = reply_to

    def elect_joined_leader(self) -> bool:
        """Replace a leader that has not rejoined. Return False if no member has."""
        if self.leader_id is None:
            return False
        if self.members[self.leader_id].awaiting_join is not None:
            return True
        for member in self.members.values():
            if member.awaiting_join is not None:
                self.leader_id = member.member_id
                return True
        return False

    def shares_a_protocol(self, names: Iterable[str]) -> bool:
        """Return True if all members support one of `names`."""
        return any(self._protocol_counts.get(name, 0) == len(self.members) for name in names)

    def select_protocol(self) -> str:
        """Return the protocol that most members prefer among those that all support."""
        candidates = {name for name, count in self._protocol_counts.items() if count == len(self.members)}
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = next(name for name, _ in member.protocols if name in candidates)
            votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=votes.__getitem__)

    def _count(self, protocols: Protocols, step: int) -> None:
        for name in {name for name, _ in protocols}:
            count = self._protocol_counts.get(name, 0) + step
            if count:
                self._protocol_counts[name] = count
            else:
                self._protocol_counts.pop(name, None)

    def check(self) -> None:
        """Assert every invariant; for tests."""
        assert all(member_id == m.member_id for member_id, m in self.members.items())
        assert self.static == {m.instance_id: m.member_id for m in self.members.values() if m.instance_id is not None}
        assert self._awaiting_join == sum(m.awaiting_join is not None for m in self.members.values())
        assert not self.pending_joins.keys() & self.members.keys()
        assert self.pending_syncs <= self.members.keys()
        assert (self.leader_id in self.members) if self.members else self.leader_id is None
        if self.members:
            assert self.shares_a_protocol(self._protocol_counts), "no protocol is supported by every member"
            assert len({m.protocol_type for m in self.members.values()}) == 1
