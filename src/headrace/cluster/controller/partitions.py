"""Change the phases of partitions, and elect their leaders. Pure."""

from collections.abc import Iterable

from headrace.cluster.controller import selectors
from headrace.cluster.controller.selectors import RECOVERING, Selector
from headrace.cluster.controller.transitions import PARTITION_BEFORE, PartitionPhase
from headrace.cluster.controller.work import Work
from headrace.cluster.image import LeaderState
from headrace.types import TopicPartition


def to_new(work: Work, partitions: Iterable[TopicPartition]) -> None:
    _move(work, partitions, PartitionPhase.NEW)


def to_offline(work: Work, partitions: Iterable[TopicPartition]) -> None:
    _move(work, partitions, PartitionPhase.OFFLINE)


def to_non_existent(work: Work, partitions: Iterable[TopicPartition]) -> None:
    _move(work, partitions, PartitionPhase.NON_EXISTENT)


def to_online(work: Work, partitions: Iterable[TopicPartition], select: Selector) -> set[TopicPartition]:
    """Give new partitions their first leader, and elect leaders for others. Return partitions that got no leader."""
    context = work.context
    failed: set[TopicPartition] = set()
    for partition in _valid(work, partitions, PartitionPhase.ONLINE):
        if context.partition_phases[partition] is PartitionPhase.NEW:
            elected = _begin(work, partition)
        else:
            elected = _elect(work, partition, select)
        if elected:
            context.partition_phases[partition] = PartitionPhase.ONLINE
        else:
            failed.add(partition)
    return failed


def elect_offline(work: Work, topic: str | None = None) -> None:
    """Elect leaders for all partitions without one, or only for those of `topic`."""
    if not work.context.live:
        return
    waiting = [
        partition
        for partition, phase in work.context.partition_phases.items()
        if phase in (PartitionPhase.NEW, PartitionPhase.OFFLINE)
        and partition.topic not in work.context.deleting
        and topic in (None, partition.topic)
    ]
    to_online(work, waiting, selectors.offline(unclean=work.may_be_unclean))


def _begin(work: Work, partition: TopicPartition) -> bool:
    """Make the first online replica the leader, and all online ones the ISR."""
    context = work.context
    assignment = context.assignment(partition)
    online = tuple(replica for replica in assignment.replicas if context.is_online(replica, partition))
    if not online:
        work.note(f"{partition} gets no leader: none of its replicas {list(assignment.replicas)} is alive")
        return False
    work.create_state(partition, LeaderState(online[0], 0, online, 0, context.epoch))
    work.batch.lead(online, partition, assignment, is_new=True)
    return True


def _elect(work: Work, partition: TopicPartition, select: Selector) -> bool:
    context = work.context
    state = context.states.get(partition)
    elected = None if state is None else select(context, partition, state)
    if elected is None:
        isr = [] if state is None else list(state.isr)
        work.note(
            f"{partition} gets no leader: none of its replicas {list(context.assignment(partition).replicas)} "
            f"is alive and may lead (in-sync replicas {isr})"
        )
        return False
    if state is not None and elected.state.recovery == RECOVERING and elected.state.leader not in state.isr:
        work.unclean_elections += 1
        work.note(
            f"Unclean election: {partition} is led by {elected.state.leader}, which is not in the ISR "
            f"{list(state.isr)}: committed records may be lost"
        )
    work.set_state(partition, elected.state)
    work.batch.lead(elected.recipients, partition, context.assignment(partition))
    return True


def _move(work: Work, partitions: Iterable[TopicPartition], phase: PartitionPhase) -> None:
    for partition in _valid(work, partitions, phase):
        work.context.partition_phases[partition] = phase


def _valid(work: Work, partitions: Iterable[TopicPartition], phase: PartitionPhase) -> list[TopicPartition]:
    """Return the partitions that may enter the phase. Log the others, which are a bug."""
    phases = work.context.partition_phases
    valid = []
    for partition in partitions:
        before = phases.setdefault(partition, PartitionPhase.NON_EXISTENT)
        if before in PARTITION_BEFORE[phase]:
            valid.append(partition)
        else:
            work.note(f"{partition} cannot change from {before.name} to {phase.name}")
    return valid
