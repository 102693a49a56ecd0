"""Tells those who wait for a partition to grow by how many bytes it has, so that they need not look at its log."""

from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar
from weakref import ref

from headrace.storage.log.log import Log
from headrace.storage.log.segment import Segment

UNKNOWN_SIZE: Final = -1
"""In place of bytes, where a new segment has begun, where not all of what was appended is seen yet, or at the end."""


class Growing(Protocol):
    """A partition, as far as its growth goes."""

    log: Log
    high_watermark: int


P = TypeVar("P", bound=Growing)


class Growth(Generic[P]):
    """The watchers of one partition. They are called during an append: they only count, or schedule work."""

    __slots__ = ("_find", "_segment", "_size", "watchers")

    def __init__(self, partition: P) -> None:
        self.watchers: set[Callable[[P, int], None]] = set()
        """Called with the partition and the bytes that it has grown by."""
        # weak: in a cycle of references the files of a deleted partition would stay open until the next collection
        self._find = ref(partition)
        self._segment: Segment | None = None
        self._size = 0

    def add(self, watcher: Callable[[P, int], None]) -> None:
        """Call `watcher` whenever consumers see more, until `discard`."""
        if not self.watchers:
            self._note()
        self.watchers.add(watcher)

    def discard(self, watcher: Callable[[P, int], None]) -> None:
        """Stop calling `watcher`."""
        self.watchers.discard(watcher)

    def tell(self) -> None:
        """Call everybody after the high watermark has risen."""
        partition = self._find()
        assert partition is not None  # it calls this
        segment, size = self._segment, self._size
        self._note()
        added = self._size - size if segment is not None and segment is self._segment else UNKNOWN_SIZE
        for watcher in self.watchers:
            watcher(partition, added)

    def lose_count(self) -> None:
        """The next `tell` does not know by how many bytes consumers see more."""
        self._segment = None

    def wake_all(self) -> None:
        """Call everybody when the partition goes away."""
        partition = self._find()
        if partition is not None:
            for watcher in tuple(self.watchers):
                watcher(partition, UNKNOWN_SIZE)

    def _note(self) -> None:
        """Remember where the log ends, unless consumers do not see all of it."""
        partition = self._find()
        self._segment = None
        if partition is not None and partition.high_watermark == partition.log.log_end_offset:
            self._segment = partition.log.segments.active
            self._size = self._segment.size
