"""Tells those who wait for a partition to grow by how many bytes it has, so that they need not look at its log."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from headrace.replication.partition import Partition
    from headrace.storage.log.segment import Segment

UNKNOWN_SIZE: Final = -1
"""In place of bytes, where a new segment has begun, where not all of what was appended is seen yet, or at the end."""

Watcher: TypeAlias = "Callable[[Partition, int], None]"
"""Called during an append with the partition and the bytes; it only counts, or schedules work."""


class Growth:
    """The watchers of one partition."""

    __slots__ = ("_partition", "_segment", "_size", "watchers")

    def __init__(self, partition: "Partition") -> None:
        self.watchers: set[Watcher] = set()
        self._partition = partition
        self._segment: Segment | None = None
        self._size = 0

    def add(self, watcher: Watcher) -> None:
        """Call `watcher` whenever consumers see more, until `discard`."""
        if not self.watchers:
            self._note()
        self.watchers.add(watcher)

    def discard(self, watcher: Watcher) -> None:
        """Stop calling `watcher`."""
        self.watchers.discard(watcher)

    def tell(self) -> None:
        """Call everybody after the high watermark has risen."""
        segment, size = self._segment, self._size
        self._note()
        added = self._size - size if segment is not None and segment is self._segment else UNKNOWN_SIZE
        for watcher in self.watchers:
            watcher(self._partition, added)

    def wake_all(self) -> None:
        """Call everybody when the partition goes away."""
        for watcher in tuple(self.watchers):
            watcher(self._partition, UNKNOWN_SIZE)

    def _note(self) -> None:
        """Remember where the log ends, unless consumers do not see all of it."""
        log = self._partition.log
        self._segment = None
        if self._partition.high_watermark == log.log_end_offset:
            self._segment = log.segments.active
            self._size = self._segment.size
