"""Describe groups of all kinds. Failures are CommandErrors.

confluent-kafka describes consumer groups of both protocols, but refuses groups of other kinds, such as those of Kafka
Connect, and groups with an assignment that it cannot read. For these groups, kafka-python sends DescribeGroups.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from confluent_kafka import ConsumerGroupState, KafkaException

from headrace.cli.cluster import REQUEST_TIMEOUT_S, Cluster
from headrace.cli.failures import CommandError, NoReplyError, refused
from headrace.cli.python_admin import python_admin, until_coordinated

_CONSUMER = "consumer"
"""Protocol type of consumer groups."""
_A_REQUEST = 500


@dataclass(frozen=True, slots=True)
class Coordinator:
    """The broker that coordinates a group."""

    id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Member:
    member_id: str
    client_id: str
    host: str
    group_instance_id: str | None
    places: tuple[tuple[str, int], ...]
    """Assigned partitions; empty if the assignment is not that of a consumer or cannot be read."""


@dataclass(frozen=True, slots=True)
class Description:
    partition_assignor: str
    coordinator: Coordinator
    members: Sequence[Member]


def describe(cluster: Cluster, names: Sequence[str]) -> dict[str, Description | CommandError]:
    """Describe the groups among `names` that exist; an error stands for a group that cannot be described.

    Raises NoReplyError.
    """
    found: dict[str, Description | CommandError] = {}
    others = [name for name in names if "\0" in name]  # librdkafka would describe the group named up to the NUL
    names = [name for name in names if name not in others]
    for start in range(0, len(names), _A_REQUEST):
        asked = names[start : start + _A_REQUEST]
        futures = cluster.admin.describe_consumer_groups(asked, request_timeout=REQUEST_TIMEOUT_S)
        for name, future in futures.items():
            try:
                description = future.result()
            except KafkaException as error:
                cause = error.args[0]
                if cause.name() == "GROUP_ID_NOT_FOUND":
                    continue
                failure = refused(cause, cluster.bootstrap, f"describing group '{name}'")
                if isinstance(failure, NoReplyError):
                    raise failure from None
                if cause.name().startswith("_"):  # an error of the client, not of the broker
                    others.append(name)
                else:
                    found[name] = failure
            else:
                if description.state is not ConsumerGroupState.DEAD:
                    found[name] = _converted(description)
    return found | _of_any_kind(cluster, others) if others else found


def _converted(description: Any) -> Description:
    node = description.coordinator
    return Description(
        description.partition_assignor,
        Coordinator(node.id, node.host, node.port),
        [
            Member(
                member.member_id,
                member.client_id,
                member.host,
                member.group_instance_id,
                tuple((place.topic, place.partition) for place in member.assignment.topic_partitions)
                if member.assignment
                else (),
            )
            for member in description.members
        ],
    )


def _of_any_kind(cluster: Cluster, names: Sequence[str]) -> dict[str, Description | CommandError]:
    found: dict[str, Description | CommandError] = {}
    with python_admin(cluster, "describing groups") as admin:
        # kafka-python would decode all metadata and assignments as those of consumers, and fail for others.
        admin._describe_groups_process_response = lambda response: {group.group_id: group for group in response.groups}
        for broker in admin.describe_cluster()["brokers"]:
            coordinator = Coordinator(broker["broker_id"], broker["host"], broker["port"])
            listed = until_coordinated(partial(admin.list_groups, broker_ids=[coordinator.id]))
            asked = sorted({group["group_id"] for group in listed} & set(names))
            if asked:
                answers = until_coordinated(partial(admin.describe_groups, asked, coordinator.id))
                found |= {name: _read(group, coordinator) for name, group in answers.items() if _exists(group)}
    return found


def _exists(group: Any) -> bool:
    from kafka.errors import GroupIdNotFoundError

    return bool(group.error_code != GroupIdNotFoundError.errno) and group.group_state != "Dead"


def _read(group: Any, coordinator: Coordinator) -> Description | CommandError:
    from kafka.errors import for_code

    if group.error_code:
        error = for_code(group.error_code)
        return CommandError(f"describing group '{group.group_id}': {error.description} ({error.message})")
    is_consumer = group.protocol_type == _CONSUMER
    members = [
        Member(
            member.member_id,
            member.client_id,
            member.client_host,
            member.group_instance_id,
            _places(member.member_assignment) if is_consumer else (),
        )
        for member in group.members
    ]
    return Description(group.protocol_data, coordinator, members)


def _places(assignment: bytes) -> tuple[tuple[str, int], ...]:
    """Decode a consumer's assignment; return no partitions if it cannot be decoded."""
    from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment

    try:
        decoded = ConsumerProtocolAssignment.decode(assignment)
    except (ValueError, struct.error):
        return ()
    return tuple((place.topic, place.partition) for place in decoded.partitions())
