"""Sample the committed offsets of all groups and the log ends of their partitions, in slices.

The timestamps of records are in files. A sweep only collects the records; `look_up_times` reads the files in a thread.
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
from headrace.monitoring.groups.progress import Arrays, GroupProgress, TopicProgress
from headrace.monitoring.groups.standing import UNKNOWN, Standing, Total
from headrace.replication.replica import Replica
from headrace.storage.log.indexes.index import CorruptIndexError
from headrace.storage.log.marker_scan import scan_markers
from headrace.storage.log.producers.marker_counts import Range, Scanned
from headrace.storage.log.timestamps import timestamp_at
from headrace.types import TopicPartition

log = logging.getLogger(__name__)

_PARTITIONS_PER_STEP = 1000
_SCANS_PER_SWEEP = 8
_MOST_PARTITIONS = 100_000
"""Larger partition numbers are ignored: a client's mistake must not use up memory."""
_NOTHING: Final[Mapping[int, CommittedOffset]] = MappingProxyType({})


class Reset(StrEnum):
    """The assumed start of a group without committed offsets: clients do not send their `auto.offset.reset`."""

    EARLIEST = "earliest"
    LATEST = "latest"


class Wanted(NamedTuple):
    """A record whose timestamp must be looked up."""

    progress: GroupProgress
    number: int
    partition: Replica
    offset: int


class MarkerScan(NamedTuple):
    """A range of offsets whose transaction markers have not been counted."""

    partition: Replica
    wanted: Range


class GroupSampler:
    """The state of all groups, as of the latest sweep."""

    def __init__(
        self,
        groups: Callable[[], list[tuple[Group, GroupOffsets]]],
        topics: Topics,
        partition: Callable[[str, int], Replica | None],
        assumed_reset: Reset = Reset.EARLIEST,
    ) -> None:
        """`partition` returns a partition whose end this broker knows; None for others."""
        self._groups = groups
        self._cluster_topics = topics
        self._partition = partition
        self.assumed_reset = assumed_reset
        self._topics: dict[str, TopicProgress] = {}
        self._progress: dict[str, dict[str, GroupProgress]] = {}
        self._reads: dict[str, tuple[Group, int, str, Reads]] = {}
        """The partitions that members read, with the group, its generation and its state at that time."""
        self._scans: dict[TopicPartition, MarkerScan] = {}
        self._gone: set[tuple[str, str]] = set()
        """Groups and topics that have disappeared since the last sample was written."""

    def sweep(self, now_ms: int, wanted: list[Wanted]) -> Iterator[None]:
        """Update all groups, and append to `wanted` the records whose timestamps must be looked up.

        Yields before each topic of a group, and within large topics.
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
        """Update one group and its topics, as `sweep` does."""
        fresh: dict[str, TopicProgress] = {}
        yield from self._update(group, offsets, fresh, now_ms, wanted)
        self._topics.update(fresh)

    def standings(self, group_id: str, now_ms: int) -> dict[str, Iterator[Standing]]:
        """Return the group's standings by topic, as of the latest sweep. They are computed as they are read."""
        return {
            topic: progress.standings(self._topics[topic], now_ms)
            for topic, progress in self._progress.get(group_id, {}).items()
            if topic in self._topics
        }

    def totals(self, group_id: str) -> dict[str, Total]:
        return {topic: progress.total for topic, progress in self._progress.get(group_id, {}).items()}

    def arrays(self) -> "list[Arrays]":
        """Return the state of all partitions that groups read."""
        return [
            progress.arrays(group_id, topic, self._topics[topic])
            for group_id, topics in self._progress.items()
            for topic, progress in topics.items()
            if topic in self._topics
        ]

    def changed(self, now_ms: int, rows: list[tuple[str, str, bytes]]) -> Iterator[None]:
        """Append `(group, topic, data)` to `rows` for every group and topic that has changed since it was written.

        Empty data means that the group no longer exists or no longer reads the topic. States that are not in the file
        come before others, in case there is no room for all.
        """
        others: list[tuple[str, str, bytes]] = []
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
                    (rows if progress.written is None else others).append((group_id, name, data))
                    progress.written = hash(data)
            yield
        rows += others

    def add_earlier(self, series: Iterable[tuple[str, str]]) -> None:
        """Add the groups and topics that an earlier process sampled, to report those that have disappeared since."""
        self._gone.update(series)

    def write_again(self, series: Iterable[tuple[str, str]]) -> None:
        """Include these groups and topics in the next sample, or their ends if they have disappeared."""
        for group_id, topic in series:
            progress = self._progress.get(group_id, {}).get(topic)
            if progress is None:
                self._gone.add((group_id, topic))
            else:
                progress.written = None

    def write_all_again(self) -> None:
        """Include every group and topic in the next sample, whether changed or not."""
        for topics in self._progress.values():
            for progress in topics.values():
                progress.written = None

    def live(self) -> list[tuple[str, str]]:
        """Return all sampled pairs of group and topic."""
        return [(group_id, topic) for group_id, topics in self._progress.items() for topic in topics]

    @property
    def partition_total(self) -> int:
        """The number of sampled partitions. A partition counts once for every group that reads it."""
        return sum(len(topic.committed) for topics in self._progress.values() for topic in topics.values())

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
            # Only a commit creates new objects: comparing the offsets of an idle group is a fast identity check.
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
                self._note_uncounted(name, progress, topic)
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

    def take_scans(self) -> list[MarkerScan]:
        """Remove and return some pending scans. Pass them to `scan` in a thread, and its result to `learn`."""
        scans = list(self._scans.values())[:_SCANS_PER_SWEEP]
        for item in scans:
            del self._scans[item.partition.topic_partition]
        return scans

    def _note_uncounted(self, name: str, progress: GroupProgress, topic: TopicProgress) -> None:
        for index, (offset, start, markers) in enumerate(
            zip(progress.positions, topic.starts, topic.markers, strict=False)
        ):
            if markers is None or not 0 <= offset < markers.known_from:
                continue
            wanted = markers.unknown(max(offset, start))
            partition = None if wanted is None else self._partition(name, index)
            if wanted is None or partition is None:
                continue
            before = self._scans.get(partition.topic_partition)
            if before is None or wanted.start < before.wanted.start:
                self._scans[partition.topic_partition] = MarkerScan(partition, wanted)

    def _reads_of(self, group: Group) -> Reads:
        """Return the partitions that members read; for an empty group, those that its last members read."""
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
        """Return `committed` with the assumed start for partitions without an offset; None if all have an offset."""
        positions = None
        starts = topic.starts if self.assumed_reset is Reset.EARLIEST else topic.ends
        for index in range(len(starts)) if read is None else read:
            if index < len(starts) and committed[index] < 0:
                if positions is None:
                    positions = committed[:]
                positions[index] = max(starts[index], 0)
        return positions

    def _topic(self, name: str, now_ms: int) -> Generator[None, None, TopicProgress]:
        starts, ends, markers = [], [], []
        _, count = self._cluster_topics.describe(name) or (b"", 0)
        for index in range(count):
            if index % _PARTITIONS_PER_STEP == _PARTITIONS_PER_STEP - 1:
                yield
            partition = self._partition(name, index)
            starts.append(UNKNOWN if partition is None else partition.log_start_offset)
            ends.append(UNKNOWN if partition is None else partition.last_stable_offset)
            markers.append(None if partition is None else partition.transactions.markers)
        topic = self._topics.get(name)
        if topic is None:
            return TopicProgress(starts, ends, now_ms, markers)
        topic.update(starts, ends, now_ms, markers)
        return topic


def look_up_times(wanted: Iterable[Wanted]) -> list[tuple[Wanted, int]]:
    """Return the timestamps (ms) of the records that can be found. Reads files: call it in a thread."""
    found = []
    for item in wanted:
        try:
            time_ms = timestamp_at(item.partition.log.segments.ordered, item.offset)
        except (OSError, KafkaError, CorruptIndexError, struct.error) as error:
            # The log may have been changed or deleted during the look-up. The next sweep retries.
            log.debug(
                "Cannot look up the timestamp of offset %s in %s: %s",
                item.offset,
                item.partition.topic_partition,
                error,
            )
            continue
        if time_ms is not None:
            found.append((item, time_ms))
    return found


def scan(scans: Iterable[MarkerScan]) -> list[tuple[MarkerScan, Scanned]]:
    """Count markers in a limited number of batches of each partition. Reads files: call it in a thread."""
    found = []
    for item in scans:
        try:
            found.append((item, scan_markers(item.partition.log.segments.ordered, item.wanted)))
        except (OSError, KafkaError, CorruptIndexError, struct.error) as error:
            log.debug("Cannot count the transaction markers in %s: %s", item.partition.topic_partition, error)
    return found


def learn(found: Iterable[tuple[MarkerScan, Scanned]]) -> None:
    """Store the counts that `scan` found, for the next sweep."""
    for item, scanned in found:
        item.partition.transactions.markers.learn(scanned)
