"""Metrics of groups, under the names of two common exporters, so that dashboards work.

The names of kafka_exporter begin with `kafka_consumergroup_`, and its label is `consumergroup`. The names of
kafka-lag-exporter begin with `kafka_consumergroup_group_`, and its label is `group`. The labels for members are
omitted, because each restart of a consumer would create new series.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from typing import Final

from headrace.clock import now_ms
from headrace.coordinator.groups.group import Group
from headrace.metrics import Family
from headrace.monitoring.groups.progress import Arrays
from headrace.monitoring.groups.recorder import GroupHistory
from headrace.monitoring.groups.standing import UNKNOWN, Total, combined

MAX_PARTITIONS: Final = 10_000
"""If all groups together read more partitions, only sums are exported, to keep scrapes short."""

_VALUES: Final[Mapping[str, Callable[[int, int, int, int, int], float | None]]] = {
    "offset": lambda committed, _position, _end, _time_ms, _now: committed if committed >= 0 else None,
    "lag": lambda _committed, position, end, _time_ms, _now: max(end - position, 0) if end >= 0 else None,
    "lag_seconds": lambda _committed, position, end, time_ms, now: (
        0.0 if position >= end >= 0 else max(now - time_ms, 0) / 1000 if time_ms >= 0 else None
    ),
    "assumed": lambda committed, position, _end, _time_ms, _now: position if committed < 0 else None,
}
_PARTITION_FAMILIES: Final = (
    ("kafka_consumergroup_current_offset", "consumergroup", "offset", "Committed offset of the group."),
    ("kafka_consumergroup_lag", "consumergroup", "lag", "Records that the group has not read."),
    ("kafka_consumergroup_group_offset", "group", "offset", "Committed offset of the group."),
    ("kafka_consumergroup_group_lag", "group", "lag", "Records that the group has not read."),
    ("kafka_consumergroup_group_lag_seconds", "group", "lag_seconds", "Age of the oldest unread record."),
)


def families(history: GroupHistory) -> Iterable[Family]:
    """Yield the metrics of all groups, as of the latest sample."""
    now = now_ms()
    sampler = history.sampler
    found = [(group, sampler.totals(group.group_id)) for group, _ in history.coordinator.groups_with_offsets()]
    yield from _by_group(found, history.rebalances, now)
    assumed = {"reset": str(sampler.assumed_reset)}
    yield from _by_topic(found, assumed)
    partitions = sampler.partition_total
    is_too_much = partitions > MAX_PARTITIONS
    if not is_too_much:
        arrays = sampler.arrays()
        for name, label, value, help_text in _PARTITION_FAMILIES:
            yield Family(name, help_text, partial(_by_partition, arrays, {}, label, _VALUES[value], now))
        yield Family(
            "headrace_consumergroup_assumed_offset",
            "Offset from which lag is counted in a partition without a committed offset.",
            partial(_by_partition, arrays, assumed, "group", _VALUES["assumed"], now),
        )
    yield Family(
        "headrace_consumergroup_partitions_hidden",
        f"Partitions of groups that the metrics omit, because there are more than {MAX_PARTITIONS}; otherwise 0.",
        [({}, partitions if is_too_much else 0)],
    )
    yield Family(
        "headrace_group_history_events_lost",
        "Events of groups that were not stored: too many at once, or the history could not be written.",
        [({}, history.events_lost + history.store.events_lost)],
        "counter",
    )


_Found = Sequence[tuple[Group, Mapping[str, Total]]]


def _by_group(found: _Found, rebalances: Mapping[str, int], now: int) -> Iterator[Family]:
    members = [({"consumergroup": group.group_id}, group.size) for group, _ in found]
    yield Family("kafka_consumergroup_members", "Members of the group.", members)
    begun = [({"group": group.group_id}, rebalances.get(group.group_id, 0)) for group, _ in found]
    yield Family(
        "headrace_consumergroup_rebalances", "Rebalances that began since the broker started.", begun, "counter"
    )
    sums = [({"group": group.group_id}, combined(list(totals.values()))) for group, totals in found if totals]
    for name, help_text, value_of in _GROUP_FAMILIES:
        yield Family(
            name, help_text, [(labels, value) for labels, total in sums if (value := value_of(total, now)) is not None]
        )


_GROUP_FAMILIES: Final[Sequence[tuple[str, str, Callable[[Total, int], float | None]]]] = (
    (
        "kafka_consumergroup_group_max_lag",
        "Largest lag of any partition, in records.",
        lambda total, _: total.max_lag,
    ),
    (
        "kafka_consumergroup_group_max_lag_seconds",
        "Age of the oldest unread record.",
        lambda total, now: total.lag_seconds(now),
    ),
    ("kafka_consumergroup_group_sum_lag", "Records that the group has not read.", lambda total, _: total.lag),
    (
        "headrace_consumergroup_pace",
        "Offsets per second by which the group's commits advance.",
        lambda total, _: total.pace,
    ),
    (
        "headrace_consumergroup_arrival",
        "Offsets per second by which the partitions of the group grow.",
        lambda total, _: total.arrival,
    ),
    (
        "headrace_consumergroup_catch_up_seconds",
        "Seconds until the lag is 0 at the current rates; absent if it does not shrink.",
        lambda total, _: total.catches_up_in,
    ),
)


def _by_topic(found: _Found, assumed: Mapping[str, str]) -> Iterator[Family]:
    sums = [(group.group_id, topic, total) for group, totals in found for topic, total in totals.items()]
    yield Family(
        "kafka_consumergroup_current_offset_sum",
        "Sum of the group's committed offsets in all partitions of the topic.",
        [({"consumergroup": group, "topic": topic}, total.committed) for group, topic, total in sums],
    )
    for name, label in (
        ("kafka_consumergroup_lag_sum", "consumergroup"),
        ("kafka_consumergroup_group_topic_sum_lag", "group"),
    ):
        yield Family(
            name,
            "Records that the group has not read, in all partitions of the topic.",
            [({label: group, "topic": topic}, total.lag) for group, topic, total in sums if total.lag is not None],
        )
    yield Family(
        "headrace_consumergroup_partitions_not_committed",
        "Partitions in which the group has no committed offset; their lag counts from the assumed start.",
        [({"group": group, "topic": topic, **assumed}, total.not_committed) for group, topic, total in sums],
    )
    yield Family(
        "headrace_consumergroup_partitions_unmeasured",
        "Partitions that the lag excludes, because the group's coordinator has no in-sync replica of them.",
        [({"group": group, "topic": topic}, total.unmeasured) for group, topic, total in sums],
    )


def _by_partition(
    arrays: Iterable[Arrays],
    more_labels: Mapping[str, str],
    label: str,
    value_of: Callable[[int, int, int, int, int], float | None],
    now: int,
) -> Iterator[tuple[Mapping[str, str], float]]:
    for group, topic, *columns in arrays:
        for partition, (offset, position, end, time_ms) in enumerate(zip_longest(*columns, fillvalue=UNKNOWN)):
            if position >= 0 and (value := value_of(offset, position, end, time_ms, now)) is not None:
                yield {label: group, "topic": topic, "partition": str(partition), **more_labels}, value
