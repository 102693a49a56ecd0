"""Wait for appends to complete: to be committed, flushed or refused, or to time out.

An append is committed when the high watermark has passed it. Produce requests, group coordinators and transaction
markers wait here until then (docs/decisions/080).
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from headrace.errors import ErrorCode, KafkaError
from headrace.promise import Promise
from headrace.replication.appends import ALL_REPLICAS
from headrace.replication.group_commit import GroupCommit
from headrace.replication.partition import Partition
from headrace.replication.slow_disk import SlowDisk

Outcome: TypeAlias = KafkaError | None
"""None if the append is complete, otherwise the partition's error or request_timed_out."""
Completion: TypeAlias = asyncio.Future[Outcome]
Wait: TypeAlias = Completion | Promise[Outcome]

_MAX_TIMEOUT_S: Final = 86_400.0


class _Goal(NamedTuple):
    end_offset: int
    on_disk: bool
    """True if the local disk must have the records; otherwise the high watermark has to pass them."""


class Purgatory:
    """Waits for appends to all partitions. Use it on the event loop only."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waits: dict[Partition, dict[Wait, _Goal]] = {}
        self._group_commit: GroupCommit[Partition] = GroupCommit(loop, self._flush_failed)
        self.slow_disk = SlowDisk()
        self.on_failure: Callable[[Partition, KafkaError], None] = _ignore
        """Called with a partition whose flush has failed; the flush is not retried."""

    @property
    def uncommitted(self) -> set[Partition]:
        return self._group_commit.partitions

    # Waits

    def completion(self, partition: Partition, end_offset: int, acks: int, *, timeout_s: float) -> Wait | None:
        """Return the wait before a producer with `acks` gets its reply; None if it gets the reply at once.

        If followers must fetch the records first, the wait is a promise, so that their fetch completes the reply.
        """
        if partition.high_watermark >= end_offset:
            return None
        if acks == ALL_REPLICAS:
            if partition.followers is None:
                return self.committed(partition, end_offset, timeout_s=timeout_s)
            promise: Promise[Outcome] = Promise()
            self._add(partition, _Goal(end_offset, on_disk=False), timeout_s, promise)
            return promise
        return self.flushed(partition, end_offset) if acks and partition.awaits_flush else None

    def committed(self, partition: Partition, end_offset: int, *, timeout_s: float | None = None) -> Completion:
        """Return a future that is done when everything before `end_offset` is committed, or has failed or timed out."""
        return self._wait(partition, _Goal(end_offset, on_disk=False), timeout_s)

    def flushed(self, partition: Partition, end_offset: int) -> Completion:
        """Start a flush. Return a future that is done when everything before `end_offset` is flushed or has failed."""
        self._group_commit.request(partition)
        wait = self._wait(partition, _Goal(end_offset, on_disk=True), None)
        if self.slow_disk.until_ns:
            wait.add_done_callback(partial(self._note_wait, time.time_ns()))
        return wait

    def _note_wait(self, began_ns: int, _: Completion) -> None:
        self.slow_disk.waited(began_ns)

    async def topic_committed(self, topic: str) -> Outcome:
        """Wait until the topic's partitions with a pending flush have committed all records. Return the first error."""
        waits = [
            self.committed(partition, partition.log_end_offset)
            for partition in self.uncommitted
            if partition.topic_partition.topic == topic
        ]
        return next((error for error in await asyncio.gather(*waits) if error is not None), None)

    def _wait(self, partition: Partition, goal: _Goal, timeout_s: float | None) -> Completion:
        future: Completion = self._loop.create_future()
        if _reached(partition, goal):
            future.set_result(None)
        else:
            self._add(partition, goal, timeout_s, future)
        return future

    def _add(self, partition: Partition, goal: _Goal, timeout_s: float | None, future: Wait) -> None:
        self._waits.setdefault(partition, {})[future] = goal
        timer = None
        if timeout_s is not None:
            timer = self._loop.call_later(min(max(timeout_s, 0), _MAX_TIMEOUT_S), _time_out, partition, goal, future)
        future.add_done_callback(partial(self._forget, partition, timer))

    def _forget(self, partition: Partition, timer: asyncio.TimerHandle | None, future: Wait) -> None:
        if timer is not None:
            timer.cancel()
        waits = self._waits.get(partition)
        if waits is not None:
            waits.pop(future, None)
            if not waits:
                del self._waits[partition]

    # Calls of partitions

    def flush(self, partition: Partition) -> None:
        """Flush the partition's log, after the current iteration of the event loop."""
        self._group_commit.request(partition)

    def advanced(self, partition: Partition) -> None:
        """Complete waits after the high watermark or the recovery point has risen."""
        waits = self._waits.get(partition)
        if waits is None:
            return
        to_flush = False
        shortage = None if partition.followers is None else partition.followers.shortage()
        for future, goal in tuple(waits.items()):
            if future.done():
                continue
            if _reached(partition, goal):
                future.set_result(None if goal.on_disk else shortage)
            else:
                to_flush |= goal.on_disk
        if to_flush:
            self._group_commit.request(partition)

    def refuse(self, partition: Partition, error: KafkaError) -> None:
        """Fail all waits for a partition that was deleted or went offline."""
        for future in self._waits.pop(partition, ()):
            if not future.done():
                future.set_result(error)

    def _flush_failed(self, partition: Partition, error: KafkaError) -> None:
        self.refuse(partition, error)
        self.on_failure(partition, error)

    def close(self) -> None:
        """Wait for running flushes, and cancel all waits."""
        self._group_commit.close()
        for waits in list(self._waits.values()):
            for future in tuple(waits):
                future.cancel()
        self._waits.clear()


def _reached(partition: Partition, goal: _Goal) -> bool:
    reached = partition.log.flusher.recovery_point if goal.on_disk else partition.high_watermark
    return reached >= goal.end_offset


def _time_out(partition: Partition, goal: _Goal, future: Wait) -> None:
    if not future.done():
        future.set_result(
            KafkaError(
                ErrorCode.request_timed_out,
                f"{partition.topic_partition} did not commit the records before offset {goal.end_offset} in time",
            )
        )


def _ignore(_: Partition, __: KafkaError) -> None:
    """Do nothing."""


def all_done(promises: Sequence[Promise[Outcome]]) -> Promise[None]:
    """Return a promise that is done when all `promises` are, with any outcome. Cancelling it cancels them."""
    done: Promise[None] = Promise()
    left = len(promises)

    def count(_: object) -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set_result(None)

    def end(_: object) -> None:
        for promise in promises:
            promise.cancel()

    done.add_done_callback(end)
    for promise in promises:
        promise.add_done_callback(count)
    return done
