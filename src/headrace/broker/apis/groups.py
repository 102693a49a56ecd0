"""FindCoordinator, JoinGroup, SyncGroup, Heartbeat and LeaveGroup.

Convert requests to the coordinator's types, and its results to replies of every version.
"""

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final, TypeAlias

from headrace.broker.addresses import Endpoint
from headrace.cluster.topic_names import GROUP_OFFSETS, TRANSACTION_STATE
from headrace.coordinator.group_coordinator import GroupCoordinator
from headrace.coordinator.groups.effects import JoinResult, SyncResult
from headrace.coordinator.groups.requests import (
    Join,
    Leaver,
    Sync,
)
from headrace.errors import ErrorCode, KafkaError
from headrace.server.context import Handler, RequestContext
from headrace.slices import Steps, chunks, in_slices
from headrace.types import Request
from headrace.wire.apis import ApiKey
from headrace.wire.encoder import Fields
from headrace.wire.items import made_of

log = logging.getLogger(__name__)

_GROUP, _TRANSACTION, _SHARE = 0, 1, 2
"""Key types of FindCoordinator."""

_LEAVERS_AT_ONCE: Final = 500
_MAX_PROTOCOLS: Final = 100
_MAX_METADATA: Final = 4 * 1024 * 1024
"""Maximum metadata of a member for all its assignors (bytes). A group's record (1 MB) has only the chosen one's."""
_NO_REASON: Final = "not provided"
_MILLISECOND = timedelta(milliseconds=1)


_NOT_JOINED: Final[Fields] = {"generation_id": -1, "protocol_name": "", "leader": "", "members": ()}


Locate: TypeAlias = Callable[[RequestContext, str, str], Endpoint]
"""Returns the client-facing address of a key's coordinator, which leads the key's partition of an internal topic.
Raises KafkaError(coordinator_not_available) if the partition has no leader."""


class GroupApis:
    """Handles FindCoordinator, and the requests of members of classic groups.

    `endpoint` returns this broker's address for a client; `create_offsets_topic` and `create_state_topic` (for
    transactions) return when the topic exists. Without `locate` this broker coordinates all groups and transactions.
    """

    def __init__(
        self,
        coordinator: GroupCoordinator,
        endpoint: Callable[[RequestContext], Endpoint],
        create_offsets_topic: Callable[[], Awaitable[None]],
        create_state_topic: Callable[[], Awaitable[None]],
        locate: Locate | None = None,
    ) -> None:
        self._locate = locate
        self._coordinator = coordinator
        self._endpoint = endpoint
        self._create_offsets_topic = create_offsets_topic
        self._create_state_topic = create_state_topic

    def routes(self) -> dict[ApiKey, Handler]:
        return {
            ApiKey.FIND_COORDINATOR: self.find_coordinator,
            ApiKey.JOIN_GROUP: self.join,
            ApiKey.SYNC_GROUP: self.sync,
            ApiKey.HEARTBEAT: self.heartbeat,
            ApiKey.LEAVE_GROUP: self.leave,
        }

    async def find_coordinator(self, context: RequestContext, request: Request) -> Fields:
        """Return the coordinators of groups or transactional ids. Create the internal topic if it is missing."""
        key_type = getattr(request, "key_type", _GROUP)
        if key_type not in (_GROUP, _TRANSACTION):
            raise KafkaError(
                ErrorCode.invalid_request, f"Unknown coordinator type {key_type}: use 0 (group) or 1 (transaction)."
            )
        name = GROUP_OFFSETS if key_type == _GROUP else TRANSACTION_STATE
        create_topic = self._create_offsets_topic if key_type == _GROUP else self._create_state_topic
        try:
            await create_topic()
        except KafkaError as error:
            raise KafkaError(ErrorCode.coordinator_not_available, f"{name} cannot be created: {error}") from error
        keys = getattr(request, "coordinator_keys", ())
        if self._locate is not None:
            return _located(self._locate, context, request, name)
        here = self._endpoint(context)._asdict()
        coordinators = made_of(keys, lambda key: {"key": key, **here, "error_message": ""})
        # Kafka's message for success; clients that log it expect text.
        return {**here, "error_message": "NONE", "coordinators": coordinators}

    async def join(self, context: RequestContext, request: Request) -> Fields:
        """Handle JoinGroup. The reply may have to wait until the join phase completes."""
        try:
            _check_metadata(context, request)
        except KafkaError as error:
            return {**_NOT_JOINED, "error_code": error.code, "member_id": request.member_id}
        version = context.api_version
        client_id = context.client_id or ""
        instance_id = getattr(request, "group_instance_id", None)
        session_timeout_ms = _ms(request.session_timeout)
        future: asyncio.Future[JoinResult] = asyncio.get_running_loop().create_future()
        join = Join(
            reply_to=future,
            member_id=request.member_id,
            new_member_id=f"{client_id if instance_id is None else instance_id}-{uuid.uuid4()}",
            instance_id=instance_id,
            client_id=client_id,
            client_host=_java_host(context),
            protocol_type=request.protocol_type,
            protocols=tuple((protocol.name, protocol.metadata) for protocol in request.protocols),
            session_timeout_ms=session_timeout_ms,
            # Version 0 has only the session timeout.
            rebalance_timeout_ms=_ms(request.rebalance_timeout) if version >= 1 else session_timeout_ms,
            requires_known_member_id=version >= 4,
            supports_skipping_assignment=version >= 9,
            reason=getattr(request, "reason", None) or _NO_REASON,
        )
        try:
            self._coordinator.join(request.group_id, join)
            result = await future
        except KafkaError as error:
            result = JoinResult(error=error.code, member_id=request.member_id)
        return {
            "error_code": result.error,
            "generation_id": result.generation,
            "protocol_type": result.protocol_type,
            "protocol_name": result.protocol_name if version >= 7 else result.protocol_name or "",
            "leader": result.leader,
            "skip_assignment": result.skip_assignment,
            "member_id": result.member_id,
            "members": [
                {"member_id": member_id, "group_instance_id": member_instance_id, "metadata": metadata}
                for member_id, member_instance_id, metadata in result.members
            ],
        }

    async def sync(self, context: RequestContext, request: Request) -> Fields:
        """Handle SyncGroup. The reply may have to wait until the leader's assignment has been written."""
        protocol_type = getattr(request, "protocol_type", None)
        protocol_name = getattr(request, "protocol_name", None)
        future: asyncio.Future[SyncResult] = asyncio.get_running_loop().create_future()
        sync = Sync(
            reply_to=future,
            member_id=request.member_id,
            instance_id=getattr(request, "group_instance_id", None),
            generation=request.generation_id,
            protocol_type=protocol_type,
            protocol_name=protocol_name,
            assignments={assignment.member_id: assignment.assignment for assignment in request.assignments},
        )
        try:
            if context.api_version >= 5 and (protocol_type is None or protocol_name is None):
                raise KafkaError(ErrorCode.inconsistent_group_protocol, "protocol type and name are mandatory")
            self._coordinator.sync(request.group_id, sync)
            result = await future
        except KafkaError as error:
            result = SyncResult(error=error.code)
        return {
            "error_code": result.error,
            "protocol_type": result.protocol_type,
            "protocol_name": result.protocol_name,
            "assignment": result.assignment,
        }

    def heartbeat(self, _: RequestContext, request: Request) -> Fields:
        """Handle Heartbeat, which keeps a member alive and reports a rebalance."""
        instance_id = getattr(request, "group_instance_id", None)
        try:
            error = self._coordinator.heartbeat(request.group_id, request.member_id, instance_id, request.generation_id)
        except KafkaError as failure:
            # While the group is being loaded, its members are unknown: accept the heartbeat.
            is_loading = failure.code is ErrorCode.coordinator_load_in_progress
            error = ErrorCode.none if is_loading else failure.code
        return {"error_code": error}

    def leave(self, context: RequestContext, request: Request) -> Fields | Steps[Fields]:
        """Handle LeaveGroup: members leave, or an administrator removes them."""
        return in_slices(self._left(context, request))

    def _left(self, context: RequestContext, request: Request) -> Steps[Fields]:
        members = request.members if context.api_version >= 3 else (request,)
        errors: list[ErrorCode] = []
        for some in chunks(members, _LEAVERS_AT_ONCE):
            try:
                errors += self._coordinator.leave(request.group_id, [_leaver(member) for member in some])
            except KafkaError as error:
                if error.code is not ErrorCode.unknown_member_id:
                    return {"error_code": error.code, "members": []}
                errors += [error.code] * len(some)
            yield
        if context.api_version < 3:
            return {"error_code": errors[0]}
        answered = list(zip(members, errors, strict=True))
        return {"members": made_of(answered, _leaver_answer)}


def _leaver(member: Any) -> Leaver:
    """Convert a member of the request, or before version 3 the request itself."""
    return Leaver(
        member_id=member.member_id,
        instance_id=getattr(member, "group_instance_id", None),
        reason=getattr(member, "reason", None) or _NO_REASON,
    )


def _leaver_answer(answered: tuple[Any, ErrorCode]) -> Fields:
    member, error = answered
    return {"member_id": member.member_id, "group_instance_id": member.group_instance_id, "error_code": error}


def _check_metadata(context: RequestContext, request: Request) -> None:
    """Raise KafkaError(invalid_request) if the member has too many assignors, or too much metadata for them."""
    size = sum(len(protocol.metadata) for protocol in request.protocols)
    if len(request.protocols) > _MAX_PROTOCOLS or size > _MAX_METADATA:
        message = (
            f"JoinGroup of group {request.group_id[:100]!r} names {len(request.protocols)} assignors with {size} bytes"
            f" of metadata: at most {_MAX_PROTOCOLS} assignors and {_MAX_METADATA} bytes are allowed"
        )
        log.warning("%s (client %s at %s)", message, context.client_id, context.client_host)
        raise KafkaError(ErrorCode.invalid_request, message)


def _located(locate: Locate, context: RequestContext, request: Request, topic: str) -> Fields:
    """Return the reply to FindCoordinator. Before version 4, raise KafkaError if the single key has no coordinator."""

    def coordinator(key: str) -> Fields:
        try:
            return {"key": key, **locate(context, topic, key)._asdict(), "error_message": ""}
        except KafkaError as error:
            return {"key": key, **_NOWHERE, "error_code": error.code, "error_message": error.message}

    if context.api_version >= 4:
        return {"coordinators": made_of(request.coordinator_keys, coordinator)}
    return {**locate(context, topic, request.key)._asdict(), "error_message": "NONE"}


_NOWHERE: Final[Fields] = {"node_id": -1, "host": "", "port": -1}


def _ms(duration: timedelta) -> int:
    return duration // _MILLISECOND


def _java_host(context: RequestContext) -> str:
    """Return the client's address as Java formats it, because group records and tools contain it in this form."""
    return f"/{context.client_host}"
