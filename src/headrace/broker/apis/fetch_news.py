"""Watch the partitions of a fetch session, so that a fetch reads only those that may have changed.

A partition of a session is either in its `ready` set or watched here. If no fetch is waiting, a watcher is
removed after the first change, so the session of a disconnected client costs at most one call per partition.
"""

from collections.abc import Callable
from weakref import ref

from headrace.broker.fetch_session import FetchPartition, FetchSession
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
