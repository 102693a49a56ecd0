"""Gather the data that `headrace groups` shows, with Kafka requests and over HTTP."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from headrace import clock
from headrace.cli import group_calls, group_descriptions
from headrace.cli.cluster import Cluster, Offsets
from headrace.cli.failures import CommandError, NoReplyError
from headrace.cli.group_calls import GroupEntry, Place
from headrace.cli.group_descriptions import Description
from headrace.cli.http_side import HttpSide, broker_setting, http_side

DAY_MS = 86_400_000
EARLIEST = "earliest"
_RESET_SETTING = "headrace.group.lag.assumed.reset"


@dataclass(frozen=True, slots=True)
class MemberReport:
    member_id: str
    client_id: str
    host: str
    instance_id: str | None
    partitions: Mapping[str, Sequence[int]]
    is_waited_for: bool | None = None
    """True if a rebalance is waiting for this member; None if unknown."""


@dataclass(frozen=True, slots=True)
class PartitionReport:
    topic: str
    partition: int
    committed: int | None
    """None if nothing is committed."""
    end: int | None
    """None if the partition does not exist or has no leader."""
    lag: int | None
    lag_seconds: float | None
    """Age of the oldest unread record; None if unknown."""
    member_id: str | None
    pace: float | None = None
    """Records per second that the group commits."""
    trend: str | None = None
    catches_up_in_seconds: float | None = None
    counted_from: int | None = None
    """The offset from which the lag counts: the committed offset, or the one where the group would start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReport:
    """One group. Fields that only a Headrace broker's HTTP listener provides may be None."""

    name: str
    type: str
    state: str
    assignor: str
    coordinator: str
    members: list[MemberReport]
    partitions: list[PartitionReport]
    trend: str | None = None
    catches_up_in_seconds: float | None = None
    rebalances: list[dict[str, Any]] | None = field(default=None)
    assumed_reset: str
    """The auto.offset.reset that lag assumes for partitions without a committed offset."""

    @property
    def lag(self) -> int | None:
        lags = [item.lag for item in self.partitions if item.lag is not None]
        return sum(lags) if lags else None

    @property
    def lag_seconds(self) -> float | None:
        ages = [item.lag_seconds for item in self.partitions if item.lag_seconds is not None]
        return max(ages) if ages else None

    @property
    def partitions_not_committed(self) -> int:
        return sum(item.committed is None for item in self.partitions)

    def as_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "lag": self.lag,
            "lag_seconds": self.lag_seconds,
            "partitions_not_committed": self.partitions_not_committed,
        }


def report(
    cluster: Cluster, names: Sequence[str], http: str | None, *, reset: str | None, rebalances: int
) -> list[GroupReport]:
    """Report on groups, with the latest `rebalances` of each. Raises CommandError if a group does not exist.

    `reset` is the auto.offset.reset to assume; None means the broker's assumption.
    """
    described = group_calls.describe_groups(cluster, names)
    for name in names:
        if name not in described:
            raise group_calls.missing_group(cluster, name)
    entries = {entry.name: entry for entry in group_calls.list_groups(cluster)}
    reports = []
    for name in names:
        description = described[name]
        coordinator = description.coordinator
        side = http_side(cluster, coordinator.id, coordinator.host, http)
        seen = side.get("/groups/describe", "member_list", group=name) if side else None
        members = _members(description, seen)
        assumed = seen.get("assumed_reset", EARLIEST) if seen else assumed_reset(cluster, coordinator.id, reset)
        if seen and reset not in (None, assumed):
            assumed, partitions = str(reset), _partitions(cluster, name, members, str(reset))
        elif seen:
            partitions = _partitions_seen(seen, members)
            # The coordinator measures only partitions of which it has an in-sync replica.
            lacking = {_place(item) for item in partitions if item.end is None}
            if lacking and len(cluster.brokers()) > 1:
                measured = _measured(cluster, name, members, assumed, lacking)
                partitions = [measured.get(_place(item), item) for item in partitions]
        else:
            partitions = _partitions(cluster, name, members, assumed)
        entry = entries.get(name)
        reports.append(
            GroupReport(
                name=name,
                type=entry.type if entry else "",
                state=entry.state if entry else "",
                assignor=description.partition_assignor,
                coordinator=f"{coordinator.id} ({coordinator.host}:{coordinator.port})",
                members=members,
                partitions=partitions,
                assumed_reset=assumed,
                trend=seen["trend"] if seen else None,
                catches_up_in_seconds=seen["catches_up_in_seconds"] if seen else None,
                rebalances=_rebalances(side, name, rebalances) if side and seen else None,
            )
        )
    return reports


def assumed_reset(cluster: Cluster, broker_id: int | None, reset: str | None) -> str:
    """Return `reset` or, if it is None, the broker's setting; EARLIEST on Apache Kafka, which has no such setting.

    If `broker_id` is None, any broker is queried.
    """
    if reset is not None:
        return str(reset)
    known = list(cluster.brokers()) if broker_id is None else [broker_id]
    return (broker_setting(cluster, known[0], _RESET_SETTING) if known else None) or EARLIEST


def _members(description: Description, seen: Mapping[str, Any] | None) -> list[MemberReport]:
    waited_for = {item["member_id"]: item["is_waited_for"] for item in seen["member_list"]} if seen else {}
    reports = []
    for member in description.members:
        partitions: dict[str, list[int]] = {}
        for topic, partition in member.places:
            partitions.setdefault(topic, []).append(partition)
        reports.append(
            MemberReport(
                member.member_id,
                member.client_id,
                member.host.removeprefix("/"),
                member.group_instance_id or None,
                {topic: sorted(found) for topic, found in sorted(partitions.items())},
                waited_for.get(member.member_id),
            )
        )
    return sorted(reports, key=lambda member: (member.client_id, member.member_id))


def _place(report: PartitionReport) -> Place:
    return report.topic, report.partition


def _owners(members: Sequence[MemberReport]) -> dict[Place, str]:
    return {
        (topic, partition): member.member_id
        for member in members
        for topic, partitions in member.partitions.items()
        for partition in partitions
    }


def _measured(
    cluster: Cluster, group: str, members: Sequence[MemberReport], reset: str, places: Collection[Place]
) -> Mapping[Place, PartitionReport]:
    """Measure these partitions with Kafka requests; empty if that fails, for example because one is offline."""
    try:
        return {_place(item): item for item in _partitions(cluster, group, members, reset, places)}
    except CommandError:
        return {}


def _partitions(
    cluster: Cluster,
    group: str,
    members: Sequence[MemberReport],
    reset: str,
    only: Collection[Place] | None = None,
) -> list[PartitionReport]:
    """Measure lag, of `only` these partitions if given, with Kafka requests.

    The oldest unread records are read to find their age.
    """
    owners = _owners(members)
    committed = group_calls.committed(cluster, group)
    if only is not None:
        owners = {place: member for place, member in owners.items() if place in only}
        committed = {place: offset for place, offset in committed.items() if place in only}
    places = committed.keys() | owners.keys()
    bounds = group_calls.bounds(cluster, places, committed_only=True)
    positions = _positions(committed, owners.keys(), bounds, reset)
    unread = group_calls.read_on(cluster, _unread(positions, bounds))
    times = unread.times
    now_ms = clock.now_ms()
    reports = []
    for place in sorted(places):
        position = positions.get(place)
        end = bounds[place].latest if place in bounds else None
        lag = None if position is None or end is None else 0 if place in unread.empty else max(end - position, 0)
        age = max(now_ms - times[place], 0) / 1000 if place in times else 0.0 if lag == 0 else None
        reports.append(
            PartitionReport(*place, committed.get(place), end, lag, age, owners.get(place), counted_from=position)
        )
    return reports


def _positions(
    committed: Mapping[Place, int], assigned: Iterable[Place], bounds: Mapping[Place, Offsets], reset: str
) -> dict[Place, int]:
    """Return the first unread offset of each partition: the committed one, or where the group would start."""
    starts = {
        place: bounds[place].earliest if reset == EARLIEST else bounds[place].latest
        for place in assigned
        if place in bounds
    }
    return {**starts, **committed}


def _unread(positions: Mapping[Place, int], bounds: Mapping[Place, Offsets]) -> dict[Place, int]:
    return {
        place: max(offset, bounds[place].earliest)
        for place, offset in positions.items()
        if place in bounds and offset < bounds[place].latest
    }


def _partitions_seen(seen: Mapping[str, Any], members: Sequence[MemberReport]) -> list[PartitionReport]:
    owners = _owners(members)
    reports = {
        (item["topic"], item["partition"]): PartitionReport(
            item["topic"],
            item["partition"],
            item["committed"],
            item["end"],
            item["lag"],
            item["lag_seconds"],
            owners.get((item["topic"], item["partition"])),
            item["pace"],
            item["trend"],
            item["catches_up_in_seconds"],
            item.get("counted_from", item["committed"]),
        )
        for item in seen["partitions"]
    }
    for place, owner in owners.items():
        reports.setdefault(place, PartitionReport(*place, None, None, None, None, owner))
    return [reports[place] for place in sorted(reports)]


def _rebalances(side: HttpSide, group: str, count: int) -> list[dict[str, Any]]:
    now_ms = clock.now_ms()
    since_ms = now_ms - 7 * DAY_MS
    found = side.get("/groups/timeline", "rebalances", group=group, **{"from": since_ms}, to=now_ms, limit=2000)
    return list(found["rebalances"][-count:]) if found and count else []


# Lists


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """Members and lag of a group; None if unknown."""

    members: int | None
    lag: int | None
    lag_seconds: float | None
    partitions_not_committed: int | None


def summaries(
    cluster: Cluster, entries: Sequence[GroupEntry], reset: str
) -> tuple[dict[str, GroupSummary], dict[str, CommandError]]:
    """Count the members and measure the lag of groups, with Kafka requests.

    Also return an error for each group that cannot be described or has no known offsets. Raises NoReplyError,
    and CommandError if a request about partitions fails.
    """
    described: dict[str, Description] = {}
    committed: dict[str, dict[Place, int]] = {}
    errors: dict[str, CommandError] = {}
    for name, description in group_descriptions.describe(cluster, [entry.name for entry in entries]).items():
        if isinstance(description, CommandError):
            errors[name] = description
        else:
            described[name] = description
    for entry in entries:
        try:
            committed[entry.name] = group_calls.committed(cluster, entry.name)
        except NoReplyError:
            raise
        except CommandError as error:
            errors.setdefault(entry.name, error)
    assigned = {name: _owners(_members(description, None)).keys() for name, description in described.items()}
    places = {place for found in (*committed.values(), *assigned.values()) for place in found}
    bounds = group_calls.bounds(cluster, places, committed_only=True)
    found = {}
    for entry in entries:
        group = described.get(entry.name)
        members = None if group is None else len(group.members)
        if entry.name not in committed:
            found[entry.name] = GroupSummary(members, None, None, None)
            continue
        positions = _positions(committed[entry.name], assigned.get(entry.name, ()), bounds, reset)
        unread = group_calls.read_on(cluster, _unread(positions, bounds))
        lags = [
            0 if place in unread.empty else max(bounds[place].latest - offset, 0)
            for place, offset in positions.items()
            if place in bounds
        ]
        times = unread.times
        now_ms = clock.now_ms()
        oldest = min(times.values(), default=None)
        age = 0.0 if lags and not any(lags) else None if oldest is None else max(now_ms - oldest, 0) / 1000
        found[entry.name] = GroupSummary(
            members,
            sum(lags) if lags else None,
            age,
            None if group is None else len(positions.keys() - committed[entry.name].keys()),
        )
    return found, errors
