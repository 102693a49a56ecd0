"""ListGroups, DescribeGroups and DeleteGroups."""

from typing import Any

from headrace.coordinator.group_coordinator import GroupCoordinator
from headrace.coordinator.groups.classic.group import ClassicGroup
from headrace.coordinator.groups.classic.membership import ClassicMember
from headrace.coordinator.groups.classic.states import GroupState
from headrace.coordinator.groups.group import Group
from headrace.errors import ErrorCode, KafkaError
from headrace.server.context import Handler, RequestContext
from headrace.slices import Steps, in_slices
from headrace.types import Request
from headrace.wire.apis import ApiKey
from headrace.wire.encoder import Fields
from headrace.wire.items import made_of

_ALL_OPERATIONS = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11
"""All operations on a group, as bits (KIP-430): READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS."""
_NOT_ASKED = -(2**31)


class GroupAdminApis:
    """Handles ListGroups, DescribeGroups and DeleteGroups."""

    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    def routes(self) -> dict[ApiKey, Handler]:
        return {
            ApiKey.LIST_GROUPS: self.list_groups,
            ApiKey.DESCRIBE_GROUPS: self.describe,
            ApiKey.DELETE_GROUPS: self.delete,
        }

    def list_groups(self, _: RequestContext, request: Request) -> Fields:
        """List groups, filtered by states (KIP-518) and types (KIP-848), case-insensitively."""
        states = {state.strip().lower() for state in getattr(request, "states_filter", ())}
        types = {group_type.lower() for group_type in getattr(request, "types_filter", ())}

        def is_wanted(group: Group) -> bool:
            return (not states or group.state.lower() in states) and (not types or group.type in types)

        def listed(group: Group) -> Fields:
            return {
                "group_id": group.group_id,
                "protocol_type": group.protocol_type or "",
                "group_state": group.state,
                "group_type": group.type,
            }

        return {"groups": made_of([group for group in self._coordinator.groups() if is_wanted(group)], listed)}

    def describe(self, context: RequestContext, request: Request) -> Fields:
        """Describe the state, protocol and members of groups."""
        # Without ACLs all operations are allowed.
        operations = _ALL_OPERATIONS if getattr(request, "include_authorized_operations", False) else _NOT_ASKED

        def described(group_id: str) -> Fields:
            group = self._describe(context, group_id)
            return group if "error_code" in group else {**group, "authorized_operations": operations}

        return {"groups": made_of(request.groups, described)}

    def _describe(self, context: RequestContext, group_id: str) -> dict[str, Any]:
        nothing = {"group_id": group_id, "group_state": "", "protocol_type": "", "protocol_data": "", "members": []}
        try:
            group = self._coordinator.classic_group(group_id)
        except KafkaError as error:
            if error.code is not ErrorCode.group_id_not_found:
                return {**nothing, "error_code": error.code}
            dead = {**nothing, "group_state": GroupState.DEAD}
            # Before KIP-1043 a missing group was reported as dead, not as an error.
            if context.api_version >= 6:
                return {**dead, "error_code": error.code, "error_message": error.message}
            return dead
        is_stable = group.state is GroupState.STABLE
        return {
            "group_id": group_id,
            "group_state": group.state,
            "protocol_type": group.protocol_type or "",
            "protocol_data": group.protocol_name or "" if is_stable else "",
            "members": [_describe_member(group, member) for member in group.membership.members.values()],
        }

    def delete(self, _: RequestContext, request: Request) -> Fields | Steps[Fields]:
        """Delete groups without members, and their offsets."""
        return in_slices(self._deleted(request))

    def _deleted(self, request: Request) -> Steps[Fields]:
        results = []
        for group_id in dict.fromkeys(request.groups_names):
            error = ErrorCode.none
            try:
                self._coordinator.delete_group(group_id)
            except KafkaError as failure:
                error = failure.code
            results.append({"group_id": group_id, "error_code": error})
            yield
        return {"results": results}


def _describe_member(group: ClassicGroup, member: ClassicMember) -> Fields:
    return {
        "member_id": member.member_id,
        "group_instance_id": member.instance_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "member_metadata": member.metadata(group.protocol_name) if group.state is GroupState.STABLE else b"",
        "member_assignment": member.assignment,
    }
