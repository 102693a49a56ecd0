"""The assignors of the consumer protocol: who is to read which partitions. Pure functions, deterministic.

`range` gives each member consecutive partitions of every topic, the same ones of topics with as many partitions.
`uniform` balances the number of partitions and moves as few as it can.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeAlias

from headrace.coordinator.groups.records.consumer import Partitions, TopicIdPartition


class Subscriber(NamedTuple):
    """What an assignor is told of a member."""

    member_id: str
    instance_id: str | None
    topic_ids: frozenset[bytes]
    current: Partitions
    """Its target assignment so far."""


Assignor: TypeAlias = Callable[[list[Subscriber], Mapping[bytes, int]], dict[str, Partitions]]
"""From the members and the partition count of each subscribed topic to an assignment for each member."""


def assign_range(subscribers: list[Subscriber], partition_counts: Mapping[bytes, int]) -> dict[str, Partitions]:
    """Static members come first, by instance id, so that they keep their ranges when others come and go."""
    ordered = sorted(subscribers, key=lambda each: (each.instance_id is None, each.instance_id or "", each.member_id))
    readers: dict[bytes, list[str]] = defaultdict(list)
    for each in ordered:
        for topic_id in each.topic_ids:
            readers[topic_id].append(each.member_id)
    assigned: dict[str, list[TopicIdPartition]] = {each.member_id: [] for each in subscribers}
    for topic_id, member_ids in readers.items():
        quota, extra = divmod(partition_counts[topic_id], len(member_ids))
        start = 0
        for position, member_id in enumerate(member_ids):
            end = start + quota + (position < extra)
            assigned[member_id] += (TopicIdPartition(topic_id, index) for index in range(start, end))
            start = end
    return {member_id: frozenset(partitions) for member_id, partitions in assigned.items()}


def assign_uniform(subscribers: list[Subscriber], partition_counts: Mapping[bytes, int]) -> dict[str, Partitions]:
    """As even as the subscriptions allow, keeping of the current assignment what can stay."""
    # Who has most keeps most: where not all can have the same number, the extra ones need not move.
    ordered = sorted(subscribers, key=lambda each: (-len(each.current), each.member_id))
    unassigned = {
        TopicIdPartition(topic_id, index) for topic_id, count in partition_counts.items() for index in range(count)
    }
    assigned: dict[str, list[TopicIdPartition]] = {}
    for each in ordered:
        kept = [one for one in sorted(each.current) if one.topic_id in each.topic_ids and one in unassigned]
        unassigned.difference_update(kept)
        assigned[each.member_id] = kept
    if len({each.topic_ids for each in subscribers}) == 1:
        _fill_evenly(assigned, unassigned)
    else:
        _fill_and_balance(ordered, assigned, unassigned)
    return {member_id: frozenset(partitions) for member_id, partitions in assigned.items()}


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}
"""By the names that members and `group.consumer.assignors` use."""


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


def _fill_and_balance(
    subscribers: list[Subscriber], assigned: dict[str, list[TopicIdPartition]], unassigned: set[TopicIdPartition]
) -> None:
    readers: dict[bytes, list[str]] = defaultdict(list)
    for each in subscribers:
        for topic_id in each.topic_ids:
            readers[topic_id].append(each.member_id)

    def load(member_id: str) -> tuple[int, str]:
        return len(assigned[member_id]), member_id

    # Topics with few readers first: the others can still even out what these do.
    for one in sorted(unassigned, key=lambda each: (len(readers[each.topic_id]), each)):
        if readers[one.topic_id]:
            assigned[min(readers[one.topic_id], key=load)].append(one)
    # Each move makes the sum of squared loads smaller, so this ends.
    has_moved = True
    while has_moved:
        has_moved = False
        for topic_id, member_ids in sorted(readers.items()):
            has_moved |= _even_out(topic_id, member_ids, assigned)


def _even_out(topic_id: bytes, member_ids: list[str], assigned: dict[str, list[TopicIdPartition]]) -> bool:
    """Move partitions of one topic from its most to its least loaded readers."""
    has_moved = False
    while True:
        least = min(member_ids, key=lambda each: (len(assigned[each]), each))
        givers = [each for each in member_ids if any(one.topic_id == topic_id for one in assigned[each])]
        most = max(givers, key=lambda each: (len(assigned[each]), each), default=least)
        if len(assigned[most]) - len(assigned[least]) < 2:
            return has_moved
        moved = max(one for one in assigned[most] if one.topic_id == topic_id)
        assigned[most].remove(moved)
        assigned[least].append(moved)
        has_moved = True
