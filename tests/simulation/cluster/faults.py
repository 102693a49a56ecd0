"""Faults planted in replication and in the controller, which the simulation must find."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final

from headrace.broker.apis.controls import ControlApis
from headrace.broker.commands import Commands
from headrace.broker.coordinators import durable_groups
from headrace.broker.coordinators.groups import Groups
from headrace.broker.coordinators.offsets_topic import OffsetsTopicLog
from headrace.broker.membership.member import Member
from headrace.cluster.controller.machine import ControllerMachine
from headrace.cluster.image import BrokerImage
from headrace.cluster.offices.candidate import Candidate
from headrace.cluster.offices.fenced_store import FencedStore
from headrace.coordinator.runtime.partitioner import partition_for
from headrace.coordinator.runtime.shards import Shards
from headrace.errors import ErrorCode
from headrace.replication.following.fetcher import Fetcher
from headrace.replication.following.follower_state import FollowerState
from headrace.replication.following.partition import FollowedPartition
from headrace.replication.leading.leader_state import LeaderState
from headrace.replication.partition import Partition
from headrace.replication.purgatory import Purgatory
from headrace.replication.replica_manager import ReplicaManager
from headrace.storage.log.log import Log
from tests.simulation.acts import replaced
from tests.unit.cluster.controller.faults import FAULTS as MACHINE_FAULTS


def _controller_epoch_is_not_checked() -> AbstractContextManager[None]:
    def make(check: Any) -> Any:
        def lenient(self: Any, request: Any, name: str) -> None:
            self._controller_epoch = 0
            check(self, request, name)

        return lenient

    return replaced(ControlApis, "_check", make)


def _broker_epoch_is_not_checked() -> AbstractContextManager[None]:
    def make(check: Any) -> Any:
        def lenient(self: Any, request: Any, name: str) -> None:
            known, self._broker_epoch = self._broker_epoch, lambda: -1
            try:
                check(self, request, name)
            finally:
                self._broker_epoch = known

        return lenient

    return replaced(ControlApis, "_check", make)


def _leader_epoch_of_a_command_is_not_checked() -> AbstractContextManager[None]:
    return replaced(ReplicaManager, "check", lambda _: lambda *__: ErrorCode.none)


def _moved_leaders_keep_leading() -> AbstractContextManager[None]:
    def make(_: Any) -> Any:
        async def keep(*_: Any) -> None:
            """Keep leading."""

        return keep

    return replaced(Commands, "resign_moved", make)


def _shrink_counts_before_its_answer() -> AbstractContextManager[None]:
    def make(shrink: Any) -> Any:
        def hasty(self: LeaderState, log_end: int, now_ms: int) -> Any:
            proposal = shrink(self, log_end, now_ms)
            if proposal is not None:
                self.maximal_isr = proposal.members
            return proposal

        return hasty

    return replaced(LeaderState, "shrink", make)


def _joining_replica_does_not_hold_back() -> AbstractContextManager[None]:
    def make(expand: Any) -> Any:
        def hasty(self: LeaderState, replica: int, high_watermark: int) -> Any:
            proposal = expand(self, replica, high_watermark)
            if proposal is not None:
                self.maximal_isr = self.isr
            return proposal

        return hasty

    return replaced(LeaderState, "expand", make)


def _replica_below_the_high_watermark_joins() -> AbstractContextManager[None]:
    return replaced(LeaderState, "_may_join", lambda _: lambda *__: True)


def _replica_below_the_epoch_joins() -> AbstractContextManager[None]:
    return replaced(
        LeaderState, "_may_join", lambda _: lambda _, follower, high_watermark: follower.end_offset >= high_watermark
    )


def _own_end_is_committed() -> AbstractContextManager[None]:
    def make(_: Any) -> Any:
        return lambda self, *, log_end, min_insync_replicas, now_ms: self.own_end

    return replaced(LeaderState, "committed_end", make)


def _min_isr_is_not_required() -> AbstractContextManager[None]:
    return replaced(LeaderState, "has_enough_in_sync", lambda _: lambda *__: True)


def _answer_before_the_commit() -> AbstractContextManager[None]:
    return replaced(Purgatory, "completion", lambda _: lambda *_, **__: None)


def _truncation_by_high_watermark() -> AbstractContextManager[None]:
    def make(follow: Any) -> Any:
        def old(self: Fetcher, partitions: Any) -> None:
            partitions = list(partitions)
            for partition in partitions:
                partition.truncate_to(partition.high_watermark)
            follow(self, partitions)

        return old

    return replaced(Fetcher, "follow", make)


def _no_truncation() -> AbstractContextManager[None]:
    return replaced(FollowedPartition, "truncate_where_diverging", lambda _: lambda self, *__: self.log_end_offset)


def _divergence_is_ignored() -> AbstractContextManager[None]:
    def make(action: Any) -> Any:
        def careless(self: Any, following: Any, fetched: Any, now: float) -> Any:
            return action(self, following, fetched._replace(diverging=None), now)

        return careless

    return replaced(FollowerState, "_action", make)


def _producers_survive_a_truncation() -> AbstractContextManager[None]:
    def make(_: Any) -> Any:
        def forgetful(self: FollowedPartition, *_: object) -> None:
            self.high_watermark = max(self.log_start_offset, min(self.high_watermark, self.log_end_offset))

        return forgetful

    return replaced(FollowedPartition, "_reload", make)


def _followers_do_not_note_producers() -> AbstractContextManager[None]:
    return replaced(FollowedPartition, "_note", lambda _: lambda *__: None)


def _waits_survive_the_loss_of_leadership() -> AbstractContextManager[None]:
    def make(fail_waits: Any) -> Any:
        def answering(self: Any, error: Any) -> None:
            self.high_watermark, shown = self.log_end_offset, self.high_watermark
            if self.completions is not None:
                self.completions.advanced(self)
            self.high_watermark = shown
            fail_waits(self, error)

        return answering

    return replaced(Partition, "fail_waits", make)


def _leading_begins_no_epoch() -> AbstractContextManager[None]:
    return replaced(Log, "begin_epoch", lambda _: lambda *_: None)


# Groups


def _coordinators_outlive_leadership() -> AbstractContextManager[None]:
    return replaced(Groups, "resigned", lambda _: lambda *_: None)


def _new_leaders_do_not_coordinate() -> AbstractContextManager[None]:
    return replaced(Groups, "led", lambda _: lambda *_: None)


def _groups_are_not_loaded() -> AbstractContextManager[None]:
    return replaced(OffsetsTopicLog, "batches", lambda _: lambda _: iter(()))


def _unloaded_groups_are_served() -> AbstractContextManager[None]:
    def make(of: Any) -> Any:
        def hasty(self: Any, name: str) -> Any:
            shard = self._led.get(partition_for(name, self.partition_count))
            return of(self, name) if shard is None else shard

        return hasty

    return replaced(Shards, "of", make)


def _commits_are_answered_before_followers_have_them() -> AbstractContextManager[None]:
    return replaced(durable_groups, "uncommitted_in", lambda _: lambda *_: lambda _: [])


# The controller


def _writes_are_not_fenced() -> AbstractContextManager[None]:
    def make(write: Any) -> Any:
        async def unfenced(self: FencedStore, operations: Any, parents: Any = ()) -> None:
            self._fence = self._fence._replace(version=-1)  # any
            await write(self, operations, parents)

        return unfenced

    return replaced(FencedStore, "write", make)


def _sessions_end_without_the_office() -> AbstractContextManager[None]:
    def make(_: Any) -> Any:
        async def stay(self: Candidate) -> None:
            """Stay in office."""

        return stay

    return replaced(Candidate, "_end", make)


def _lost_sessions_are_not_registered_again() -> AbstractContextManager[None]:
    def make(_: Any) -> Any:
        async def forget(self: Member) -> None:
            self.candidate.stand()

        return forget

    return replaced(Member, "_rejoin", make)


def _restarts_are_ignored() -> AbstractContextManager[None]:
    def make(changed: Any) -> Any:
        def careless(self: ControllerMachine, brokers: Any) -> Any:
            known = self.context.brokers
            same: list[BrokerImage] = [
                broker._replace(epoch=known[broker.id].epoch) if broker.id in known else broker for broker in brokers
            ]
            return changed(self, same)

        return careless

    return replaced(ControllerMachine, "brokers_changed", make)


def _answers_to_stops_are_ignored() -> AbstractContextManager[None]:
    return replaced(ControllerMachine, "stopped", lambda _: lambda *_: [])


GROUP_FAULTS: Final[dict[str, Callable[[], AbstractContextManager[None]]]] = {
    "coordinators outlive their leadership": _coordinators_outlive_leadership,
    "new leaders do not coordinate": _new_leaders_do_not_coordinate,
    "groups are not loaded": _groups_are_not_loaded,
    "groups are served before they are loaded": _unloaded_groups_are_served,
    "commits are answered before followers have them": _commits_are_answered_before_followers_have_them,
}
"""Faults in the coordinators of groups, which only histories with groups reveal."""

FAULTS: Final[dict[str, Callable[[], AbstractContextManager[None]]]] = {
    "the controller's epoch is not checked": _controller_epoch_is_not_checked,
    "the broker's epoch is not checked": _broker_epoch_is_not_checked,
    "the leader epoch of a command is not checked": _leader_epoch_of_a_command_is_not_checked,
    "moved leaders keep leading": _moved_leaders_keep_leading,
    "a shrink counts before its answer": _shrink_counts_before_its_answer,
    "a joining replica does not hold the high watermark back": _joining_replica_does_not_hold_back,
    "a replica below the high watermark joins": _replica_below_the_high_watermark_joins,
    "a replica below the start of the epoch joins": _replica_below_the_epoch_joins,
    "the leader's own end is committed": _own_end_is_committed,
    "min ISR is not required": _min_isr_is_not_required,
    "an answer before the commit": _answer_before_the_commit,
    "truncation by high watermark": _truncation_by_high_watermark,
    "no truncation": _no_truncation,
    "divergence is ignored": _divergence_is_ignored,
    "producers survive a truncation": _producers_survive_a_truncation,
    "followers do not note producers": _followers_do_not_note_producers,
    "waits end well at the loss of leadership": _waits_survive_the_loss_of_leadership,
    "leading begins no epoch": _leading_begins_no_epoch,
    "writes of the controller are not fenced": _writes_are_not_fenced,
    "an expired session does not end the office": _sessions_end_without_the_office,
    "lost sessions are not registered again": _lost_sessions_are_not_registered_again,
    "restarts of brokers are ignored": _restarts_are_ignored,
    "answers to StopReplica are ignored": _answers_to_stops_are_ignored,
    **{name: partial(replaced, *fault) for name, fault in MACHINE_FAULTS.items()},
}
