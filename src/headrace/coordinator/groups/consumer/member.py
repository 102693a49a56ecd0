"""A member of a group of the consumer protocol (KIP-848), as stored in the log."""

from dataclasses import dataclass, field
from typing import Final

from headrace.coordinator.groups.records.consumer import (
    ClassicMemberMetadata,
    CurrentAssignment,
    MemberState,
    MemberSubscription,
    PartitionEpochs,
)

LEAVE_EPOCH: Final = -1
"""The member epoch of a member that leaves."""
STATIC_LEAVE_EPOCH: Final = -2
"""The member epoch of a static member that leaves but keeps its partitions until its session times out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMember:
    """An immutable member; timeouts in ms."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    """Names of subscribed topics, sorted."""
    regex: str = ""
    """Regular expression of subscribed topics; empty for none."""
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    """The assignor that the member prefers."""
    epoch: int = 0
    previous_epoch: int = 0
    """Accepted in heartbeats, because the reply with `epoch` may have been lost."""
    state: MemberState = MemberState.STABLE
    assigned: PartitionEpochs = field(default_factory=dict, hash=False)
    revoking: PartitionEpochs = field(default_factory=dict, hash=False)
    """Partitions that the member was asked to revoke and may still be reading."""
    classic: ClassicMemberMetadata | None = None
    """Set for a member that uses the classic protocol."""

    def is_reconciled_to(self, assignment_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == assignment_epoch

    @property
    def subscription(self) -> MemberSubscription:
        return MemberSubscription(
            self.instance_id,
            self.rack_id,
            self.client_id,
            self.client_host,
            self.topics,
            self.regex,
            self.rebalance_timeout_ms,
            self.assignor,
            self.classic,
        )

    @property
    def current(self) -> CurrentAssignment:
        return CurrentAssignment(self.epoch, self.previous_epoch, self.state, self.assigned, self.revoking)
