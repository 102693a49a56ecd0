"""Looks at every group's offsets and at the ends of what it reads, a slice of time at a time.

The look-ups of record times read files: they are collected here and made by whoever has a thread for them.
"""

import logging
import struct
from array import array
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from headrace.coordinator.groups.group import Group, Reads
from headrace.coordinator.groups.records.offsets import CommittedOffset
from headrace.coordinator.groups.state.offsets import GroupOffsets
from headrace.coordinator.groups.subscriptions import Topics
from headrace.errors import KafkaError
from headrace.monitoring.groups.progress import GroupProgress, TopicProgress
from headrace.monitoring.groups.standing import UNKNOWN, Standing, Total
from headrace.replication.partition import Partition
from headrace.storage.log.indexes.index import CorruptIndexError
from headrace.storage.log.timestamps import timestamp_at

log = logging.getLogger(__name__)

_PARTITIONS_PER_STEP = 1000
_MOST_PARTITIONS = 100_000
"""Of one topic: numbers beyond are somebody's mistake, and no reason to need as much memory."""
_NOTHING: Final[Mapping[int, CommittedOffset]] = MappingProxyType({})


class Reset(StrEnum):
    """Where a group is assumed to start in a partition without a committed offset: its `auto.offset.reset`, which
    clients do not tell brokers.
    """

    EARLIEST = "earliest"
    LATEST = "latest"


class Wanted(NamedTuple):
    """The record at `offset`, whose time is to be looked up."""

    progress: GroupProgress
    number: int
    partition: Partition
    offset: int


class Arrays(NamedTuple):
    """A group in a topic: for each partition the committed offset, the first unread one, the end, and the time of the
    next record; -1 for what is not known.
    """

    group_id: str
    topic: str
    committed: "array[int]"
    positions: "array[int]"
    ends: "array[int]"
    times: "array[int]"


class GroupSampler:
    """The present state of every group, as of the latest sweep."""

    def __init__(
        self,
        groups: Callable[[], list[tuple[Group, GroupOffsets]]],
        topics: Topics,
        partition: Callable[[str, int], Partition | None],
        assumed_reset: Reset = Reset.EARLIEST,
    ) -> None:
        """`partition` finds one that this broker leads."""
        self._groups = groups
        self._cluster_topics = topics
        self._partition = partition
        self.assumed_reset = assumed_reset
        self._topics: dict[str, TopicProgress] = {}
        self._progress: dict[str, dict[str, GroupProgress]] = {}
        self._reads: dict[str, tuple[Group, int, str, Reads]] = {}
        """What the members of each group read, with the generation and the state it was found in."""
        self._gone: set[tuple[str, str]] = set()
        """Groups and topics that have ended since the last sample was written."""

    def sweep(self, now_ms: int, wanted: list[Wanted]) -> Iterator[None]:
        """Bring everything up to date; yields after each topic of a group, and within large topics. Record times to
        look up go to `wanted`.
        """
        groups = self._groups()
        fresh: dict[str, TopicProgress] = {}
        for group, offsets in groups:
            yield from self._update(group, offsets, fresh, now_ms, wanted)
        self._topics = fresh
        for gone in self._progress.keys() - {group.group_id for group, _ in groups}:
            self._gone.update((gone, topic) for topic in self._progress.pop(gone))
            self._reads.pop(gone, None)

    def sweep_one(self, group: Group, offsets: GroupOffsets, now_ms: int, wanted: list[Wanted]) -> Iterator[None]:
        """Bring one group up to date, with its topics, as `sweep` does."""
        fresh: dict[str, TopicProgress] = {}
        yield from self._update(group, offsets, fresh, now_ms, wanted)
        self._topics.update(fresh)

    def standings(self, group_id: str, now_ms: int) -> dict[str, list[Standing]]:
        """Topic to where the group stands in it, as of the latest sweep."""
        return {
            topic: progress.standings(self._topics[topic], now_ms)
            for topic, progress in self._progress.get(group_id, {}).items()
            if topic in self._topics
        }

    def totals(self, group_id: str) -> dict[str, Total]:
        """Topic to how the group fares in it, as of the latest sweep."""
        return {topic: progress.total for topic, progress in self._progress.get(group_id, {}).items()}

    def arrays(self) -> "list[Arrays]":
        """What is known of every partition that a group reads."""
        return [
            Arrays(group_id, topic, progress.committed, progress.positions, self._topics[topic].ends, progress.times)
            for group_id, topics in self._progress.items()
            for topic, progress in topics.items()
            if topic in self._topics
        ]

    def changed(self, now_ms: int, rows: list[tuple[str, str, bytes]]) -> Iterator[None]:
        """Put group, topic and bytes of what is not as it was when it was last written into `rows`; yields now and
        then. What has ended has no bytes any more.
        """
        rows += ((*key, b"") for key in self._gone - set(self.live()))
        self._gone.clear()
        for group_id, topics in list(self._progress.items()):
            for name, progress in list(topics.items()):
                topic = self._topics.get(name)
                if topic is None:
                    continue
                if progress.written is not None and not progress.has_moved:
                    continue
                progress.sum_up(topic, now_ms)
                yield
                progress.has_moved = False
                data = progress.as_bytes(topic)
                if progress.written != hash(data):
                    progress.written = hash(data)
                    rows.append((group_id, name, data))
            yield

    def watched_before(self, series: Iterable[tuple[str, str]]) -> None:
        """What an earlier broker watched: it has ended, unless it is still there."""
        self._gone.update(series)

    def written_is_lost(self) -> None:
        """What was written cannot be relied on: everything is to be written again."""
        for topics in self._progress.values():
            for progress in topics.values():
                progress.written = None

    def live(self) -> list[tuple[str, str]]:
        """Group and topic of all that is watched."""
        return [(group_id, topic) for group_id, topics in self._progress.items() for topic in topics]

    @property
    def partition_total(self) -> int:
        """How many partitions all groups read together."""
        return sum(len(each.committed) for topics in self._progress.values() for each in topics.values())

    def _update(
        self,
        group: Group,
        offsets: GroupOffsets,
        fresh: dict[str, TopicProgress],
        now_ms: int,
        wanted: list[Wanted],
    ) -> Iterator[None]:
        known = self._progress.setdefault(group.group_id, {})
        reads = self._reads_of(group)
        topics = [*offsets, *(name for name in reads if name not in offsets and self._cluster_topics.describe(name))]
        for name in known.keys() - set(topics):
            del known[name]
            self._gone.add((group.group_id, name))
        for name in topics:
            yield
            topic = fresh.get(name)
            if topic is None:
                topic = fresh[name] = yield from self._topic(name, now_ms)
            partitions, read = offsets.get(name, _NOTHING), reads.get(name, ())
            progress = known.get(name)
            # Each commit makes a new object, so that those of a group at rest are compared by identity.
            seen = list(partitions.values())
            if (
                progress is None
                or progress.topic_version is not topic.version
                or progress.seen != seen
                or progress.read != read
                or not progress.is_dated
            ):
                numbers = min(max(partitions, default=-1) + 1, _MOST_PARTITIONS)
                committed = array("q", [UNKNOWN]) * max(len(topic.ends), numbers)
                for index, offset in partitions.items():
                    if index < len(committed):
                        committed[index] = offset.offset
                if progress is None:
                    progress = known[name] = GroupProgress(committed, now_ms)
                elif progress.committed == committed:
                    committed = progress.committed
                progress.seen[:], progress.read, progress.topic_version = seen, read, topic.version
                undated = progress.update(committed, topic, self._positions(committed, topic, read))
                for place, (index, offset_wanted) in enumerate(undated):
                    if place % _PARTITIONS_PER_STEP == 0:
                        yield
                    partition = self._partition(name, index)
                    if partition is not None:
                        wanted.append(Wanted(progress, index, partition, offset_wanted))
            progress.rates.note(progress.committed, now_ms)
            if not progress.has_moved and (progress.total.lag or progress.total.pace or progress.total.arrival):
                yield
                progress.sum_up(topic, now_ms)

    def _reads_of(self, group: Group) -> Reads:
        """What the members read. While a group is empty it is what its last members read: its lag must not shrink
        because they are gone.
        """
        before = self._reads.get(group.group_id)
        if group.is_empty:
            return {} if before is None else before[-1]
        if before is not None and before[0] is group and before[1:3] == (group.generation, group.state):
            return before[-1]
        reads = group.reads()
        self._reads[group.group_id] = group, group.generation, group.state, reads
        return reads

    def _positions(
        self, committed: "array[int]", topic: TopicProgress, read: Collection[int] | None
    ) -> "array[int] | None":
        """Committed offsets, and where the group would start in what it reads without one; None where there is none."""
        positions = None
        starts = topic.starts if self.assumed_reset is Reset.EARLIEST else topic.ends
        for index in range(len(starts)) if read is None else read:
            if index < len(starts) and committed[index] < 0:
                if positions is None:
                    positions = committed[:]
                positions[index] = max(starts[index], 0)
        return positions

    def _topic(self, name: str, now_ms: int) -> Generator[None, None, TopicProgress]:
        starts, ends = [], []
        _, count = self._cluster_topics.describe(name) or (b"", 0)
        for index in range(count):
            if index % _PARTITIONS_PER_STEP == _PARTITIONS_PER_STEP - 1:
                yield
            partition = self._partition(name, index)
            starts.append(UNKNOWN if partition is None else partition.log_start_offset)
            ends.append(UNKNOWN if partition is None else partition.high_watermark)
        topic = self._topics.get(name)
        if topic is None:
            return TopicProgress(starts, ends, now_ms)
        topic.update(starts, ends, now_ms)
        return topic


def look_up(wanted: Iterable[Wanted]) -> list[tuple[Wanted, int]]:
    """The time of each record, in ms, of those that could be found. Reads files: call it in a thread."""
    found = []
    for each in wanted:
        try:
            time_ms = timestamp_at(each.partition.log.segments.ordered, each.offset)
        except (OSError, KafkaError, CorruptIndexError, struct.error) as error:
            # The log may have moved on under the look-up, or is being deleted; the next sweep asks again.
            log.debug("The time of %s in %s was not found: %s", each.offset, each.partition.topic_partition, error)
            continue
        if time_ms is not None:
            found.append((each, time_ms))
    return found
