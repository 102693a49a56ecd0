"""Report the growth of a partition in bytes to waiting fetches, so that they do not have to read its log."""

from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar
from weakref import ref

from headrace.storage.log.log import Log
from headrace.storage.log.segment import Segment

UNKNOWN_SIZE: Final = -1
"""Reported after a new segment, if some appended records are not visible yet, and when the partition is removed."""


class Growing(Protocol):
    """The part of a partition that growth depends on."""

    log: Log
    high_watermark: int


P = TypeVar("P", bound=Growing)


class Growth(Generic[P]):
    """The watchers of one partition. Called during appends, they may only count or schedule work."""

    __slots__ = ("_find", "_of_log", "_segment", "_size", "watchers")

    def __init__(self, partition: P, *, of_log: bool = False) -> None:
        """`of_log`: report appended records, which followers can read, not only those that consumers can read."""
        self._of_log = of_log
        self.watchers: dict[Callable[[P, int], None], None] = {}
        """Called with the partition and the number of new bytes, in the order of `add`."""
        # Weak: a reference cycle would keep files of deleted partitions open until the next garbage collection.
        self._find = ref(partition)
        self._segment: Segment | None = None
        self._size = 0

    def add(self, watcher: Callable[[P, int], None]) -> None:
        """Call `watcher` whenever more can be read, until `discard`."""
        if not self.watchers:
            self._note()
        self.watchers[watcher] = None

    def discard(self, watcher: Callable[[P, int], None]) -> None:
        self.watchers.pop(watcher, None)

    def report(self) -> None:
        """Call the watchers after the high watermark or the log end offset has advanced."""
        partition = self._find()
        assert partition is not None  # the partition is the caller
        segment, size = self._segment, self._size
        self._note()
        added = self._size - size if segment is not None and segment is self._segment else UNKNOWN_SIZE
        for watcher in tuple(self.watchers):
            watcher(partition, added)

    def lose_count(self) -> None:
        """Report UNKNOWN_SIZE next time."""
        self._segment = None

    def wake_all(self) -> None:
        """Call the watchers, because the partition was deleted or went offline."""
        partition = self._find()
        if partition is not None:
            for watcher in tuple(self.watchers):
                watcher(partition, UNKNOWN_SIZE)

    def _note(self) -> None:
        """Remember the end of the log if all of it can be read."""
        partition = self._find()
        self._segment = None
        if partition is not None and (self._of_log or partition.high_watermark == partition.log.log_end_offset):
            self._segment = partition.log.segments.active
            self._size = self._segment.size
