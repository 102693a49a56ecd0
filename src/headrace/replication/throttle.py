"""The throttle of replication traffic (KIP-73): a rate over a sliding window, and the replicas it applies to. Pure."""

from collections import deque
from typing import Final

from headrace.config.topic import THROTTLED_REPLICA
from headrace.types import TopicPartition

UNLIMITED: Final = 2**63 - 1
"""The default of the rates."""
_ALL: Final = "*"


class ReplicationThrottle:
    """One direction of replication traffic. Times are in seconds of a monotonic clock."""

    __slots__ = ("_all_of", "_replicas", "_samples", "_total", "_window_count", "_window_s", "rate")

    def __init__(self, *, window_count: int, window_s: float) -> None:
        self.rate = UNLIMITED
        """Bytes per second."""
        self._window_count = window_count
        self._window_s = window_s
        self._replicas: dict[str, frozenset[int]] = {}
        self._all_of: set[str] = set()
        self._samples: deque[tuple[float, int]] = deque()
        """Start time and bytes of every window, ascending."""
        self._total = 0

    def configure(self, topic: str, replicas: str, broker_id: int) -> list[str]:
        """Apply a topic's list of throttled replicas: `*`, or pairs `partition:broker` separated by commas.

        Ignore other entries, and return them: ZooKeeper may contain any text, and the broker must start nevertheless.
        """
        self._all_of.discard(topic)
        self._replicas.pop(topic, None)
        ignored: list[str] = []
        if replicas.strip() == _ALL:
            self._all_of.add(topic)
            return ignored
        partitions: set[int] = set()
        for entry in filter(None, map(str.strip, replicas.split(","))):
            pair = THROTTLED_REPLICA.fullmatch(entry)
            if pair is None:
                ignored.append(entry)
            elif int(pair[2]) == broker_id:
                partitions.add(int(pair[1]))
        if partitions:
            self._replicas[topic] = frozenset(partitions)
        return ignored

    def is_throttled(self, topic_partition: TopicPartition) -> bool:
        """Return True if the throttle applies to this partition's replica here."""
        topic, partition = topic_partition
        return topic in self._all_of or partition in self._replicas.get(topic, ())

    def record(self, size: int, now: float) -> None:
        """Count bytes of throttled replicas."""
        if not self._samples or now - self._samples[-1][0] >= self._window_s:
            self._samples.append((now, size))
        else:
            begin, counted = self._samples[-1]
            self._samples[-1] = begin, counted + size
        self._total += size
        self._drop_old(now)

    def is_exceeded(self, now: float) -> bool:
        """Return True if the traffic of the last windows was above the rate."""
        if self.rate == UNLIMITED or not self._samples:
            return False
        self._drop_old(now)
        if not self._samples:
            return False
        # like Kafka's SimpleRate: over the time that the samples cover, at least one window
        return self._total > self.rate * max(now - self._samples[0][0], self._window_s)

    def _drop_old(self, now: float) -> None:
        oldest = now - self._window_count * self._window_s
        while self._samples and self._samples[0][0] <= oldest:
            self._total -= self._samples.popleft()[1]
