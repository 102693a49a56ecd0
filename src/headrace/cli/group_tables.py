"""Print reports on groups."""

from collections.abc import Mapping, Sequence
from typing import Final

from headrace.cli import output
from headrace.cli.cell_text import shortened
from headrace.cli.group_layout import Name, Prose, print_table, seconds, terminal_width
from headrace.cli.group_report import EARLIEST, GroupReport, MemberReport, PartitionReport
from headrace.cli.group_timeline import print_rebalances
from headrace.cli.output import Cell, Column

_MEMBERS: Final = [Name("Member"), Name("Client"), Name("Host"), Name("Instance"), Prose("Assigned")]
_PARTITIONS: Final = [
    Name("Topic"),
    Column("Partition", number=True),
    Column("Committed", number=True),
    Column("End", number=True),
    Column("Lag", number=True),
    Column("Behind", number=True),
    Name("Member"),
]
_TITLE_WIDTH: Final = len("Not committed   ")


def print_reports(reports: Sequence[GroupReport]) -> None:
    """Print for people on a terminal; in a pipe, as tab-separated blocks, separated by empty lines."""
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
            rows = [_partition_row(partition, names, on_terminal) for partition in group.partitions]
            columns, rows = _without_empty(_PARTITIONS, rows) if on_terminal else (_PARTITIONS, rows)
            print_table(columns, rows)
        if group.rebalances:
            output.write_lines("")
            print_rebalances(group.rebalances)


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
    return shortened(value, terminal_width() - _TITLE_WIDTH) if on_terminal else value


def counted_from(reset: str) -> str:
    """Describe where the lag of partitions without a committed offset starts, and why."""
    return f"counted from the {'start' if reset == EARLIEST else 'end'} ({reset} assumed)"


def _trend(group: GroupReport, on_terminal: bool) -> str:
    if not on_terminal or not group.catches_up_in_seconds:
        return str(group.trend)
    return f"{group.trend}; at the current rate, the lag is zero in {output.seconds(group.catches_up_in_seconds)}"


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


def _short(member: MemberReport) -> str:
    """Shorten a member id: drop the client id at its start, and most of the random part."""
    name = member.instance_id or member.client_id
    rest = member.member_id.removeprefix(f"{name}-")
    return f"{rest[:8]}…" if len(rest) > 9 else rest


def _ranges(partitions: Sequence[int]) -> str:
    parts: list[list[int]] = []
    for partition in partitions:
        if parts and partition == parts[-1][1] + 1:
            parts[-1][1] = partition
        else:
            parts.append([partition, partition])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def _without_empty(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> tuple[list[Column], list[list[Cell]]]:
    if not output.stdout_is_terminal():
        return list(columns), [list(row) for row in rows]
    kept = [place for place in range(len(columns)) if any(row[place] is not None for row in rows)]
    return [columns[place] for place in kept], [[row[place] for place in kept] for row in rows]
