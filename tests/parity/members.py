"""Requests of members of groups of both protocols."""

from collections.abc import Callable
from typing import Any

from headrace.wire.apis import ApiKey
from tests.parity.both import Answers, Both, Names, Request, Side
from tests.support.waiting import wait_for

SUBSCRIPTION = b"\x00\x01\x00\x00\x00\x01\x00\x05topic\xff\xff\xff\xff\x00\x00\x00\x00"
CONSUMER = "AAAAAAAAAAAAAAAAAAAAAA"
Member = Callable[[Side], str]
"""A member's id, by broker."""
Offset = tuple[int, int, str | None]
"""Partition, offset, metadata."""


def join(
    group: str,
    member: Member | str = "",
    *,
    instance: str | None = None,
    protocols: tuple[str, ...] = ("range", "roundrobin"),
    metadata: bytes = SUBSCRIPTION,
    protocol_type: str = "consumer",
    session_timeout: int = 10_000,
    rebalance_timeout: int = 10_000,
) -> Request:
    return lambda side: {
        "group_id": group,
        "session_timeout": session_timeout,
        "rebalance_timeout": rebalance_timeout,
        "member_id": member(side) if callable(member) else member,
        "group_instance_id": instance,
        "protocol_type": protocol_type,
        "protocols": [{"name": protocol, "metadata": metadata} for protocol in protocols],
        "reason": "a test",
    }


def sync(
    group: str, member: Member | str, generation: int, assignment: bytes | None = b"assigned", **fields: Any
) -> Request:
    def message(side: Side) -> dict[str, Any]:
        member_id = member(side) if callable(member) else member
        return {
            "group_id": group,
            "generation_id": generation,
            "member_id": member_id,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": [] if assignment is None else [{"member_id": member_id, "assignment": assignment}],
            **fields,
        }

    return message


def heartbeat(group: str, member: Member | str, generation: int, instance: str | None = None) -> Request:
    return lambda side: {
        "group_id": group,
        "generation_id": generation,
        "member_id": member(side) if callable(member) else member,
        "group_instance_id": instance,
    }


def leave(group: str, *members: tuple[Member | str, str | None]) -> Request:
    def message(side: Side) -> dict[str, Any]:
        ids = [(member(side) if callable(member) else member, instance) for member, instance in members]
        return {
            "group_id": group,
            "member_id": ids[0][0] if ids else "",
            "members": [{"member_id": each, "group_instance_id": instance, "reason": "bye"} for each, instance in ids],
        }

    return message


def member_of(both: Both, answers: Answers) -> Member:
    """Return the member of the answers to a join."""
    ids = {id(both.kafka): answers.kafka["member_id"], id(both.headrace): answers.headrace["member_id"]}
    return lambda side: ids[id(side)]


def joined(both: Both, group: str, version: int = 9, *, on: str = "parity", instance: str | None = None) -> Answers:
    """Join, in two requests if the member needs an id first (version 4 and later)."""
    answers = both.ask(ApiKey.JOIN_GROUP, version, join(group, instance=instance), case="join", on=on)
    if answers.kafka["error_code"] == "member_id_required":
        request = join(group, member_of(both, answers), instance=instance)
        answers = both.ask(ApiKey.JOIN_GROUP, version, request, case="join with the id", on=on)
    return answers


def commit(
    group: str,
    topic: str,
    *offsets: Offset,
    member: Member | str = "",
    generation: int = -1,
    instance: str | None = None,
) -> Request:
    def message(side: Side) -> dict[str, Any]:
        partitions = [
            {
                "partition_index": partition,
                "committed_offset": offset,
                "committed_leader_epoch": 2,
                "committed_metadata": metadata,
            }
            for partition, offset, metadata in offsets
        ]
        return {
            "group_id": group,
            "generation_id_or_member_epoch": generation,
            "member_id": member(side) if callable(member) else member,
            "group_instance_id": instance,
            "topics": [{"name": topic, "topic_id": side.topic_id(topic), "partitions": partitions}],
        }

    return message


def beat(
    group: str,
    epoch: int,
    *,
    topics: list[str] | None = None,
    owned: tuple[str, tuple[int, ...]] | None = None,
    instance: str | None = None,
    member: str = CONSUMER,
    **fields: Any,
) -> Request:
    """Return a heartbeat of the consumer protocol, a full one if it has `topics`."""

    def message(side: Side) -> dict[str, Any]:
        partitions = None
        if owned is not None:
            topic, indexes = owned
            partitions = [{"topic_id": side.topic_id(topic), "partitions": list(indexes)}] if indexes else []
        elif epoch == 0:
            partitions = []
        return {
            "group_id": group,
            "member_id": member,
            "member_epoch": epoch,
            "instance_id": instance,
            "rebalance_timeout": 60_000 if topics is not None else -1,
            "subscribed_topic_names": topics,
            "topic_partitions": partitions,
            **fields,
        }

    return message


def create_topic(both: Both, name: Names, partitions: int) -> str:
    """Create a topic and wait until both coordinators know it; Kafka's learns of it after the leader."""
    topic = both.create(name(), partitions)

    def is_assigned() -> bool:
        request = beat(name(), 0, topics=[topic])
        assert callable(request)
        answers = [side.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, request(side), "probe") for side in both.sides]
        return all(answer["assignment"]["topic_partitions"] for answer in answers)

    wait_for(is_assigned, f"groups that read {topic}")
    return topic
