"""Requests about groups, which Apache Kafka supports too. Failures are CommandErrors.

Uses confluent-kafka where it has the request, otherwise kafka-python.
"""

import difflib
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka import ConsumerGroupTopicPartitions as GroupPartitions
from confluent_kafka.admin import OffsetSpec

from headrace.cli import group_descriptions
from headrace.cli.cluster import REQUEST_TIMEOUT_S, Cluster, Offsets, client_config
from headrace.cli.failures import CommandError, refused
from headrace.cli.group_descriptions import Description
from headrace.cli.python_admin import python_admin
from headrace.wording import in_one_line

Place = tuple[str, int]
"""Topic and partition."""

STATES = ("Empty", "Stable", "PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling", "Dead")
TYPES = ("classic", "consumer", "share", "streams")
_AGE_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class GroupEntry:
    """A group in ListGroups; `type` is empty if the broker sends none (before ListGroups version 5, KIP-848)."""

    name: str
    type: str
    state: str
    protocol_type: str


def list_groups(cluster: Cluster, states: Iterable[str] = (), types: Iterable[str] = ()) -> list[GroupEntry]:
    """Return the groups with one of `states` and one of `types`, sorted by name; an empty collection selects all."""
    wanted_states = {_known(state, STATES, "state") for state in states}
    wanted_types = {_known(item, TYPES, "type") for item in types}
    with python_admin(cluster, "listing groups") as admin:
        # confluent-kafka cannot represent the states of the consumer protocol.
        found = admin.list_groups()
    entries = (
        GroupEntry(
            item["group_id"], item.get("group_type", ""), item.get("group_state", ""), item.get("protocol_type", "")
        )
        for item in found
    )
    return sorted(
        (
            entry
            for entry in entries
            if (not wanted_states or entry.state in wanted_states) and (not wanted_types or entry.type in wanted_types)
        ),
        key=lambda entry: entry.name,
    )


def describe_groups(cluster: Cluster, names: Sequence[str]) -> dict[str, Description]:
    """Describe the groups among `names` that exist. Raises CommandError if one of them cannot be described."""
    found = {}
    for name, description in group_descriptions.describe(cluster, names).items():
        if isinstance(description, CommandError):
            raise description
        found[name] = description
    return found


def missing_group(cluster: Cluster, name: str) -> CommandError:
    """Return the error for a group that does not exist, with a similar name if one is known."""
    known = [group.name for group in list_groups(cluster)]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    what = f"group '{name}' does not exist at {cluster.bootstrap}"
    if name in map(in_one_line, known):
        return CommandError(
            what, "A similar name has control characters: `headrace groups list --json` shows it exactly."
        )
    hint = f"Did you mean '{near[0]}'? " if near else ""
    return CommandError(what, f"{hint}`headrace groups list` shows all groups.")


def committed(cluster: Cluster, group: str) -> dict[Place, int]:
    """Return the group's committed offsets."""
    if not group or "\0" in group:
        name = in_one_line(group)
        raise CommandError(f"the client library cannot list the offsets of a group with the name '{name}'")
    futures = cluster.admin.list_consumer_group_offsets([GroupPartitions(group)], request_timeout=REQUEST_TIMEOUT_S)
    try:
        found = cluster.answer(futures[group], f"listing the offsets of group '{group}'")
    except CommandError as error:
        if "GROUP_ID_NOT_FOUND" in error.what:
            return {}
        raise
    return {
        (topic_partition.topic, topic_partition.partition): topic_partition.offset
        for topic_partition in found.topic_partitions
        if topic_partition.offset >= 0
    }


def bounds(cluster: Cluster, places: Collection[Place], *, committed_only: bool = False) -> dict[Place, Offsets]:
    """Return the earliest and latest offsets of partitions; leave out those that do not exist or have no leader.

    With `committed_only`, the latest offset is the last stable offset (KIP-98).
    """
    earliest = _offsets(cluster, places, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
    isolation = IsolationLevel.READ_COMMITTED if committed_only else IsolationLevel.READ_UNCOMMITTED
    latest = _offsets(cluster, earliest, OffsetSpec.latest(), isolation)  # type: ignore[no-untyped-call]
    return {place: Offsets(earliest[place], latest[place]) for place in places if place in latest}


def at_time(cluster: Cluster, places: Collection[Place], timestamp_ms: int) -> dict[Place, int]:
    """Return, for each partition, the offset of the first record with this timestamp or a later one, or -1."""
    return _offsets(cluster, places, OffsetSpec.for_timestamp(timestamp_ms))


def _offsets(
    cluster: Cluster,
    places: Collection[Place],
    spec: OffsetSpec,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> dict[Place, int]:
    if not places:
        return {}
    asked = {TopicPartition(topic, partition): spec for topic, partition in places}
    futures = cluster.admin.list_offsets(asked, isolation_level=isolation, request_timeout=REQUEST_TIMEOUT_S)
    found = {}
    for place, future in futures.items():
        try:
            found[place.topic, place.partition] = future.result().offset
        except KafkaException as error:
            if error.args[0].name() not in _NO_SUCH_PARTITION:
                doing = f"listing the offsets of topic '{place.topic}'"
                raise refused(error.args[0], cluster.bootstrap, doing) from None
    return found


_NO_SUCH_PARTITION = {
    "UNKNOWN_TOPIC_OR_PART",
    "LEADER_NOT_AVAILABLE",
    "_UNKNOWN_PARTITION",
    "_UNKNOWN_TOPIC",
    "_NOENT",  # none of the partitions exists
}


@dataclass(frozen=True, slots=True)
class Unread:
    """Result of reading from several positions, within a time limit."""

    times: Mapping[Place, int]
    """Timestamp of the first record, in ms."""
    empty: Collection[Place]
    """Partitions that have only transaction markers or aborted records from the position on."""


def read_on(cluster: Cluster, positions: Mapping[Place, int]) -> Unread:
    """Read the first record at or after each position, as a read_committed consumer does."""
    if not positions:
        return Unread({}, ())
    config = client_config(
        cluster.bootstrap,
        group_id="headrace-cli",
        enable_auto_commit=False,
        enable_auto_offset_store=False,
        auto_offset_reset="earliest",
        enable_partition_eof=True,
        # Only one record per partition is needed.
        fetch_message_max_bytes=1024,
        queued_min_messages=1,
        fetch_wait_max_ms=50,
    )
    found: dict[Place, int] = {}
    empty: set[Place] = set()
    consumer = Consumer(config)
    try:
        consumer.assign([TopicPartition(*place, offset) for place, offset in positions.items()])
        deadline = time.monotonic() + _AGE_TIMEOUT_S
        while len(found) + len(empty - found.keys()) < len(positions) and (left := deadline - time.monotonic()) > 0:
            for message in consumer.consume(1000, timeout=min(left, 0.1)):
                place = (message.topic() or "", message.partition() or 0)
                error = message.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    empty.add(place)
                elif error is None and place not in found:
                    found[place] = message.timestamp()[1]
                    consumer.pause([TopicPartition(*place)])
    except KafkaException as error:
        raise refused(error.args[0], cluster.bootstrap, "reading the oldest unread records") from None
    finally:
        consumer.close()
    return Unread({place: timestamp for place, timestamp in found.items() if timestamp >= 0}, empty - found.keys())


def alter(cluster: Cluster, group: str, offsets: Mapping[Place, int]) -> None:
    """Commit these offsets for the group."""
    request = GroupPartitions(group, [TopicPartition(*place, offset) for place, offset in offsets.items()])
    futures = cluster.admin.alter_consumer_group_offsets([request], request_timeout=REQUEST_TIMEOUT_S)
    try:
        done = cluster.answer(futures[group], f"resetting group '{group}'")
    except CommandError as error:
        raise _in_use(error, group) from None
    for topic_partition in done.topic_partitions:
        if topic_partition.error is not None:
            failed = refused(
                topic_partition.error,
                cluster.bootstrap,
                f"resetting the offset of group '{group}' for {topic_partition.topic}:{topic_partition.partition}",
            )
            raise _in_use(failed, group)


def delete(cluster: Cluster, groups: Sequence[str]) -> dict[str, CommandError | None]:
    """Delete groups. Return the error of each group, or None."""
    futures = cluster.admin.delete_consumer_groups(list(groups), request_timeout=REQUEST_TIMEOUT_S)
    results: dict[str, CommandError | None] = {}
    for group in groups:
        try:
            cluster.answer(futures[group], f"deleting group '{group}'")
        except CommandError as error:
            results[group] = (
                missing_group(cluster, group) if "GROUP_ID_NOT_FOUND" in error.what else _in_use(error, group)
            )
        else:
            results[group] = None
    return results


def delete_offsets(cluster: Cluster, group: str, places: Collection[Place]) -> dict[Place, str | None]:
    """Delete committed offsets (KIP-496). Return the name of the Kafka error of each partition, or None."""
    from kafka import TopicPartition as KafkaPythonPartition
    from kafka.errors import GroupIdNotFoundError, NoError, NonEmptyGroupError

    asked = [KafkaPythonPartition(*place) for place in places]
    with python_admin(cluster, f"deleting offsets of group '{group}'") as admin:
        try:
            answers = admin.delete_group_offsets(group, asked)
        except GroupIdNotFoundError:
            raise missing_group(cluster, group) from None
        except NonEmptyGroupError:
            raise CommandError(f"group '{group}' has members that are not consumers", "Stop them first.") from None
    return {
        (place.topic, place.partition): None if error is NoError or error is None else _python_name(error)
        for place, error in answers.items()
    }


def _python_name(error: type) -> str:
    return str(getattr(error, "message", error.__name__))


def _in_use(error: CommandError, group: str) -> CommandError:
    if any(name in error.what for name in ("UNKNOWN_MEMBER_ID", "NON_EMPTY_GROUP", "REBALANCE_IN_PROGRESS")):
        return CommandError(
            f"group '{group}' has members",
            f"Stop them first; `headrace groups describe {group}` shows them.",
        )
    return error


def _known(text: str, names: Sequence[str], what: str) -> str:
    wanted = text.strip().lower().replace("_", "").replace("-", "")
    for name in names:
        if name.lower() == wanted:
            return name
    raise CommandError(f"'{text}' is not a valid group {what}", f"Valid values: {', '.join(names)}.", 2)
