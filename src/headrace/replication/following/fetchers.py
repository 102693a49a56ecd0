"""The fetchers of this broker: `num.replica.fetchers` per leader, started and closed as partitions come and go."""

import logging
from collections.abc import Callable, Iterable, Mapping
from zlib import crc32

from headrace.replication.following.fetcher import Fetcher
from headrace.replication.following.partition import FollowedPartition
from headrace.types import TopicPartition

log = logging.getLogger(__name__)


class Fetchers:
    """All fetchers. Use it on the event loop only."""

    def __init__(self, create: Callable[[int, int], Fetcher], *, per_leader: int) -> None:
        """`create` returns a fetcher that is not started, for a leader's id and the fetcher's number."""
        self._create = create
        self._per_leader = per_leader
        self._fetchers: dict[tuple[int, int], Fetcher] = {}
        self._places: dict[TopicPartition, tuple[int, int]] = {}

    @property
    def all(self) -> Mapping[tuple[int, int], Fetcher]:
        """The fetchers by leader and number."""
        return self._fetchers

    def follow(self, partitions: Iterable[FollowedPartition]) -> None:
        """Fetch these partitions from their current leaders under their current leader epochs."""
        by_place: dict[tuple[int, int], list[FollowedPartition]] = {}
        for partition in partitions:
            topic_partition = partition.topic_partition
            place = (partition.leader, self._number_of(topic_partition))
            if self._places.get(topic_partition) != place:
                self.forget((topic_partition,))
            self._places[topic_partition] = place
            by_place.setdefault(place, []).append(partition)
        for place, followed in by_place.items():
            fetcher = self._fetchers.get(place)
            if fetcher is None:
                fetcher = self._fetchers[place] = self._create(*place)
                fetcher.start()
            fetcher.follow(followed)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop fetching these partitions. Nothing is appended to their logs after this."""
        for topic_partition in partitions:
            place = self._places.pop(topic_partition, None)
            # The fetcher may be closed already, if it has stopped fetching all its partitions.
            fetcher = None if place is None else self._fetchers.get(place)
            if fetcher is not None:
                fetcher.forget((topic_partition,))

    async def close_idle(self) -> None:
        """Close the fetchers that have no partitions left. Call it once after several changes."""
        for place, fetcher in list(self._fetchers.items()):
            if fetcher.is_idle:
                del self._fetchers[place]
                await fetcher.close()

    async def close(self) -> None:
        fetchers, self._fetchers = self._fetchers, {}
        self._places.clear()
        for fetcher in fetchers.values():
            await fetcher.close()

    def _number_of(self, topic_partition: TopicPartition) -> int:
        # as in Kafka, spread the partitions of a topic over the fetchers
        return (31 * crc32(topic_partition.topic.encode()) + topic_partition.partition) % self._per_leader
