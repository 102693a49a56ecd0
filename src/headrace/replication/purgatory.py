"""Decides when an append is complete: committed, on the disk, refused, or not in time.

An append is committed when the high watermark has passed it. Until then its sender waits here, be it Produce, a group
whose records go to `__consumer_offsets`, or a transaction's marker (docs/decisions/080).
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from headrace.errors import ErrorCode, KafkaError
from headrace.replication.appends import ALL_REPLICAS
from headrace.replication.group_commit import GroupCommit
from headrace.replication.partition import Partition
from headrace.replication.slow_disk import SlowDisk

Outcome: TypeAlias = KafkaError | None
"""None for an append that is complete, or why it is not: refused (the partition's own error), or request_timed_out."""
Completion: TypeAlias = asyncio.Future[Outcome]

_MAX_TIMEOUT_S: Final = 86_400.0


class _Goal(NamedTuple):
    end_offset: int
    on_disk: bool
    """Whether the records have to be on the disk here; otherwise the high watermark has to pass them."""


class Purgatory:
    """Waits for appends of all partitions. Used by the thread of the event loop alone."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waits: dict[Partition, dict[Completion, _Goal]] = {}
        self._group_commit: GroupCommit[Partition] = GroupCommit(loop, self._flush_failed)
        self.slow_disk = SlowDisk()
        self.on_failure: Callable[[Partition, KafkaError], None] = _nobody
        """Called with a partition whose log the disk did not take; it is never tried again."""

    @property
    def uncommitted(self) -> set[Partition]:
        """Partitions with records that are not committed yet; to be read only."""
        return self._group_commit.partitions

    # What those ask who have appended

    def completion(self, partition: Partition, end_offset: int, acks: int, *, timeout_s: float) -> Completion | None:
        """Done when a producer that asks for `acks` may be answered; None where it may be at once."""
        if partition.high_watermark >= end_offset:
            return None
        if acks == ALL_REPLICAS:
            return self.committed(partition, end_offset, timeout_s=timeout_s)
        return self.flushed(partition, end_offset) if acks and partition.awaits_flush else None

    def committed(self, partition: Partition, end_offset: int, *, timeout_s: float | None = None) -> Completion:
        """Done when what is before `end_offset` is committed, or will not be, or after `timeout_s` (seconds)."""
        return self._wait(partition, _Goal(end_offset, on_disk=False), timeout_s)

    def flushed(self, partition: Partition, end_offset: int) -> Completion:
        """Done when what is before `end_offset` is on the disk of this broker, to which it goes now, or never will."""
        self._group_commit.request(partition)
        return self._wait(partition, _Goal(end_offset, on_disk=True), None)

    async def topic_committed(self, topic: str) -> Outcome:
        """Wait until what has been appended to the topic so far is committed; the first reason why it is not."""
        waits = [
            self.committed(each, each.log_end_offset)
            for each in self.uncommitted
            if each.topic_partition.topic == topic
        ]
        return next((each for each in await asyncio.gather(*waits) if each is not None), None)

    def _wait(self, partition: Partition, goal: _Goal, timeout_s: float | None) -> Completion:
        future: Completion = self._loop.create_future()
        if _reached(partition, goal):
            future.set_result(None)
            return future
        self._waits.setdefault(partition, {})[future] = goal
        timer = None
        if timeout_s is not None:
            timer = self._loop.call_later(min(max(timeout_s, 0), _MAX_TIMEOUT_S), _time_out, partition, goal, future)
        future.add_done_callback(partial(self._forget, partition, timer))
        return future

    def _forget(self, partition: Partition, timer: asyncio.TimerHandle | None, future: Completion) -> None:
        """It is done, or the one who waited for it has gone."""
        if timer is not None:
            timer.cancel()
        waits = self._waits.get(partition)
        if waits is not None:
            waits.pop(future, None)
            if not waits:
                del self._waits[partition]

    # What partitions tell

    def flush(self, partition: Partition) -> None:
        """Bring the partition's log to the disk, with all that is appended to it before the loop turns."""
        self._group_commit.request(partition)

    def advanced(self, partition: Partition) -> None:
        """The high watermark or the recovery point of the partition has risen."""
        waits = self._waits.get(partition)
        if waits is None:
            return
        to_flush = False
        for future, goal in waits.items():
            if future.done():
                continue
            if _reached(partition, goal):
                future.set_result(None)
            else:
                to_flush |= goal.on_disk
        if to_flush:
            self._group_commit.request(partition)

    def refuse(self, partition: Partition, error: KafkaError) -> None:
        """The partition goes away: what is not complete by now is not going to be."""
        for future in self._waits.pop(partition, ()):
            if not future.done():
                future.set_result(error)

    def _flush_failed(self, partition: Partition, error: KafkaError) -> None:
        self.refuse(partition, error)
        self.on_failure(partition, error)

    def close(self) -> None:
        """Wait for the flushes that are in flight. Those that still wait have no connection any more."""
        self._group_commit.close()
        for waits in list(self._waits.values()):
            for future in waits:
                future.cancel()
        self._waits.clear()


def _reached(partition: Partition, goal: _Goal) -> bool:
    reached = partition.log.flusher.recovery_point if goal.on_disk else partition.high_watermark
    return reached >= goal.end_offset


def _time_out(partition: Partition, goal: _Goal, future: Completion) -> None:
    if not future.done():
        future.set_result(
            KafkaError(
                ErrorCode.request_timed_out,
                f"{partition.topic_partition} has not committed the records before {goal.end_offset} in time",
            )
        )


def _nobody(_: Partition, __: KafkaError) -> None:
    """For partitions that nobody serves."""
