"""Plan and print the steps of `headrace groups reset`."""

import typer

from headrace.cli import group_calls, output
from headrace.cli.cluster import Cluster, Offsets
from headrace.cli.failures import CommandError
from headrace.cli.group_layout import Name, print_table
from headrace.cli.offset_plan import Place, Selection, Step, missing_place, plan, read_offsets
from headrace.cli.output import Column
from headrace.cli.positions import Position, Start, parse_position
from headrace.clock import now_ms


def parse_target(text: str) -> Position:
    """Parse `--to`. Raises typer.BadParameter for an invalid position."""
    try:
        return parse_position(text, now_ms(), of_group=True)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="'--to'") from None


def steps(
    cluster: Cluster,
    group: str,
    target: Position | None,
    shift_by: int | None,
    from_file: str | None,
    selection: Selection,
) -> list[Step]:
    """Return the steps of a reset to `target`, by `shift_by`, or to the offsets in `from_file`. Raises CommandError."""
    to_current = target is not None and target.start is Start.CURRENT
    current = group_calls.committed(cluster, group)
    if from_file is not None:
        by_group = read_offsets(from_file)
        given = by_group.get(group) or by_group.get("") or {}
        if not given:
            others = ", ".join(sorted(by_group))
            raise CommandError(
                f"{from_file} has no offsets for group '{group}'",
                f"It has offsets for these groups: {others}." if others else None,
            )
        places = {place for place in given if selection.takes(place)}
    elif selection.topics:
        known = {(name, number) for name in selection.topics for number in cluster.partitions(name)}
        missing = missing_place(selection, known)
        if missing is not None:
            raise CommandError(f"{missing} does not exist", "`headrace topics describe TOPIC` shows its partitions.")
        places = {place for place in known if selection.takes(place)}
    else:
        places = set(current)
    if to_current or shift_by is not None:
        places &= current.keys()
    if not places and from_file is not None:
        raise CommandError(f"{from_file} has no offsets for group '{group}' in the partitions given with --topic")
    if not places and (to_current or shift_by is not None):
        where = " in these partitions" if selection.topics else ""
        raise CommandError(
            f"group '{group}' has no committed offsets{where}",
            "--shift-by and --to current need committed offsets: use another --to.",
        )
    if not places:
        raise CommandError(f"group '{group}' has no committed offsets to reset", "Name the topics with --topic.")
    bounds = group_calls.bounds(cluster, places)
    gone = sorted(places - bounds.keys())
    if gone:
        raise CommandError(
            f"partition {gone[0][1]} of topic '{gone[0][0]}' does not exist or has no leader",
            f"`headrace topics describe {gone[0][0]}` shows its partitions and leaders.",
        )
    if from_file is not None:
        wanted = {place: given[place] for place in places}
    elif to_current:
        wanted = {place: current[place] for place in places}
    elif shift_by is not None:
        wanted = {place: current[place] + shift_by for place in places}
    else:
        assert target is not None
        wanted = _positions(cluster, target, places, bounds)
    return plan(current, bounds, wanted)


def _positions(
    cluster: Cluster, position: Position, places: set[Place], bounds: dict[Place, Offsets]
) -> dict[Place, int]:
    if position.start is Start.OFFSET:
        return dict.fromkeys(places, position.number)
    if position.start is not Start.TIME:
        return {place: position.offset(bounds[place].earliest, bounds[place].latest) or 0 for place in places}
    found = group_calls.at_time(cluster, places, position.number)
    # -1: all records are older.
    return {place: found[place] if found.get(place, -1) >= 0 else bounds[place].latest for place in places}


def print_steps(group: str, steps: list[Step], *, execute: bool, json: bool) -> None:
    """Print the steps, in a pipe and as JSON in formats that `--from-file` reads."""
    if json:
        output.print_json(
            {
                "group": group,
                "executed": execute,
                "offsets": [
                    {"topic": step.topic, "partition": step.partition, "current": step.current, "new": step.new}
                    for step in steps
                ],
            }
        )
        return
    columns = [Name("Topic"), Column("Partition", number=True), Column("Current", number=True)]
    columns += [Column("New", number=True), Column("Change", number=True)]
    rows: list[list[output.Cell]] = [
        [step.topic, step.partition, step.current, step.new, _change(step)] for step in steps
    ]
    if not output.stdout_is_terminal():
        columns, rows = columns[:4], [row[:4] for row in rows]
    print_table(columns, rows)


def _change(step: Step) -> output.Cell:
    if step.current is None:
        return None
    change = step.new - step.current
    return "0" if change == 0 else f"{change:+,}"
