"""Requests about replicas, which Headrace and Apache Kafka support. Failures are CommandErrors."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import methodcaller
from typing import Any, Final, NamedTuple, TypeVar

from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from headrace.cli.cluster import REQUEST_TIMEOUT_S, Cluster, UnknownTopicError
from headrace.cli.failures import CommandError
from headrace.cli.placement.state import Broker, Disk, Partition, Place, State
from headrace.cli.python_admin import python_admin

T = TypeVar("T")

PREFERRED: Final = 0
UNCLEAN: Final = 1
"""Types of elections (KIP-460)."""
_PAUSE_S = 0.2
_BUSY_S = 60.0
"""Time limit for the reply of a busy controller, as in Kafka's admin client (`default.api.timeout.ms`)."""
_A_REQUEST = 1000
"""Maximum number of partitions in a request."""


class Refusal(NamedTuple):
    name: str
    """Name of the Kafka error, for example 'PREFERRED_LEADER_NOT_AVAILABLE'."""
    description: str


def read_state(cluster: Cluster, *, sizes: bool = True, needs_moves: bool = True) -> State:
    """Return the brokers, partitions and reassignments and, with `sizes`, the sizes of replicas and disks.

    Only the controller knows the reassignments. While there is none, wait for one, and raise CommandError after
    REQUEST_TIMEOUT_S; without `needs_moves`, return a state without reassignments.
    """
    with python_admin(cluster, "describing the cluster") as admin:
        described = admin.describe_cluster()
        topics = [topic for topic in admin.describe_topics() if not topic["error_code"]]
        epoch = _quorum_epoch(admin)
        disks, found = _log_dirs(admin, described["brokers"], topics) if sizes else ({}, {})
    controller = described["controller_id"] if described["controller_id"] >= 0 else None
    brokers = {
        broker["broker_id"]: Broker(
            broker["broker_id"],
            f"{broker['host']}:{broker['port']}",
            broker["rack"],
            disks.get(broker["broker_id"]),
        )
        for broker in sorted(described["brokers"], key=lambda broker: int(broker["broker_id"]))
    }
    reassigned = {} if controller is None and not needs_moves else _reassignments(cluster)
    partitions = sorted(
        (_partition(topic["name"], partition, reassigned) for topic in topics for partition in topic["partitions"]),
        key=lambda partition: partition.place,
    )
    state = State(
        described["cluster_id"],
        controller,
        epoch,
        brokers,
        {partition.place: partition for partition in partitions},
        found,
    )
    return _with_min_isr(cluster, state)


def reassign(cluster: Cluster, targets: Mapping[Place, Sequence[int] | None]) -> dict[Place, Refusal]:
    """Start moving partitions to these replicas; None cancels a move (KIP-455). Return rejected partitions."""
    from kafka import TopicPartition

    refused: dict[Place, Refusal] = {}
    for asked in _chunks(sorted(targets)):
        wanted = {TopicPartition(*place): targets[place] for place in asked}
        is_repeatable = None not in wanted.values()  # a second cancellation has nothing to cancel
        answers: dict[Any, Any] = _ask_controller(
            cluster,
            "reassigning partitions" if is_repeatable else "cancelling moves",
            methodcaller("alter_partition_reassignments", wanted),
            is_repeatable=is_repeatable,
        )
        refused |= {
            (place.topic, place.partition): Refusal(error.message, error.description)
            for place, error in answers.items()
            if error is not None
        }
    return refused


def elect(cluster: Cluster, election: int, places: Iterable[Place]) -> dict[Place, Refusal]:
    """Elect leaders (KIP-460). Return rejected partitions, including those with ELECTION_NOT_NEEDED."""
    from kafka.errors import NoError, for_code

    refused: dict[Place, Refusal] = {}
    for asked in _chunks(sorted(places)):
        topics: dict[str, list[int]] = {}
        for topic, partition in asked:
            topics.setdefault(topic, []).append(partition)
        answer: Any = _ask_controller(
            cluster,
            "electing leaders",
            methodcaller("elect_leaders", election, topics, raise_errors=False),
            is_repeatable=False,
        )
        top = for_code(getattr(answer, "error_code", 0))
        if top is not NoError:
            raise CommandError(f"electing leaders: {top.description} ({top.message})")
        for result in answer.replica_election_results:
            for partition in result.partition_result:
                error = for_code(partition.error_code)
                if error is not NoError:
                    text = partition.error_message or error.description
                    refused[result.topic, partition.partition_id] = Refusal(error.message, text)
    return refused


def set_on_brokers(cluster: Cluster, brokers: Iterable[int], settings: Mapping[str, str | None]) -> None:
    """Change dynamic settings of brokers, one by one; None deletes a setting."""
    for broker in brokers:
        _change(cluster, ConfigResource(ResourceType.BROKER, str(broker), incremental_configs=_entries(settings)))


def set_on_topic(cluster: Cluster, topic: str, settings: Mapping[str, str | None]) -> None:
    """Change settings of a topic; None deletes a setting. A topic that does not exist is ignored."""
    try:
        _change(cluster, ConfigResource(ResourceType.TOPIC, topic, incremental_configs=_entries(settings)))
    except UnknownTopicError:
        return


def _entries(settings: Mapping[str, str | None]) -> list[ConfigEntry]:
    return [
        ConfigEntry(
            name, value, incremental_operation=AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
        )
        for name, value in settings.items()
    ]


def _change(cluster: Cluster, resource: ConfigResource) -> None:
    futures = cluster.admin.incremental_alter_configs([resource], request_timeout=REQUEST_TIMEOUT_S)
    kind = "broker" if resource.restype is ResourceType.BROKER else "topic"
    cluster.answer(futures[resource], f"changing the throttle of {kind} {resource.name}")


def _ask_controller(cluster: Cluster, doing: str, ask: Callable[[Any], T], *, is_repeatable: bool = True) -> T:
    """Return the controller's reply. Retry while the controller changes or is missing, or replies too slowly.

    After a timeout or a lost connection, the controller may have carried out the request. Repeat it only if
    `is_repeatable`, that is, if the second reply is the same. Raises CommandError if there is no controller for
    REQUEST_TIMEOUT_S, if a busy one has not replied within 60 s, or if a request that is not repeatable may have been
    carried out.
    """
    from kafka.errors import (
        KafkaConnectionError,
        NodeNotReadyError,
        NotControllerError,
        RequestTimedOutError,
        UnknownBrokerIdError,
    )

    began = missing_since = time.monotonic()
    while True:
        # A new client for every attempt, because a client caches the controller.
        with python_admin(cluster, doing) as admin:
            if admin.describe_cluster()["controller_id"] >= 0:
                is_sent = False  # stays False for a repeatable request
                try:
                    if not is_repeatable:
                        # If the client cannot connect to the controller, a request without effect fails.
                        admin.list_partition_reassignments()
                        is_sent = True
                    return ask(admin)
                except RequestTimedOutError:
                    if is_sent or time.monotonic() > began + _BUSY_S:
                        raise
                    missing_since = time.monotonic()
                    continue
                except KafkaConnectionError:
                    if is_sent:
                        raise CommandError(
                            f"{doing}: the connection to the controller was lost before it replied",
                            "It may have carried out the request: check with `headrace cluster` before you try again.",
                        ) from None
                # RuntimeError is how kafka-python reports a second NOT_CONTROLLER.
                except (
                    NodeNotReadyError,
                    NotControllerError,
                    UnknownBrokerIdError,
                    RuntimeError,
                ):
                    pass
        if time.monotonic() > missing_since + REQUEST_TIMEOUT_S:
            raise CommandError(
                f"{doing}: the cluster has no controller",
                "Try again when `headrace cluster` shows a controller; if none appears, check the brokers' logs.",
            )
        time.sleep(_PAUSE_S)


def _reassignments(cluster: Cluster) -> dict[Place, dict[str, list[int]]]:
    answer = _ask_controller(cluster, "listing reassignments", methodcaller("list_partition_reassignments"))
    return {(place.topic, place.partition): found for place, found in answer.items()}


def _quorum_epoch(admin: Any) -> int | None:
    """Return the controller epoch in KRaft mode; None in ZooKeeper mode, where no request returns it."""
    from kafka.errors import KafkaError

    try:
        quorum = admin.describe_metadata_quorum()
        return int(quorum["topics"][0]["partitions"][0]["leader_epoch"])
    except (KafkaError, IndexError):
        return None


def _partition(topic: str, found: Mapping[str, Any], reassigned: Mapping[Place, Mapping[str, list[int]]]) -> Partition:
    place = (topic, found["partition_index"])
    move = reassigned.get(place, {})
    return Partition(
        *place,
        leader=found["leader_id"] if found["leader_id"] >= 0 else None,
        leader_epoch=found.get("leader_epoch"),
        # The controller is ahead of the brokers' metadata.
        replicas=tuple(move.get("replicas", found["replica_nodes"])),
        isr=tuple(found["isr_nodes"]),
        adding=tuple(move.get("adding_replicas", ())),
        removing=tuple(move.get("removing_replicas", ())),
    )


def _log_dirs(
    admin: Any, brokers: Sequence[Mapping[str, Any]], topics: Sequence[Mapping[str, Any]]
) -> tuple[dict[int, Disk], dict[tuple[Place, int], int]]:
    """Return the disks of the brokers that reply, and the sizes of their replicas."""
    from kafka.errors import KafkaError

    asked = {topic["name"]: [partition["partition_index"] for partition in topic["partitions"]] for topic in topics}
    disks: dict[int, Disk] = {}
    sizes: dict[tuple[Place, int], int] = {}
    for broker in brokers:
        number = broker["broker_id"]
        try:
            [answer] = admin.describe_log_dirs(topic_partitions=asked, brokers=[number])
        except KafkaError:
            continue
        directories = [directory for directory in answer["log_dirs"] if not directory["error_code"]]
        used = 0
        for directory in directories:
            for topic in directory["topics"]:
                for partition in topic["partitions"]:
                    used += partition["partition_size"]
                    if not partition["is_future_key"]:
                        sizes[(topic["name"], partition["partition_index"]), number] = partition["partition_size"]
        disks[number] = Disk(used, _summed(directories, "total_bytes"), _summed(directories, "usable_bytes"))
    return disks, sizes


def _summed(directories: Sequence[Mapping[str, Any]], field: str) -> int | None:
    """Return the sum over log directories; None if the broker does not report it (before KIP-827)."""
    values = [directory.get(field, -1) for directory in directories]
    return None if not values or min(values) < 0 else sum(values)


def _with_min_isr(cluster: Cluster, state: State) -> State:
    """Add the topic's min.insync.replicas to partitions with replicas that are not in sync."""
    lacking = [partition for partition in state.partitions.values() if len(partition.isr) < len(partition.replicas)]
    resources = {name: ConfigResource(ResourceType.TOPIC, name) for name in {partition.topic for partition in lacking}}
    if not resources:
        return state
    futures = cluster.admin.describe_configs(list(resources.values()), request_timeout=REQUEST_TIMEOUT_S)
    needed: dict[str, int] = {}
    for name, resource in resources.items():
        try:
            entries = cluster.answer(futures[resource], f"listing the settings of topic '{name}'")
        except UnknownTopicError:  # deleted in the meantime
            continue
        needed[name] = int(entries["min.insync.replicas"].value)
    changed = {partition.place: replace(partition, min_isr=needed.get(partition.topic)) for partition in lacking}
    return replace(state, partitions={**state.partitions, **changed})


def _chunks(places: Sequence[Place]) -> Iterable[Sequence[Place]]:
    for start in range(0, len(places), _A_REQUEST):
        yield places[start : start + _A_REQUEST]
