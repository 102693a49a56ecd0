"""Faults injected into the coordinator, which the simulation must find."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Final

from headrace.coordinator.groups.classic.group import ClassicGroup
from headrace.coordinator.groups.classic.rebalance import Rebalance
from headrace.coordinator.groups.consumer import classic_members, steps
from headrace.coordinator.groups.consumer.group import ConsumerGroup
from headrace.coordinator.groups.consumer.state import ConsumerState
from headrace.coordinator.groups.effects import TimerKind
from headrace.coordinator.groups.state import migration
from headrace.coordinator.groups.state.shard import GroupShard
from headrace.coordinator.runtime import shards
from headrace.coordinator.runtime.timers import Timers
from headrace.errors import KafkaError
from tests.simulation.acts import replaced


def _generation_is_not_checked() -> AbstractContextManager[None]:
    def make(check: Any) -> Any:
        return lambda group, member_id, instance_id, _: check(group, member_id, instance_id, group.generation)

    return replaced(Rebalance, "check_member", make)


def _assigned_before_revoked() -> AbstractContextManager[None]:
    def make(reconcile: Any) -> Any:
        return lambda member, aim: reconcile(member, replace(aim, is_free=lambda _: True))

    return replaced(steps, "reconcile", make)


def _revocation_is_not_awaited() -> AbstractContextManager[None]:
    def make(reconcile: Any) -> Any:
        return lambda member, aim: reconcile(member, replace(aim, owned=frozenset()))

    return replaced(steps, "reconcile", make)


def _member_is_forgotten_on_reload() -> AbstractContextManager[None]:
    def make(restore: Any) -> Any:
        return lambda group, metadata: restore(group, metadata._replace(members=metadata.members[1:]))

    return replaced(Rebalance, "restore", make)


def _stale_commit_is_accepted() -> AbstractContextManager[None]:
    return replaced(ClassicGroup, "check_offset_commit", lambda _: lambda *__, **___: [])


def _stale_commit_of_a_consumer_is_accepted() -> AbstractContextManager[None]:
    def make(check: Any) -> Any:
        def lenient(group: Any, *arguments: Any, **options: Any) -> Any:
            try:
                return check(group, *arguments, **options)
            except KafkaError:
                return None

        return lenient

    return replaced(ConsumerState, "check_offset_commit", make)


def _timer_is_lost(kind: TimerKind) -> Callable[[], AbstractContextManager[None]]:
    def make(schedule: Any) -> Any:
        return lambda timers, key, deadline: None if key[1].kind is kind else schedule(timers, key, deadline)

    return lambda: replaced(Timers, "schedule", make)


def _timers_fire_in_a_batch() -> AbstractContextManager[None]:
    return replaced(Timers, "expired", lambda expired: lambda timers, now: list(expired(timers, now)))


def _fencing_is_off() -> AbstractContextManager[None]:
    def make(check: Any) -> Any:
        def lenient(group: Any, member_id: str, instance_id: str | None, generation: int) -> Any:
            return check(group, group.membership.static.get(instance_id, member_id), instance_id, generation)

        return lenient

    return replaced(Rebalance, "check_member", make)


def _former_assignment_is_sent() -> AbstractContextManager[None]:
    def make(propagate: Any) -> Any:
        def stale(group: Any, out: Any, assignments: Any, error: Any) -> None:
            former = {
                member.member_id: member.assignment or assignments.get(member.member_id, b"")
                for member in group.membership.members.values()
            }
            propagate(group, out, former, error)

        return stale

    return replaced(Rebalance, "_propagate", make)


def _failed_write_counts_as_written() -> AbstractContextManager[None]:
    def make(append: Any) -> Any:
        def careless(self: Any, shard: Any, decision: Any, now_ms: int) -> int:
            try:
                return int(append(self, shard, decision, now_ms))
            except KafkaError:
                return 0

        return careless

    return replaced(shards.Shards, "_append", make)


def _offset_is_forgotten_on_reload() -> AbstractContextManager[None]:
    def make(replay: Any) -> Any:
        def forgetful(shard: Any, key: bytes, value: bytes | None, offset: int, **more: Any) -> bool:
            if value is not None and len(value) % 2 == 0 and key[1] == 1 and key[-1] == 2:
                return True
            return bool(replay(shard, key, value, offset, **more))

        return forgetful

    return replaced(GroupShard, "replay_bytes", make)


def _departure_is_not_noticed() -> AbstractContextManager[None]:
    return replaced(steps.Steps, "bump", lambda _: lambda *__: None)


def _rebalance_does_not_wait() -> AbstractContextManager[None]:
    def make(_: Any) -> Any:
        def impatient(group: Any, out: Any, now_ms: int) -> None:
            if group.state == "PreparingRebalance":
                for member in group.membership.members.values():
                    member.instance_id = member.instance_id or ""
                group.complete_join(out, now_ms)

        return impatient

    return replaced(Rebalance, "maybe_complete_join", make)


def _upgrade_treats_unrevoked_partitions_as_free() -> AbstractContextManager[None]:
    return replaced(migration, "_unrevoked", lambda _: lambda members: [member for member, _ in members])


def _upgrade_forgets_assignments() -> AbstractContextManager[None]:
    def make(convert: Any) -> Any:
        def forgetful(*arguments: Any) -> Any:
            member, owned = convert(*arguments)
            return replace(member, assigned={}), owned

        return forgetful

    return replaced(migration, "_converted", make)


def _downgraded_group_does_not_rebalance(*, after_reload: bool) -> Callable[[], AbstractContextManager[None]]:
    def make_loaded(loaded: Any) -> Any:
        def content(group: Any, now_ms: int) -> Any:
            group._rebalance.needs_rebalance = False
            return loaded(group, now_ms)

        return content

    def make_take_over(take_over: Any) -> Any:
        return lambda group, protocols, _, now_ms: take_over(group, protocols, None, now_ms)

    if after_reload:
        return lambda: replaced(ClassicGroup, "loaded", make_loaded)
    return lambda: replaced(ClassicGroup, "take_over", make_take_over)


def _removed_member_keeps_its_partitions() -> AbstractContextManager[None]:
    def make(decode: Any) -> Any:
        def lenient(request: Any) -> Any:
            subscription = decode(request)
            return subscription._replace(owned=())

        return lenient

    return replaced(classic_members, "_subscription_in", make)


def _assignment_is_sent_once() -> AbstractContextManager[None]:
    def make(_: Any) -> Any:
        return lambda group, request, before, after: request.is_full or after.assigned.keys() != before.assigned.keys()

    return replaced(ConsumerGroup, "_needs_assignment", make)


FAULTS: Final[dict[str, Callable[[], AbstractContextManager[None]]]] = {
    "generation is not checked": _generation_is_not_checked,
    "assigned before revoked": _assigned_before_revoked,
    "revocation is not awaited": _revocation_is_not_awaited,
    "member is forgotten on reload": _member_is_forgotten_on_reload,
    "stale commit is accepted": _stale_commit_is_accepted,
    "stale commit of a consumer is accepted": _stale_commit_of_a_consumer_is_accepted,
    "join timer is lost": _timer_is_lost(TimerKind.JOIN),
    "session timer is lost": _timer_is_lost(TimerKind.HEARTBEAT),
    "revocation timer is lost": _timer_is_lost(TimerKind.REVOCATION),
    "timers fire in a batch": _timers_fire_in_a_batch,
    "static members are not fenced": _fencing_is_off,
    "former assignment is sent": _former_assignment_is_sent,
    "failed write counts as written": _failed_write_counts_as_written,
    "offset is forgotten on reload": _offset_is_forgotten_on_reload,
    "assignment is sent once": _assignment_is_sent_once,
    "departure is not noticed": _departure_is_not_noticed,
    "rebalance does not wait": _rebalance_does_not_wait,
    "upgrade forgets assignments": _upgrade_forgets_assignments,
    "upgrade treats unrevoked partitions as free": _upgrade_treats_unrevoked_partitions_as_free,
    "removed member keeps its partitions": _removed_member_keeps_its_partitions,
    "downgraded group does not rebalance": _downgraded_group_does_not_rebalance(after_reload=False),
    "downgraded group does not rebalance after a reload": _downgraded_group_does_not_rebalance(after_reload=True),
}
