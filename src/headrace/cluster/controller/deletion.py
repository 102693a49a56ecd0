"""Delete topics. Pure.

A topic is deleted when all of its replicas are deleted. Until then, the deletion waits for brokers that are down and
for failed directories. The topic stays in `/admin/delete_topics`, so the next controller continues. Deletion ends the
topic's reassignments; Kafka's controller waits for them, perhaps forever.
"""

from collections.abc import Iterable
from typing import Final

from headrace.cluster import znodes
from headrace.cluster.controller import partitions, replicas
from headrace.cluster.controller.context import Replica
from headrace.cluster.controller.transitions import ReplicaPhase
from headrace.cluster.controller.work import Work
from headrace.cluster.image import TOPIC_CONFIG, ConfigResource


def begin(work: Work, topics: Iterable[str]) -> None:
    """Begin to delete topics that exist."""
    context = work.context
    context.deleting.update(topics)
    context.moving -= {partition for partition in context.moving if partition.topic in context.deleting}
    advance(work)


def halt(work: Work, topics: Iterable[str], reason: str) -> None:
    """Postpone the deletion of these topics until `resume`."""
    halted = work.context.deleting.intersection(topics) - work.context.undeletable
    if halted:
        work.context.undeletable |= halted
        work.note(f"The deletion of {', '.join(sorted(halted))} waits: {reason}")


def resume(work: Work, topics: Iterable[str]) -> None:
    """Try again to delete these topics."""
    resumed = work.context.deleting.intersection(topics)
    if resumed:
        work.context.undeletable -= resumed
        advance(work)


def replicas_failed(work: Work, failed: Iterable[Replica]) -> None:
    """Handle replicas that cannot be deleted now."""
    mine = [replica for replica in failed if replica.partition.topic in work.context.deleting]
    if mine:
        phases = work.context.replica_phases
        replicas.to_deletion_ineligible(work, [replica for replica in mine if phases.get(replica) in _STOPPED])
        halt(work, {replica.partition.topic for replica in mine}, "a replica cannot be deleted")
        advance(work)


def replicas_deleted(work: Work, deleted: Iterable[Replica]) -> None:
    """Handle replicas whose logs are deleted."""
    mine = [replica for replica in deleted if replica.partition.topic in work.context.deleting]
    replicas.to_deletion_successful(work, mine)
    advance(work)


def advance(work: Work) -> None:
    """Continue every deletion that does not have to wait."""
    context = work.context
    ready = []
    for topic in sorted(context.deleting):
        phases = {context.replica_phases.get(replica) for replica in context.replicas_of(topic)}
        if phases <= {ReplicaPhase.DELETION_SUCCESSFUL}:
            _complete(work, topic)
            continue
        if ReplicaPhase.DELETION_STARTED in phases:
            continue  # wait for the brokers' replies
        if ReplicaPhase.DELETION_INELIGIBLE in phases:
            replicas.to_offline(work, context.in_phase(topic, ReplicaPhase.DELETION_INELIGIBLE))
            work.flush()
        if topic not in context.undeletable:
            ready.append(topic)
    if ready:
        _start(work, ready)


def _start(work: Work, topics: list[str]) -> None:
    context = work.context
    unseen = [
        partition
        for topic in topics
        if topic not in context.deletion_started
        for partition in context.partitions_of(topic)
    ]
    partitions.to_offline(work, unseen)
    partitions.to_non_existent(work, unseen)
    context.deletion_started.update(topics)
    # Clients must no longer use the topics.
    work.batch.announce(partition for topic in topics for partition in context.partitions_of(topic))
    work.flush()
    alive: list[Replica] = []
    dead: list[Replica] = []
    for topic in topics:
        for replica in context.replicas_of(topic):
            if context.replica_phases.get(replica) is ReplicaPhase.DELETION_SUCCESSFUL:
                continue
            is_online = context.is_online(replica.broker, replica.partition)
            (alive if is_online else dead).append(replica)
    # Stop the followers first: otherwise they would fetch deleted partitions from the leaders.
    replicas.to_offline(work, [*alive, *dead])
    replicas.to_deletion_ineligible(work, dead)
    work.flush()
    replicas.to_deletion_started(work, alive)
    work.flush()
    halt(work, {replica.partition.topic for replica in dead}, "replicas are offline")


def _complete(work: Work, topic: str) -> None:
    context = work.context
    context.remove_topic(topic)
    work.remove(
        (
            znodes.config_path(ConfigResource(TOPIC_CONFIG, topic)),
            # In one request: a topic that is created again needs its own settings and must not be deleted.
            znodes.topic_path(topic),
            znodes.deletion_path(topic),
        )
    )
    work.note(f"Topic {topic} is deleted")


_STOPPED: Final = {ReplicaPhase.OFFLINE, ReplicaPhase.DELETION_STARTED}
