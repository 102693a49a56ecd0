"""Groups for Prometheus, under the names of the two exporters that dashboards are made for.

kafka_exporter's begin with `kafka_consumergroup_` and name the group `consumergroup`; those of kafka-lag-exporter begin
with `kafka_consumergroup_group_` and name it `group`. Members have no label: each restart would begin new series.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from headrace.broker.group_history.members import member_count
from headrace.broker.group_history.progress import Standing
from headrace.broker.group_history.recorder import GroupHistory
from headrace.broker.group_history.routes import totals
from headrace.coordinator.shard import Group
from headrace.metrics import Family
from headrace.replication.replica_manager import now_ms

MAX_PARTITIONS: Final = 10_000
"""With more partitions over all groups, only sums are shown: a scrape is not to hold the broker up."""

_PARTITION_FAMILIES: Final[Mapping[str, tuple[str, str, Callable[[Standing, int], float | None]]]] = {
    "kafka_consumergroup_current_offset": (
        "consumergroup",
        "Offset that the group has committed.",
        lambda each, _: each.committed,
    ),
    "kafka_consumergroup_lag": ("consumergroup", "Records that the group has not read yet.", lambda each, _: each.lag),
    "kafka_consumergroup_group_offset": (
        "group",
        "Offset that the group has committed.",
        lambda each, _: each.committed,
    ),
    "kafka_consumergroup_group_lag": ("group", "Records that the group has not read yet.", lambda each, _: each.lag),
    "kafka_consumergroup_group_lag_seconds": (
        "group",
        "Age of the oldest record that the group has not read yet.",
        lambda each, now: each.lag_seconds(now),
    ),
}


def families(history: GroupHistory) -> Iterable[Family]:
    """Everything about groups, as of the latest sample."""
    now = now_ms()
    found = [
        (group, history.sampler.standings(group.group_id, now))
        for group, _ in history.coordinator.groups_with_offsets()
    ]
    yield from _by_group(found, history.rebalances, now)
    yield from _by_topic(found)
    if history.sampler.partition_total <= MAX_PARTITIONS:
        for name, (label, help_text, value_of) in _PARTITION_FAMILIES.items():
            yield Family(name, help_text, _by_partition(found, label, value_of, now))
    yield Family(
        "headrace_consumergroup_partitions_hidden",
        f"Partitions of groups that are left out of the metrics because there are more than {MAX_PARTITIONS}.",
        [({}, history.sampler.partition_total if history.sampler.partition_total > MAX_PARTITIONS else 0)],
    )
    yield Family(
        "headrace_group_history_events_lost",
        "Events of groups that came faster than they could be written.",
        [({}, history.events_lost)],
        "counter",
    )


_Found = Sequence[tuple[Group, Mapping[str, list[Standing]]]]


def _by_group(found: _Found, rebalances: Mapping[str, int], now: int) -> Iterator[Family]:
    members = [({"consumergroup": group.group_id}, member_count(group)) for group, _ in found]
    yield Family("kafka_consumergroup_members", "Members of the group.", members)
    begun = [({"group": group.group_id}, rebalances.get(group.group_id, 0)) for group, _ in found]
    yield Family(
        "headrace_consumergroup_rebalances", "Rebalances that began since the broker started.", begun, "counter"
    )
    summed = [
        ({"group": group.group_id}, totals([each for standings in topics.values() for each in standings], now))
        for group, topics in found
        if topics
    ]
    largest = [
        ({"group": group.group_id}, max(lags))
        for group, topics in found
        if (lags := [each.lag for standings in topics.values() for each in standings if each.lag is not None])
    ]
    yield Family("kafka_consumergroup_group_max_lag", "The largest lag of any partition, in records.", largest)
    for name, key, help_text in (
        ("kafka_consumergroup_group_sum_lag", "lag", "Records that the group has not read yet."),
        ("kafka_consumergroup_group_max_lag_seconds", "lag_seconds", "Age of the oldest record not read yet."),
        ("headrace_consumergroup_pace", "pace", "Records per second that the group commits."),
        ("headrace_consumergroup_arrival", "arrival", "Records per second that arrive in what the group reads."),
        (
            "headrace_consumergroup_catch_up_seconds",
            "catches_up_in_seconds",
            "Seconds until the lag is gone at the present pace; absent where it would never be.",
        ),
    ):
        yield Family(name, help_text, [(labels, each[key]) for labels, each in summed if each[key] is not None])


def _by_topic(found: _Found) -> Iterator[Family]:
    sums = [
        (
            group.group_id,
            topic,
            sum(each.committed for each in standings),
            sum(each.lag or 0 for each in standings),
        )
        for group, topics in found
        for topic, standings in topics.items()
    ]
    yield Family(
        "kafka_consumergroup_current_offset_sum",
        "Offsets that the group has committed, over all partitions of the topic.",
        [({"consumergroup": group, "topic": topic}, committed) for group, topic, committed, _ in sums],
    )
    yield Family(
        "kafka_consumergroup_lag_sum",
        "Records that the group has not read yet, over all partitions of the topic.",
        [({"consumergroup": group, "topic": topic}, lag) for group, topic, _, lag in sums],
    )
    yield Family(
        "kafka_consumergroup_group_topic_sum_lag",
        "Records that the group has not read yet, over all partitions of the topic.",
        [({"group": group, "topic": topic}, lag) for group, topic, _, lag in sums],
    )


def _by_partition(
    found: _Found, label: str, value_of: Callable[[Standing, int], float | None], now: int
) -> list[tuple[Mapping[str, str], float]]:
    return [
        ({label: group.group_id, "topic": topic, "partition": str(each.partition)}, value)
        for group, topics in found
        for topic, standings in topics.items()
        for each in standings
        if (value := value_of(each, now)) is not None
    ]
