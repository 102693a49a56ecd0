"""Move replicas to other brokers (KIP-455). Pure.

RS are a partition's replicas, TRS the target replicas. During a reassignment, RS contains the old and the new replicas.
The reassignment ends when TRS is in sync. Writing RS = TRS is the last step, so that the next controller can repeat all
earlier steps.
"""

from collections.abc import Iterable, Mapping, Sequence

from headrace.cluster.controller import partitions, replicas, selectors
from headrace.cluster.controller.context import Context, Replica
from headrace.cluster.controller.work import Work
from headrace.cluster.image import Assignment
from headrace.errors import ErrorCode, KafkaError
from headrace.types import TopicPartition


def validate(
    context: Context, partition: TopicPartition, target: Sequence[int] | None, *, resize: bool = True
) -> Assignment:
    """Return the assignment during a reassignment to `target`; if `target` is None, during its cancellation.

    Without `resize`, the number of replicas must stay the same (KIP-860).

    Raises KafkaError, with Kafka's codes. Unlike Kafka, refuse to remove the whole ISR: records would be lost.
    """
    if not context.exists(partition) or partition.topic in context.deleting:
        raise KafkaError(ErrorCode.unknown_topic_or_partition, "The partition does not exist.")
    current = context.assignment(partition)
    if target is None:
        if not current.is_moving:
            raise KafkaError(ErrorCode.no_reassignment_in_progress)
        return _safe(context, partition, current.reassigned_to(current.origin))
    if not target:
        raise _invalid("Empty replica list specified in partition reassignment.")
    if len(set(target)) < len(target):
        raise _invalid(f"Duplicate replica ids in partition reassignment replica list: {list(target)}")
    if any(replica < 0 for replica in target):
        raise _invalid(f"Invalid broker id in replica list: {list(target)}")
    wanted = current.reassigned_to(target)
    if not resize and len(target) != len(current.target):
        raise KafkaError(
            ErrorCode.invalid_replication_factor,
            f"The replication factor is changed from {len(current.target)} to {len(target)}",
        )
    if not context.live.issuperset(wanted.adding):
        raise _invalid(
            f"Replica assignment has brokers that are not alive. Replica list: {list(wanted.adding)}, live broker "
            f"list: {sorted(context.live)}"
        )
    return _safe(context, partition, wanted)


def _safe(context: Context, partition: TopicPartition, wanted: Assignment) -> Assignment:
    state = context.states.get(partition)
    if state is not None and not set(state.isr) & set(wanted.replicas):
        raise _invalid(f"This would remove all in-sync replicas, {list(state.isr)}: keep one until another is in sync.")
    return wanted


def reassign(work: Work, wanted: Mapping[TopicPartition, Assignment]) -> None:
    """Begin reassignments in place of earlier ones, and finish those whose target is in sync.

    Each step covers all partitions: the replicas of a topic are in one node, which is written as a whole.
    """
    context = work.context
    before = {partition: context.assignment(partition) for partition in wanted}
    changed = {partition: replaced for partition, replaced in before.items() if replaced != wanted[partition]}
    for partition in changed:
        context.assign(partition, wanted[partition])
    _write_assignments(work, changed)
    # Delete replicas that earlier reassignments were adding.
    unneeded = [
        Replica(partition, broker)
        for partition, replaced in changed.items()
        for broker in replaced.replicas
        if broker not in wanted[partition].replicas
    ]
    if unneeded:
        _delete(work, unneeded)
        _replace_leaders(work, dict.fromkeys(replica.partition for replica in unneeded))
    context.moving.update(wanted)
    finished = _complete_among(context, wanted)
    _begin(work, {partition: assignment for partition, assignment in wanted.items() if partition not in finished})
    _end(work, finished)


def resume(work: Work, targets: Iterable[int] | None = None) -> None:
    """Repeat the current step of all reassignments, or of those to `targets`."""
    context = work.context
    brokers = None if targets is None else set(targets)
    assignments = {partition: context.assignment(partition) for partition in sorted(context.moving)}
    reassign(
        work,
        {
            partition: assignment
            for partition, assignment in assignments.items()
            if brokers is None or not brokers.isdisjoint(assignment.target)
        },
    )


def complete(work: Work, changed: Iterable[TopicPartition]) -> None:
    """Finish the reassignments among these partitions, whose ISR has changed, if their target is in sync."""
    context = work.context
    moving = {partition: context.assignment(partition) for partition in changed if partition in context.moving}
    _end(work, _complete_among(context, moving))


def _replace_leaders(work: Work, changed: Iterable[TopicPartition]) -> None:
    """Elect new leaders for partitions whose leader was among the deleted replicas."""
    context = work.context
    leaderless = [
        partition
        for partition in changed
        if partition in context.states and not context.is_online(context.states[partition].leader, partition)
    ]
    partitions.to_offline(work, leaderless)
    partitions.to_online(work, leaderless, selectors.offline(unclean=work.may_be_unclean))


def _complete_among(context: Context, moving: Mapping[TopicPartition, Assignment]) -> dict[TopicPartition, Assignment]:
    return {item: assignment for item, assignment in moving.items() if _is_complete(context, item, assignment)}


def _is_complete(context: Context, partition: TopicPartition, assignment: Assignment) -> bool:
    state = context.states.get(partition)
    return not assignment.is_moving or (state is not None and set(assignment.target) <= set(state.isr))


def _begin(work: Work, wanted: Mapping[TopicPartition, Assignment]) -> None:
    """Send the assignments to all replicas under the next leader epoch, and start the new replicas."""
    for partition, assignment in wanted.items():
        if partition in work.context.states:
            _raise_epoch(work, partition, assignment)
    work.flush()
    added = [Replica(partition, broker) for partition, assignment in wanted.items() for broker in assignment.adding]
    replicas.to_new(work, [replica for replica in added if replica not in work.context.replica_phases])
    work.flush()


def _end(work: Work, finished: Mapping[TopicPartition, Assignment]) -> None:
    context = work.context
    added = [Replica(partition, broker) for partition, assignment in finished.items() for broker in assignment.adding]
    replicas.to_online(work, added)
    work.flush()
    for partition, assignment in finished.items():
        final = Assignment(assignment.target)
        context.assign(partition, final)
        state = context.states.get(partition)
        if state is None:
            continue
        if state.leader in final.replicas and context.is_online(state.leader, partition):
            # Leaders must not add removed replicas to the ISR again.
            _raise_epoch(work, partition, final)
        else:
            partitions.to_online(work, [partition], selectors.reassigned)
    work.flush()
    _delete(
        work,
        [Replica(partition, broker) for partition, assignment in finished.items() for broker in assignment.removing],
    )
    _write_assignments(work, finished)
    context.moving.difference_update(finished)
    if finished:
        work.batch.announce(finished)
    work.flush()
    for partition in finished:
        work.note(f"{partition} now has the replicas {list(context.assignment(partition).replicas)}")


def _raise_epoch(work: Work, partition: TopicPartition, assignment: Assignment) -> None:
    state = work.context.states[partition]
    work.set_state(partition, state._replace(leader_epoch=state.leader_epoch + 1))
    # Old replicas are not new: if a log directory has failed, its replicas must not be created in another one.
    work.batch.lead(assignment.origin, partition, assignment)
    work.batch.lead(assignment.adding, partition, assignment, is_new=True)


def _delete(work: Work, gone: Sequence[Replica]) -> None:
    """Remove replicas from the ISR, and delete them. As in Kafka, a broker that is down keeps its log."""
    replicas.to_offline(work, gone)
    work.flush()
    replicas.to_deletion_started(work, gone)
    work.flush()
    replicas.to_deletion_successful(work, gone)
    replicas.to_non_existent(work, gone)


def _write_assignments(work: Work, changed: Iterable[TopicPartition]) -> None:
    for topic in dict.fromkeys(partition.topic for partition in changed):
        work.write_assignments(topic)


def _invalid(reason: str) -> KafkaError:
    return KafkaError(ErrorCode.invalid_replica_assignment, reason)
