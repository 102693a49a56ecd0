"""The request and reply of ConsumerGroupHeartbeat, independent of their version."""

from collections.abc import Collection
from dataclasses import dataclass

from headrace.coordinator.groups.consumer.member import LEAVE_EPOCH, STATIC_LEAVE_EPOCH
from headrace.coordinator.groups.records.consumer import Partitions
from headrace.errors import ErrorCode, KafkaError


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeat:
    """A heartbeat; None means unchanged. `new_member_id` is for a member that provides none (version 0); timeouts in
    ms.
    """

    member_id: str
    new_member_id: str
    epoch: int
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    topics: tuple[str, ...] | None
    regex: str | None
    assignor: str | None
    owned: Partitions | None
    provides_member_id: bool

    @property
    def is_full(self) -> bool:
        """True if all fields are set, as in the first heartbeat and after a failed one."""
        has_subscription = self.topics is not None or self.regex is not None
        return self.epoch == 0 or (self.rebalance_timeout_ms != -1 and has_subscription and self.owned is not None)

    def check(self, group_id: str, assignors: Collection[str]) -> None:
        """Check the fields that do not depend on the group.

        Raises KafkaError: invalid_request, unsupported_assignor.
        """
        _reject_blank(group_id, "GroupId can't be empty.")
        _reject_blank(self.instance_id, "InstanceId can't be empty.")
        _reject_blank(self.rack_id, "RackId can't be empty.")
        if self.provides_member_id or self.epoch != 0:
            _reject_blank(self.member_id, "MemberId can't be empty.")
        if self.epoch == 0:
            if self.rebalance_timeout_ms == -1:
                raise _invalid("RebalanceTimeoutMs must be provided in first request.")
            if self.owned is None or self.owned:
                raise _invalid("TopicPartitions must be empty when (re-)joining.")
            if self.topics is None and self.regex is None:
                raise _invalid(
                    "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
                )
        elif self.epoch == STATIC_LEAVE_EPOCH:
            if self.instance_id is None:
                raise _invalid("InstanceId can't be null.")
        elif self.epoch < LEAVE_EPOCH:
            raise _invalid("MemberEpoch is invalid.")
        if self.assignor is not None and self.assignor not in assignors:
            raise KafkaError(
                ErrorCode.unsupported_assignor,
                f"ServerAssignor {self.assignor} is not supported. Supported assignors: {', '.join(assignors)}.",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeatResult:
    """The reply; `assignment` is None if it is unchanged."""

    member_id: str
    epoch: int
    heartbeat_interval_ms: int = 0
    assignment: Partitions | None = None


def _reject_blank(value: str | None, message: str) -> None:
    if value is not None and not value.strip():
        raise _invalid(message)


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.invalid_request, message)
