"""Watch the partitions of a fetch session, so that a fetch reads only those that may have changed.

A partition of a session is either in its `ready` set or watched here. If no fetch is waiting, a watcher is
removed after the first change, so the session of a disconnected client costs at most one call per partition.
"""

from collections.abc import Callable, Iterable
from weakref import ref

from headrace.broker.apis.fetch_answers import Answered
from headrace.broker.fetch_session import FetchPartition, FetchSession
from headrace.errors import ErrorCode
from headrace.replication.leading.led_replica import LedReplica
from headrace.replication.replica import Replica


class SessionNews:
    """Watches the partitions of a session, which belongs to a consumer or to the follower with id `follower`."""

    __slots__ = ("_follower", "_session", "listeners")

    def __init__(self, session: FetchSession, follower: int | None) -> None:
        self._session = session
        self._follower = follower
        self.listeners: dict[Callable[[Replica, int], None], None] = {}
        """Called with a partition and the number of new bytes while a fetch of the session waits."""

    def watch(self, wanted: FetchPartition, partition: Replica) -> None:
        """Add `wanted` to the ready set when more can be read."""
        if wanted.watched() is not partition:
            self.unwatch(wanted)
            # Weak: the session must not keep the files of a deleted partition open.
            wanted.watched = ref(partition)
        if self._follower is None:
            partition.growth.add(self._visible)
        elif isinstance(partition, LedReplica):
            partition.log_growth.add(self._appended)
            partition.growth.add(self._committed)

    def remember(self, changed: Iterable[Answered], *, is_cut: bool) -> None:
        """Store a reply's offsets in the session. `is_cut`: the reply's byte limit may have cut off records."""
        for wanted, error, partition, part, diverging, _ in changed:
            if error is not ErrorCode.none or diverging is not None:
                # The next reply must contain the partition, to report the end of the error or the high watermark.
                wanted.last_high_watermark = -1
            elif partition is not None:
                wanted.last_high_watermark = partition.high_watermark
                wanted.last_log_start_offset = partition.log.state.log_start_offset
            if part is not None and is_cut:
                self._session.served(wanted)

    def settle(self, read: Iterable[Answered], *, read_committed: bool) -> None:
        """Watch the partitions that have nothing left to read, so that the next request skips them."""
        for wanted, error, partition, part, diverging, _ in read:
            if part is not None or partition is None or error is not ErrorCode.none or diverging is not None:
                continue
            if wanted.preferred_replica >= 0:
                continue
            if self._follower is None:
                end = partition.visible_end(read_committed=read_committed)
            else:
                end = partition.log_end_offset
            if wanted.fetch_offset >= end and wanted.last_high_watermark == partition.high_watermark:
                self.watch(wanted, partition)
                self._session.ready.pop(wanted, None)

    def unwatch(self, wanted: FetchPartition) -> None:
        partition = wanted.watched()
        if isinstance(partition, Replica):
            partition.growth.discard(self._visible)
            partition.growth.discard(self._committed)
        if isinstance(partition, LedReplica):
            partition.log_growth.discard(self._appended)

    def _visible(self, partition: Replica, size: int) -> None:
        self._note(partition)
        if self.listeners:
            for listener in tuple(self.listeners):
                listener(partition, size)
        else:
            partition.growth.discard(self._visible)

    def _appended(self, partition: LedReplica, size: int) -> None:
        """Make the partition ready. If it was not, the follower had caught up at its latest request."""
        if self._note(partition) and partition.followers is not None and self._follower is not None:
            partition.followers.state.was_idle(self._follower, self._session.last_used_ms)
        if self.listeners:
            for listener in tuple(self.listeners):
                listener(partition, size)
        else:
            partition.log_growth.discard(self._appended)

    def _committed(self, partition: Replica, _: int) -> None:
        """Make the partition ready for a new high watermark, which the next reply contains; no fetch waits for it."""
        self._note(partition)
        partition.growth.discard(self._committed)

    def _note(self, partition: Replica) -> bool:
        """Make the partition ready. Return True if it was not."""
        topic, index = partition.topic_partition
        session = self._session
        wanted = session.partitions.get((partition.topic_id.int if session.uses_topic_ids else topic, index))
        if wanted is None or wanted in session.ready:
            return False
        session.ready[wanted] = None
        return True
