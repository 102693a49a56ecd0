"""Group commit: one fsync of a log covers all batches appended before it.

If `flush.messages` requires a flush, the append requests it here. The fsync runs in a thread, while the event loop
continues to append to this log; the next fsync covers these batches. A batch becomes visible to consumers and is
acknowledged after its fsync (docs/decisions/062).
"""

import asyncio
import errno
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Generic, Protocol, TypeVar

from headrace.errors import ErrorCode, KafkaError
from headrace.storage.log.log import Log
from headrace.types import TopicPartition

log = logging.getLogger(__name__)

_THREADS: Final = 8
"""Concurrent flushes: a file system journal combines several fsyncs into one transaction."""
_RETRY_S: Final = 0.5
_PASSING: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Temporary errors of opening the file, before the fsync: too many open files, or no memory."""


class Flushable(Protocol):
    """The part of a partition that flushes need."""

    log: Log
    topic_partition: TopicPartition
    awaits_flush: bool

    def __hash__(self) -> int:
        """Hash by identity."""

    def flushed_to(self, offset: int) -> None:
        """Handle a flush of the log up to `offset`."""


P = TypeVar("P", bound=Flushable)


class GroupCommit(Generic[P]):
    """Flushes partitions in threads. Use it on the event loop only."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_failure: Callable[[P, KafkaError], None]) -> None:
        """Call `on_failure` with a partition whose flush has failed; the flush is not retried."""
        self._loop = loop
        self._on_failure = on_failure
        self._threads: ThreadPoolExecutor | None = None
        self._is_closed = False
        self.partitions: set[P] = set()
        """Partitions with a pending flush."""

    def request(self, partition: P) -> None:
        """Flush the partition's log after the current iteration of the event loop."""
        if partition not in self.partitions:
            self.partitions.add(partition)
            self._loop.call_soon(self._flush, partition)

    def _flush(self, partition: P) -> None:
        if self._is_closed:
            return
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="headrace-fsync")
        end_offset = partition.log.log_end_offset
        flushing = self._loop.run_in_executor(self._threads, lambda: partition.log.flusher.flush(upto=end_offset))
        flushing.add_done_callback(lambda done: self._flushed(partition, end_offset, done))

    def _flushed(self, partition: P, end_offset: int, done: "asyncio.Future[None]") -> None:
        error = None if done.cancelled() else done.exception()
        if error is not None and getattr(error.__cause__, "errno", None) in _PASSING:
            log.error("Flushing %s failed and will be retried: %s", partition.topic_partition, error)
            self._loop.call_later(_RETRY_S, self._flush, partition)
            return
        self.partitions.discard(partition)
        if error is not None:
            self._give_up(partition, error)
        if error is not None or done.cancelled():
            return
        partition.flushed_to(end_offset)
        if partition.awaits_flush:
            self.request(partition)

    def _give_up(self, partition: P, error: BaseException) -> None:
        if not isinstance(error, KafkaError):
            log.error("Flushing %s failed: this is a bug, please report it", partition.topic_partition, exc_info=error)
            error = KafkaError(ErrorCode.kafka_storage_error, f"{partition.topic_partition} could not be flushed")
        self._on_failure(partition, error)

    def close(self) -> None:
        self._is_closed = True
        if self._threads is not None:
            self._threads.shutdown()
