"""A member of a group of the consumer protocol (KIP-848), as the log knows it."""

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
"""The member epoch with which a member leaves for good."""
STATIC_LEAVE_EPOCH: Final = -2
"""The member epoch with which a static member leaves and keeps its place until its session times out."""


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

    @property
    def subscription(self) -> MemberSubscription:
        """What the member has said of itself, as its record has it."""
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
        """Where the member stands, as its record has it."""
        return CurrentAssignment(self.epoch, self.previous_epoch, self.state, self.assigned, self.revoking)
