"""Faults that tests plant in the controller's machine."""

from collections.abc import Callable, Iterable
from typing import Any

from headrace.cluster.controller import deletion, isr, partitions, reassignment, replicas, selectors
from headrace.cluster.controller.batches import Batch
from headrace.cluster.controller.transitions import ReplicaPhase
from headrace.cluster.controller.work import Work
from headrace.cluster.image import LeaderState
from headrace.types import TopicPartition


def _without_version(original: Callable[..., LeaderState]) -> Callable[..., LeaderState]:
    def set_state(work: Work, partition: TopicPartition, state: LeaderState) -> LeaderState:
        written = original(work, partition, state)
        work.context.states[partition] = written._replace(version=written.version - 1)
        return work.context.states[partition]

    return set_state


def _without_shrinking(_: object) -> Callable[..., None]:
    def to_offline(work: Work, offline: Iterable[Any]) -> None:
        for replica in offline:
            work.context.replica_phases[replica] = ReplicaPhase.OFFLINE
            work.batch.stop(replica.broker, replica.partition, delete=False)

    return to_offline


def _leaders_only(original: Callable[..., None]) -> Callable[..., None]:
    def lead(batch: Batch, brokers: Iterable[int], partition: TopicPartition, *rest: Any, **options: Any) -> None:
        leader = batch._context.states[partition].leader
        original(batch, [broker for broker in brokers if broker == leader], partition, *rest, **options)

    return lead


def _always(value: object) -> Callable[[object], Callable[..., object]]:
    return lambda _: lambda *_args, **_options: value


FAULTS: dict[str, tuple[Any, str, Callable[[Any], Any]]] = {
    "the version of a written state is not predicted": (Work, "set_state", _without_version),
    "assignments are not written": (Work, "write_assignments", _always(None)),
    "a reassignment ends before its target is in sync": (reassignment, "_is_complete", _always(True)),
    "reassignments are not resumed": (reassignment, "resume", _always(None)),
    "a reassignment may remove the whole ISR": (reassignment, "_safe", lambda _: lambda _context, _partition, to: to),
    "dead brokers join the ISR": (isr, "_is_eligible", _always(True)),
    "restarts between two controllers are ignored": (selectors, "has_restarted", _always(False)),
    "dead brokers are elected": (
        selectors,
        "_online",
        lambda _: lambda context, partition: context.assignment(partition).replicas,
    ),
    "elections are unclean": (selectors, "offline", lambda original: lambda **_: original(unclean=lambda _: True)),
    "nobody is elected": (partitions, "elect_offline", _always(None)),
    "dead replicas stay in the ISR": (replicas, "to_offline", _without_shrinking),
    "deletions are not resumed": (deletion, "resume", _always(None)),
    "failed deletions are ignored": (deletion, "replicas_failed", _always(None)),
    "leaders are not announced": (
        Batch,
        "announce",
        lambda original: lambda batch, _, brokers=None: original(batch, (), brokers),
    ),
    "followers get no orders": (Batch, "lead", _leaders_only),
}
