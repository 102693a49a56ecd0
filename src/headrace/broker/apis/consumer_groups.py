"""ConsumerGroupHeartbeat and ConsumerGroupDescribe: groups of the consumer protocol (KIP-848)."""

import uuid
from collections import defaultdict
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final

from headrace.coordinator.group_coordinator import GroupCoordinator
from headrace.coordinator.groups.consumer.member import ConsumerMember
from headrace.coordinator.groups.consumer.requests import ConsumerHeartbeat
from headrace.coordinator.groups.consumer.state import ConsumerState
from headrace.coordinator.groups.records.consumer import Partitions, TopicIdPartition
from headrace.coordinator.groups.subscriptions import Topics
from headrace.errors import ErrorCode, KafkaError
from headrace.server.context import Handler, RequestContext
from headrace.types import Request
from headrace.wire.apis import ApiKey
from headrace.wire.encoder import Fields
from headrace.wire.ids import id_to_text, new_id
from headrace.wire.items import made_of

_MEMBER_ID_FROM_CLIENT_SINCE: Final = 1
_CLASSIC: Final = 0
_CONSUMER: Final = 1
"""Member types in ConsumerGroupDescribe."""
_ALL_OPERATIONS: Final = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11
"""All operations on a group, as bits (KIP-430): READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS."""
_NOT_ASKED: Final = -(2**31)
_NO_ID: Final = bytes(16)
_MAX_TOPIC_NAMES: Final = 10_000
"""Maximum topic names of a member: its subscription must fit into one record of `__consumer_offsets`."""
_MILLISECOND = timedelta(milliseconds=1)


class ConsumerGroupApis:
    """Handles ConsumerGroupHeartbeat and ConsumerGroupDescribe (KIP-848)."""

    def __init__(self, coordinator: GroupCoordinator, topics: Topics) -> None:
        self._coordinator = coordinator
        self._topics = topics

    def routes(self) -> dict[ApiKey, Handler]:
        return {
            ApiKey.CONSUMER_GROUP_HEARTBEAT: self.heartbeat,
            ApiKey.CONSUMER_GROUP_DESCRIBE: self.describe,
        }

    def heartbeat(self, context: RequestContext, request: Request) -> Fields:
        """Handle a heartbeat, which can also make a member join, change its subscription or leave."""
        try:
            _check_names(request)
            result = self._coordinator.consumer_heartbeat(request.group_id, _heartbeat(context, request))
        except KafkaError as error:
            return {
                "error_code": error.code,
                "error_message": error.message,
                "member_epoch": 0,
                "heartbeat_interval": 0,
            }
        return {
            "member_id": result.member_id,
            "member_epoch": result.epoch,
            "heartbeat_interval": result.heartbeat_interval_ms,
            "assignment": None if result.assignment is None else {"topic_partitions": _by_topic(result.assignment)},
        }

    def describe(self, _: RequestContext, request: Request) -> Fields:
        """Describe groups, with members and assignments. As in Kafka, errors for empty group ids come first."""
        operations = _ALL_OPERATIONS if request.include_authorized_operations else _NOT_ASKED
        names = sorted(request.group_ids, key=bool)
        return {"groups": made_of(names, lambda group_id: self._describe(group_id, operations))}

    def _describe(self, group_id: str, operations: int) -> Fields:
        try:
            if not group_id:
                raise KafkaError(ErrorCode.invalid_group_id)
            group = self._coordinator.consumer_group(group_id).known
        except KafkaError as error:
            return {
                "group_id": group_id,
                "error_code": error.code,
                "error_message": error.message,
                "group_state": "",
                "group_epoch": 0,
                "assignment_epoch": 0,
                "assignor_name": "",
                "members": [],
            }
        return {
            "group_id": group_id,
            "group_state": group.state,
            "group_epoch": group.epoch,
            "assignment_epoch": group.assignment_epoch,
            "assignor_name": group.assignor,
            "members": [self._describe_member(group, member) for member in group.members.values()],
            "authorized_operations": operations,
        }

    def _describe_member(self, group: ConsumerState, member: ConsumerMember) -> dict[str, Any]:
        target = group.target.get(member.member_id, frozenset())
        return {
            "member_id": member.member_id,
            "instance_id": member.instance_id,
            "rack_id": member.rack_id,
            "member_epoch": member.epoch,
            "client_id": member.client_id,
            "client_host": member.client_host,
            "subscribed_topic_names": member.topics,
            "subscribed_topic_regex": member.regex,
            # A member owns partitions until it has revoked them.
            "assignment": {"topic_partitions": self._with_names((*member.assigned, *member.revoking))},
            "target_assignment": {"topic_partitions": self._with_names(target)},
            "member_type": _CONSUMER if member.classic is None else _CLASSIC,
        }

    def _with_names(self, partitions: Iterable[TopicIdPartition]) -> list[dict[str, Any]]:
        """Group partitions by topic. Omit deleted topics."""
        return [
            {**topic, "topic_name": name}
            for topic in _by_topic(partitions)
            if (name := self._topics.name_of(topic["topic_id"].bytes)) is not None
        ]


def _check_names(request: Request) -> None:
    names = request.subscribed_topic_names
    if names is not None and len(names) > _MAX_TOPIC_NAMES:
        raise KafkaError(
            ErrorCode.invalid_request,
            f"SubscribedTopicNames has {len(names)} names, but at most {_MAX_TOPIC_NAMES} are allowed:"
            " subscribe with a regular expression.",
        )


def _heartbeat(context: RequestContext, request: Request) -> ConsumerHeartbeat:
    owned: Partitions | None = None
    if request.topic_partitions is not None:
        owned = frozenset(
            TopicIdPartition(_NO_ID if topic.topic_id is None else topic.topic_id.bytes, index)
            for topic in request.topic_partitions
            for index in topic.partitions
        )
    return ConsumerHeartbeat(
        member_id=request.member_id,
        new_member_id=id_to_text(new_id()),
        epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        client_id=context.client_id or "",
        client_host=f"/{context.client_host}",
        rebalance_timeout_ms=request.rebalance_timeout // _MILLISECOND,
        topics=request.subscribed_topic_names,
        regex=getattr(request, "subscribed_topic_regex", None),
        assignor=request.server_assignor,
        owned=owned,
        provides_member_id=context.api_version >= _MEMBER_ID_FROM_CLIENT_SINCE,
    )


def _by_topic(partitions: Iterable[TopicIdPartition]) -> list[dict[str, Any]]:
    indexes: dict[bytes, list[int]] = defaultdict(list)
    for one in sorted(partitions):
        indexes[one.topic_id].append(one.partition)
    return [{"topic_id": uuid.UUID(bytes=topic_id), "partitions": parts} for topic_id, parts in indexes.items()]
