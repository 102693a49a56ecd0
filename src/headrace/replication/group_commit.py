"""Group commit: one fsync of a log covers every batch that was appended before it began, and whoever waits for them.

Where `flush.messages` asks for a flush, an append only asks for it here. The fsync waits in a thread; meanwhile the
event loop serves others, and this log too: what is appended until the fsync ends is covered by the next one. A batch
becomes visible to consumers, and is acknowledged, when it is on the disk (docs/decisions/062).
"""

import asyncio
import errno
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from headrace.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from headrace.replication.partition import Partition

log = logging.getLogger(__name__)

_THREADS: Final = 8
"""Logs that are flushed at once: a journal takes several fsyncs into one transaction."""
_RETRY_S: Final = 0.5
_PASSING: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Of a flush that has not come to the disk: no file could be opened, as when too many clients are connected."""


class GroupCommit:
    """Flushes partitions in threads, which it starts with the first. Used by the thread of the event loop alone."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.on_failure: Callable[[Partition, KafkaError], None] = _nobody
        """Called with a partition whose log the disk did not take; it is never tried again."""
        self._threads: ThreadPoolExecutor | None = None
        self._is_closed = False
        self.partitions: set[Partition] = set()
        """Those that have a flush coming; to be read only."""
        self._waiting: dict[Partition, deque[tuple[int, asyncio.Future[None]]]] = {}

    def request(self, partition: "Partition") -> None:
        """Flush the partition's log, with all that is appended to it before the loop turns."""
        if partition not in self.partitions:
            self.partitions.add(partition)
            self._loop.call_soon(self._flush, partition)

    def committed(self, partition: "Partition", end_offset: int) -> "asyncio.Future[None]":
        """Done when what is before `end_offset` is on the disk; fails with KafkaError(kafka_storage_error)."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.setdefault(partition, deque()).append((end_offset, future))
        return future

    def _flush(self, partition: "Partition") -> None:
        if self._is_closed:
            return
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="headrace-fsync")
        end_offset = partition.log.log_end_offset
        flushing = self._loop.run_in_executor(self._threads, lambda: partition.log.flusher.flush(upto=end_offset))
        flushing.add_done_callback(lambda done: self._flushed(partition, end_offset, done))

    def _flushed(self, partition: "Partition", end_offset: int, done: "asyncio.Future[None]") -> None:
        error = None if done.cancelled() else done.exception()
        if error is not None and getattr(error.__cause__, "errno", None) in _PASSING:
            log.error("Whoever waits for the disk waits on, as the flush is tried again: %s", error)
            self._loop.call_later(_RETRY_S, self._flush, partition)
            return
        self.partitions.discard(partition)
        if error is not None:
            self._give_up(partition, error)
        if error is not None or done.cancelled():
            return
        partition.flushed_to(end_offset)
        waiting = self._waiting.get(partition)
        while waiting and waiting[0][0] <= end_offset:
            future = waiting.popleft()[1]
            if not future.done():
                future.set_result(None)
        if partition.awaits_flush or waiting:
            self.request(partition)
        else:
            self._waiting.pop(partition, None)

    def _give_up(self, partition: "Partition", error: BaseException) -> None:
        if not isinstance(error, KafkaError):
            log.error("Flushing %s failed", partition.topic_partition, exc_info=error)
            error = KafkaError(ErrorCode.kafka_storage_error, f"{partition.topic_partition} could not be flushed")
        for _, future in self._waiting.pop(partition, ()):
            if not future.done():
                future.set_exception(error)
        self.on_failure(partition, error)

    def close(self) -> None:
        """Wait for the flushes that are in flight. Whoever still waits has no connection any more."""
        self._is_closed = True
        if self._threads is not None:
            self._threads.shutdown()
        for waiting in self._waiting.values():
            for _, future in waiting:
                future.cancel()
        self._waiting.clear()


def _nobody(_: "Partition", __: KafkaError) -> None:
    """For partitions that nobody serves."""
