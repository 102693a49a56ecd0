"""Change the phases of replicas, and inform their brokers. Pure."""

from collections.abc import Iterable

from headrace.cluster.controller.context import Replica
from headrace.cluster.controller.transitions import REPLICA_BEFORE, ReplicaPhase
from headrace.cluster.controller.work import Work
from headrace.cluster.image import NO_LEADER


def to_new(work: Work, replicas: Iterable[Replica]) -> None:
    """Start replicas that follow partitions for the first time."""
    context = work.context
    for replica in _valid(work, replicas, ReplicaPhase.NEW):
        state = context.states.get(replica.partition)
        if state is not None and state.leader == replica.broker:
            work.note(f"Replica {replica.broker} of {replica.partition} cannot be new: it is the leader")
            continue
        if state is not None:
            assignment = context.assignment(replica.partition)
            work.batch.lead((replica.broker,), replica.partition, assignment, is_new=True)
        context.replica_phases[replica] = ReplicaPhase.NEW


def to_online(work: Work, replicas: Iterable[Replica]) -> None:
    """Send brokers the states of their partitions, except for new replicas."""
    context = work.context
    for replica in _valid(work, replicas, ReplicaPhase.ONLINE):
        if context.replica_phases[replica] is not ReplicaPhase.NEW and replica.partition in context.states:
            work.batch.lead((replica.broker,), replica.partition, context.assignment(replica.partition))
        context.replica_phases[replica] = ReplicaPhase.ONLINE


def to_offline(work: Work, replicas: Iterable[Replica]) -> None:
    """Stop replicas, and remove them from the ISR. The last member stays in it, but no longer leads."""
    context = work.context
    for replica in _valid(work, replicas, ReplicaPhase.OFFLINE):
        partition, broker = replica
        work.batch.stop(broker, partition, delete=False)
        state = context.states.get(partition)
        if state is None:
            work.batch.announce([partition])
        else:
            if broker in state.isr and partition.topic not in context.deleting:
                isr = state.isr if len(state.isr) == 1 else tuple(member for member in state.isr if member != broker)
                work.set_state(partition, state.elected(NO_LEADER if state.leader == broker else state.leader, isr))
            if partition.topic not in context.deleting:
                assignment = context.assignment(partition)
                others = tuple(member for member in assignment.replicas if member != broker)
                work.batch.lead(others, partition, assignment)
        context.replica_phases[replica] = ReplicaPhase.OFFLINE


def to_deletion_started(work: Work, replicas: Iterable[Replica]) -> None:
    """Order brokers to delete the logs of replicas."""
    for replica in _valid(work, replicas, ReplicaPhase.DELETION_STARTED):
        work.batch.stop(replica.broker, replica.partition, delete=True)
        work.context.replica_phases[replica] = ReplicaPhase.DELETION_STARTED


def to_deletion_successful(work: Work, replicas: Iterable[Replica]) -> None:
    _move(work, replicas, ReplicaPhase.DELETION_SUCCESSFUL)


def to_deletion_ineligible(work: Work, replicas: Iterable[Replica]) -> None:
    _move(work, replicas, ReplicaPhase.DELETION_INELIGIBLE)


def to_non_existent(work: Work, replicas: Iterable[Replica]) -> None:
    """Forget replicas, and remove them from their assignments."""
    context = work.context
    for replica in _valid(work, replicas, ReplicaPhase.NON_EXISTENT):
        context.assign(replica.partition, context.assignment(replica.partition).without(replica.broker))
        del context.replica_phases[replica]


def _move(work: Work, replicas: Iterable[Replica], phase: ReplicaPhase) -> None:
    for replica in _valid(work, replicas, phase):
        work.context.replica_phases[replica] = phase


def _valid(work: Work, replicas: Iterable[Replica], phase: ReplicaPhase) -> list[Replica]:
    """Return the replicas that may enter the phase. Log the others, which are a bug."""
    phases = work.context.replica_phases
    valid = []
    for replica in replicas:
        before = phases.setdefault(replica, ReplicaPhase.NON_EXISTENT)
        if before in REPLICA_BEFORE[phase]:
            valid.append(replica)
        else:
            work.note(
                f"Replica {replica.broker} of {replica.partition} cannot change from {before.name} to {phase.name}"
            )
    return valid
