"""The assignors of the consumer protocol. Pure and deterministic.

`range` assigns consecutive partitions of every topic, co-partitioned for topics with equal partition counts. `uniform`
balances the number of partitions and moves as few as possible.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from heapq import heapify, heappop, heappush, heapreplace
from itertools import groupby
from operator import attrgetter
from typing import Final, NamedTuple, TypeAlias

from headrace.coordinator.groups.records.consumer import Partitions, TopicIdPartition

_TOPIC_ID: Final = attrgetter("topic_id")


class Subscriber(NamedTuple):
    """A member, as an assignor sees it."""

    member_id: str
    instance_id: str | None
    topic_ids: frozenset[bytes]
    current: Partitions
    """Its previous target assignment."""


Assignor: TypeAlias = Callable[[list[Subscriber], Mapping[bytes, int]], dict[str, Partitions]]
"""Takes the members, and the partition counts by topic id; returns the assignments by member id."""


def assign_range(subscribers: list[Subscriber], partition_counts: Mapping[bytes, int]) -> dict[str, Partitions]:
    """Assign ranges: first to static members, ordered by instance id, then to the others, ordered by member id.

    So a static member keeps its range when it restarts with a new member id, or when a dynamic member replaces another.
    """
    ordered = sorted(subscribers, key=lambda one: (one.instance_id is None, one.instance_id or "", one.member_id))
    readers: dict[bytes, list[str]] = defaultdict(list)
    for subscriber in ordered:
        for topic_id in subscriber.topic_ids:
            readers[topic_id].append(subscriber.member_id)
    assigned: dict[str, list[TopicIdPartition]] = {subscriber.member_id: [] for subscriber in subscribers}
    for topic_id, member_ids in readers.items():
        quota, extra = divmod(partition_counts[topic_id], len(member_ids))
        start = 0
        for position, member_id in enumerate(member_ids):
            end = start + quota + (position < extra)
            assigned[member_id] += (TopicIdPartition(topic_id, index) for index in range(start, end))
            start = end
    return {member_id: frozenset(partitions) for member_id, partitions in assigned.items()}


def assign_uniform(subscribers: list[Subscriber], partition_counts: Mapping[bytes, int]) -> dict[str, Partitions]:
    """Assign as evenly as the subscriptions allow, with few changes to the current assignment."""
    # If the counts cannot be equal, the members with most partitions keep the extra ones, which avoids moves.
    ordered = sorted(subscribers, key=lambda one: (-len(one.current), one.member_id))
    unassigned = {
        TopicIdPartition(topic_id, index) for topic_id, count in partition_counts.items() for index in range(count)
    }
    assigned: dict[str, list[TopicIdPartition]] = {}
    for subscriber in ordered:
        kept = [one for one in sorted(subscriber.current) if one.topic_id in subscriber.topic_ids and one in unassigned]
        unassigned.difference_update(kept)
        assigned[subscriber.member_id] = kept
    if len({subscriber.topic_ids for subscriber in subscribers}) == 1:
        _fill_evenly(assigned, unassigned)
    else:
        balance = _Balance(ordered, assigned)
        balance.fill(unassigned)
        balance.even_out()
        balance.put_into(assigned)
    return {member_id: frozenset(partitions) for member_id, partitions in assigned.items()}


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}
"""Assignors by name."""


def _fill_evenly(assigned: dict[str, list[TopicIdPartition]], unassigned: set[TopicIdPartition]) -> None:
    total = sum(map(len, assigned.values())) + len(unassigned)
    quota, extra = divmod(total, len(assigned))
    quotas = {member_id: quota + (position < extra) for position, member_id in enumerate(assigned)}
    for member_id, partitions in assigned.items():
        unassigned.update(partitions[quotas[member_id] :])
        del partitions[quotas[member_id] :]
    free = sorted(unassigned, reverse=True)
    for member_id, partitions in assigned.items():
        while len(partitions) < quotas[member_id]:
            partitions.append(free.pop())


class _Balance:
    """Balances the partitions of members whose subscriptions differ."""

    def __init__(self, subscribers: list[Subscriber], assigned: Mapping[str, list[TopicIdPartition]]) -> None:
        self._loads = {member_id: len(partitions) for member_id, partitions in assigned.items()}
        self._readers: dict[bytes, list[_Readers]] = defaultdict(list)
        self._readers_with: dict[str, _Readers] = {}
        self._held: dict[bytes, dict[str, list[TopicIdPartition]]] = defaultdict(lambda: defaultdict(list))
        known: dict[frozenset[bytes], _Readers] = {}
        for subscriber in subscribers:
            readers = known.get(subscriber.topic_ids)
            if readers is None:
                readers = known[subscriber.topic_ids] = _Readers(self._loads)
                for topic_id in subscriber.topic_ids:
                    self._readers[topic_id].append(readers)
            readers.size += 1
            readers.note(subscriber.member_id)
            self._readers_with[subscriber.member_id] = readers
        for member_id, partitions in assigned.items():
            for one in partitions:
                self._held[one.topic_id][member_id].append(one)

    def fill(self, unassigned: set[TopicIdPartition]) -> None:
        """Assign free partitions. Begin with topics that few members read: other topics can then balance the loads."""
        counts = {topic_id: sum(reader.size for reader in readers) for topic_id, readers in self._readers.items()}
        free = [one for one in unassigned if one.topic_id in counts]
        for topic_id, ones in groupby(sorted(free, key=lambda one: (counts[one.topic_id], one)), _TOPIC_ID):
            least = _LeastLoaded(self._readers[topic_id])
            for one in ones:
                self._give(one, least.member())

    def even_out(self) -> None:
        """Move partitions until the loads are even. This ends: every move reduces the sum of squared loads."""
        topics = sorted(self._readers)
        while sum(self._even_out(topic_id) for topic_id in topics):  # sum() visits all topics in every round
            pass

    def put_into(self, assigned: Mapping[str, list[TopicIdPartition]]) -> None:
        for partitions in assigned.values():
            partitions.clear()
        for holders in self._held.values():
            for member_id, partitions in holders.items():
                assigned[member_id] += partitions

    def _give(self, one: TopicIdPartition, member_id: str) -> None:
        self._loads[member_id] += 1
        self._readers_with[member_id].note(member_id)
        self._held[one.topic_id][member_id].append(one)

    def _even_out(self, topic_id: bytes) -> bool:
        """Move partitions of one topic from its most to its least loaded readers. Return True if any have moved."""
        loads, holders = self._loads, self._held[topic_id]
        least = _LeastLoaded(self._readers[topic_id])
        most = [(-loads[member_id], member_id) for member_id, partitions in holders.items() if partitions]
        heapify(most)
        has_moved = False
        while most:
            load, giver = most[0]
            if -load != loads[giver] or not holders[giver]:
                heappop(most)  # outdated
                continue
            taker = least.member()
            if -load - loads[taker] < 2:
                break
            moved = holders[giver].pop()  # the latest one
            loads[giver] -= 1
            self._readers_with[giver].note(giver)
            self._give(moved, taker)
            heapreplace(most, (-loads[giver], giver))
            heappush(most, (-loads[taker], taker))
            has_moved = True
        return has_moved


class _Readers:
    """The members with one subscription, ordered by load."""

    __slots__ = ("_heap", "_loads", "size")

    def __init__(self, loads: Mapping[str, int]) -> None:
        self._loads = loads
        self._heap: list[tuple[int, str]] = []
        self.size = 0

    def note(self, member_id: str) -> None:
        """Add a member, or update its load."""
        heappush(self._heap, (self._loads[member_id], member_id))

    def least(self) -> tuple[int, str]:
        """Return the lowest load and its member."""
        heap = self._heap
        while heap[0][0] != self._loads[heap[0][1]]:
            heappop(heap)  # outdated
        return heap[0]


class _LeastLoaded:
    """Finds the least loaded reader of a topic while loads change."""

    __slots__ = ("_heap",)

    def __init__(self, readers: list[_Readers]) -> None:
        self._heap = [(*reader.least(), place, reader) for place, reader in enumerate(readers)]
        heapify(self._heap)

    def member(self) -> str:
        while True:
            load, member_id, place, readers = self._heap[0]
            now = readers.least()
            if now == (load, member_id):
                return member_id
            heapreplace(self._heap, (*now, place, readers))
