"""Gather what `headrace groups` shows, over the wire and from the broker's HTTP side, and draw it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from headrace import clock
from headrace.cli import group_calls, output
from headrace.cli.cluster import REQUEST_TIMEOUT_S, Cluster, Offsets
from headrace.cli.group_calls import GroupEntry, Place
from headrace.cli.group_layout import Name, Prose, print_table, shortened, terminal_width
from headrace.cli.http_side import HttpSide, broker_setting, http_side
from headrace.cli.output import Cell, Column

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
    """Whether a rebalance waits for it now; None where no broker says."""


@dataclass(frozen=True, slots=True)
class PartitionReport:
    topic: str
    partition: int
    committed: int | None
    """None where nothing is committed."""
    end: int | None
    """None for a partition that is gone or has no leader."""
    lag: int | None
    lag_seconds: float | None
    """Age of the oldest record not read yet; None where it is not known."""
    member_id: str | None
    pace: float | None = None
    trend: str | None = None
    catches_up_in_seconds: float | None = None
    counted_from: int | None = None
    """The offset that lag counts from: the committed one, or where the group would start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReport:
    """One group; what only the HTTP side of a Headrace broker knows is None without one."""

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
        lags = [each.lag for each in self.partitions if each.lag is not None]
        return sum(lags) if lags else None

    @property
    def lag_seconds(self) -> float | None:
        ages = [each.lag_seconds for each in self.partitions if each.lag_seconds is not None]
        return max(ages) if ages else None

    @property
    def partitions_not_committed(self) -> int:
        return sum(each.committed is None for each in self.partitions)

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
    """Everything about groups that have to exist, with their latest `rebalances`; raises CommandError.

    `reset` is the auto.offset.reset to assume, None for what the broker assumes.
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
        seen = side.get("/groups/describe", group=name) if side else None
        members = _members(description, seen)
        assumed = seen.get("assumed_reset", EARLIEST) if seen else assumed_reset(cluster, coordinator.id, reset)
        if seen and reset not in (None, assumed):
            assumed, partitions = str(reset), _partitions(cluster, name, members, str(reset))
        elif seen:
            partitions = _partitions_seen(seen, members)
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
    """`reset`, or else what the broker assumes, any broker without an id; Apache Kafka assumes nothing."""
    if reset is not None:
        return str(reset)
    if broker_id is None:
        broker_id = next(iter(cluster.admin.list_topics(timeout=REQUEST_TIMEOUT_S).brokers))
    return broker_setting(cluster, broker_id, _RESET_SETTING) or EARLIEST


def _members(description: Any, seen: Mapping[str, Any] | None) -> list[MemberReport]:
    waited_for = {each["member_id"]: each["is_waited_for"] for each in seen["member_list"]} if seen else {}
    reports = []
    for member in description.members:
        partitions: dict[str, list[int]] = {}
        for each in member.assignment.topic_partitions if member.assignment else ():
            partitions.setdefault(each.topic, []).append(each.partition)
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


def _owners(members: Sequence[MemberReport]) -> dict[Place, str]:
    return {
        (topic, partition): member.member_id
        for member in members
        for topic, partitions in member.partitions.items()
        for partition in partitions
    }


def _partitions(cluster: Cluster, group: str, members: Sequence[MemberReport], reset: str) -> list[PartitionReport]:
    """Where the group stands, over the wire: the age of a record is found by reading it."""
    owners = _owners(members)
    committed = group_calls.committed(cluster, group)
    places = committed.keys() | owners.keys()
    bounds = group_calls.bounds(cluster, places)
    positions = _positions(committed, owners.keys(), bounds, reset)
    times = group_calls.record_times(cluster, _unread(positions, bounds))
    now_ms = clock.now_ms()
    reports = []
    for place in sorted(places):
        position = positions.get(place)
        end = bounds[place].latest if place in bounds else None
        lag = None if position is None or end is None else max(end - position, 0)
        age = max(now_ms - times[place], 0) / 1000 if place in times else 0.0 if lag == 0 else None
        reports.append(
            PartitionReport(*place, committed.get(place), end, lag, age, owners.get(place), counted_from=position)
        )
    return reports


def _positions(
    committed: Mapping[Place, int], assigned: Iterable[Place], bounds: Mapping[Place, Offsets], reset: str
) -> dict[Place, int]:
    """The first unread offset of each partition: the committed one, or where the group would start."""
    starts = {
        place: bounds[place].earliest if reset == EARLIEST else bounds[place].latest
        for place in assigned
        if place in bounds
    }
    return {**starts, **committed}


def _unread(positions: Mapping[Place, int], bounds: Mapping[Place, Offsets]) -> dict[Place, int]:
    """The first unread record of each partition that has one."""
    return {
        place: max(offset, bounds[place].earliest)
        for place, offset in positions.items()
        if place in bounds and offset < bounds[place].latest
    }


def _partitions_seen(seen: Mapping[str, Any], members: Sequence[MemberReport]) -> list[PartitionReport]:
    owners = _owners(members)
    reports = {
        (each["topic"], each["partition"]): PartitionReport(
            each["topic"],
            each["partition"],
            each["committed"],
            each["end"],
            each["lag"],
            each["lag_seconds"],
            owners.get((each["topic"], each["partition"])),
            each["pace"],
            each["trend"],
            each["catches_up_in_seconds"],
            each.get("counted_from", each["committed"]),
        )
        for each in seen["partitions"]
    }
    for place, owner in owners.items():
        reports.setdefault(place, PartitionReport(*place, None, None, None, None, owner))
    return [reports[place] for place in sorted(reports)]


def _rebalances(side: HttpSide, group: str, count: int) -> list[dict[str, Any]]:
    now_ms = clock.now_ms()
    found = side.get("/groups/timeline", group=group, **{"from": now_ms - 7 * DAY_MS}, to=now_ms, limit=2000)
    return list(found["rebalances"][-count:]) if found and count else []


# Lists


@dataclass(frozen=True, slots=True)
class Fare:
    """How a group of a list fares."""

    members: int | None
    lag: int | None
    lag_seconds: float | None
    partitions_not_committed: int


def fares(cluster: Cluster, entries: Sequence[GroupEntry], reset: str) -> dict[str, Fare]:
    """Members and lag in records of each group, over the wire."""
    described = group_calls.describe_groups(cluster, [entry.name for entry in entries])
    committed = {entry.name: group_calls.committed(cluster, entry.name) for entry in entries}
    assigned = {name: _owners(_members(description, None)).keys() for name, description in described.items()}
    places = {place for found in (*committed.values(), *assigned.values()) for place in found}
    bounds = group_calls.bounds(cluster, places)
    found = {}
    for entry in entries:
        positions = _positions(committed[entry.name], assigned.get(entry.name, ()), bounds, reset)
        lags = [max(bounds[place].latest - offset, 0) for place, offset in positions.items() if place in bounds]
        times = group_calls.record_times(cluster, _unread(positions, bounds))
        now_ms = clock.now_ms()
        oldest = min(times.values(), default=None)
        age = 0.0 if lags and not any(lags) else None if oldest is None else max(now_ms - oldest, 0) / 1000
        members = described.get(entry.name)
        found[entry.name] = Fare(
            len(members.members) if members else None,
            sum(lags) if lags else None,
            age,
            len(positions.keys() - committed[entry.name].keys()),
        )
    return found


# Drawing

_MEMBERS = [Name("Member"), Name("Client"), Name("Host"), Name("Instance"), Prose("Assigned")]
_PARTITIONS = [
    Name("Topic"),
    Column("Partition", number=True),
    Column("Committed", number=True),
    Column("End", number=True),
    Column("Lag", number=True),
    Column("Behind", number=True),
    Name("Member"),
]
_REBALANCES = [
    Column("Began"),
    Column("Took", number=True),
    Column("Gen", number=True),
    Column("Outcome"),
    Prose("Who"),
    Prose("Waited for"),
]


_TITLE_WIDTH = len("Not committed   ")


def print_reports(reports: Sequence[GroupReport]) -> None:
    """Print for people on a terminal, or as tab-separated blocks with an empty line between them in a pipe."""
    on_terminal = output.stdout_is_terminal()
    for index, group in enumerate(reports):
        if index:
            output.write_lines("")
        output.print_pairs(_summary(group, on_terminal))
        if group.members:
            output.write_lines("")
            columns, rows = _without_empty(_MEMBERS, [_member_row(member, on_terminal) for member in group.members])
            print_table(columns, rows)
        if group.partitions:
            output.write_lines("")
            names = {member.member_id: _short(member) for member in group.members} if on_terminal else {}
            rows = [_partition_row(each, names, on_terminal) for each in group.partitions]
            columns, rows = _without_empty(_PARTITIONS, rows) if on_terminal else (_PARTITIONS, rows)
            print_table(columns, rows)
        if group.rebalances:
            output.write_lines("")
            print_rebalances(group.rebalances)


def print_rebalances(rebalances: Sequence[Mapping[str, Any]]) -> None:
    """A line each: when, how long, how it ended, who came and went, who was waited for."""
    on_terminal = output.stdout_is_terminal()
    name = namer(
        member
        for each in rebalances
        for field in (*_VERBS, "phases")
        for found in each[field]
        for member in (found["waited_for"] if field == "phases" else [found])
    )
    print_table(_REBALANCES, [_rebalance_row(each, name, on_terminal) for each in rebalances])


_VERBS = {
    "joined": "joined:",
    "left": "left:",
    "timed_out": "timed out:",
    "fenced": "fenced:",
    "changed_subscription": "resubscribed:",
}


def namer(members: Iterable[Mapping[str, Any]]) -> Callable[[Mapping[str, Any]], str]:
    """What to call members: a person needs the host only where a name is found on several."""
    hosts: dict[str, set[str]] = {}
    for member in members:
        hosts.setdefault(_name(member), set()).add(member["host"])
    is_short = output.stdout_is_terminal()

    def name(member: Mapping[str, Any]) -> str:
        found = _name(member)
        return found if is_short and len(hosts.get(found, ())) < 2 else f"{found}@{member['host']}"

    return name


def moment(time_ms: int, on_terminal: bool) -> str:
    """Local time for people, UTC for programs."""
    if on_terminal:
        # A space that no line is broken at.
        return datetime.fromtimestamp(time_ms // 1000).astimezone().strftime("%m-%d\u00a0%H:%M:%S")
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def seconds(duration: float | None, on_terminal: bool) -> Cell:
    """'3 min 20 s' for people, '200.000' for programs."""
    if duration is None:
        return None
    if not on_terminal:
        return f"{duration:.3f}"
    if duration < 1:
        return f"{duration * 1000:.0f} ms" if duration else "0 s"
    return output.seconds(duration)


def _summary(group: GroupReport, on_terminal: bool) -> list[tuple[str, Cell]]:
    pairs: list[tuple[str, Cell]] = [
        ("Group", _fitted(group.name, on_terminal)),
        ("Type", group.type or None),
        ("State", group.state or None),
        ("Assignor", group.assignor or None),
        ("Coordinator", _fitted(group.coordinator, on_terminal)),
        ("Members", len(group.members)),
        ("Lag", group.lag),
        ("Behind", seconds(group.lag_seconds, on_terminal)),
    ]
    missing = group.partitions_not_committed
    if not on_terminal:
        pairs += [("Not committed", missing), ("Assumed reset", group.assumed_reset)]
    elif missing:
        pairs.append(("Not committed", f"{output.count(missing, 'partition')}, {counted_from(group.assumed_reset)}"))
    if group.trend is not None:
        pairs.append(("Trend", _trend(group, on_terminal)))
    return pairs


def _fitted(value: str, on_terminal: bool) -> str:
    """Short enough to stand behind its title."""
    return shortened(value, terminal_width() - _TITLE_WIDTH) if on_terminal else value


def counted_from(reset: str) -> str:
    """Where the lag of partitions without a committed offset begins, and why."""
    return f"counted from the {'start' if reset == EARLIEST else 'end'} ({reset} assumed)"


def _trend(group: GroupReport, on_terminal: bool) -> str:
    if not on_terminal or not group.catches_up_in_seconds:
        return str(group.trend)
    return f"{group.trend}, in {output.seconds(group.catches_up_in_seconds)} at the present pace"


def _member_row(member: MemberReport, on_terminal: bool) -> list[Cell]:
    assigned = "; ".join(f"{topic} {_ranges(found)}" for topic, found in member.partitions.items())
    if on_terminal and member.is_waited_for:
        assigned = f"{assigned} (waited for)".strip()
    return [
        _short(member) if on_terminal else member.member_id,
        member.client_id,
        member.host,
        member.instance_id,
        assigned or None,
    ]


def _partition_row(each: PartitionReport, names: Mapping[str, str], on_terminal: bool) -> list[Cell]:
    member = None if each.member_id is None else names.get(each.member_id, each.member_id)
    return [
        each.topic,
        each.partition,
        "not committed" if on_terminal and each.committed is None else each.committed,
        each.end,
        each.lag,
        seconds(each.lag_seconds, on_terminal),
        member,
    ]


def _rebalance_row(each: Mapping[str, Any], name: Callable[[Mapping[str, Any]], str], on_terminal: bool) -> list[Cell]:
    who = "; ".join(f"{verb} {_listed([*map(name, each[field])])}" for field, verb in _VERBS.items() if each[field])
    waited = "; ".join(
        f"{name(member)} {seconds(member['ms'] / 1000, on_terminal)} ({phase['phase']})"
        for phase in each["phases"]
        for member in phase["waited_for"][:3]
        if member["ms"]
    )
    took = each["ms"]
    return [
        moment(each["started_ms"], on_terminal),
        seconds(None if took is None else took / 1000, on_terminal),
        each["generation"],
        each["outcome"],
        who or each["reason"],
        waited or None,
    ]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{', '.join(names[:3])} and {len(names) - 3} more"


def _name(member: Mapping[str, Any]) -> str:
    return str(member["instance_id"] or member["client_id"] or member["member_id"])


def _short(member: MemberReport) -> str:
    """A member's id as people tell members apart: without most of the random part behind the name they know."""
    name = member.instance_id or member.client_id
    rest = member.member_id.removeprefix(f"{name}-")
    return f"{rest[:8]}…" if len(rest) > 9 else rest


def _ranges(partitions: Sequence[int]) -> str:
    """'0-3,7' for 0, 1, 2, 3, 7."""
    parts: list[list[int]] = []
    for partition in partitions:
        if parts and partition == parts[-1][1] + 1:
            parts[-1][1] = partition
        else:
            parts.append([partition, partition])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def _without_empty(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> tuple[list[Column], list[list[Cell]]]:
    """Leave out columns that say nothing, where width is short."""
    if not output.stdout_is_terminal():
        return list(columns), [list(row) for row in rows]
    kept = [place for place in range(len(columns)) if any(row[place] is not None for row in rows)]
    return [columns[place] for place in kept], [[row[place] for place in kept] for row in rows]
