"""`headrace groups`: list, describe, reset and delete consumer groups, and show their history."""

import sys
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace import clock
from headrace.cli import output
from headrace.cli.failures import CommandError, usage_error
from headrace.cli.help_pages import Command, Group, examples
from headrace.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json, Quiet
from headrace.cli.output import Column
from headrace.cli.positions import parse_moment
from headrace.wording import listed

if TYPE_CHECKING:
    from headrace.cli.cluster import Cluster

app = typer.Typer(cls=Group, no_args_is_help=True, help="List, describe, reset and delete consumer groups.")


class Reset(StrEnum):
    """Values of `--assume-reset`."""

    EARLIEST = "earliest"
    LATEST = "latest"


AssumedReset = Annotated[
    Reset | None,
    typer.Option(
        "--assume-reset",
        show_default="the broker's assumption, or earliest",
        help="auto.offset.reset to assume for the lag of partitions without a committed offset.",
    ),
]
Name = Annotated[str, typer.Argument(metavar="GROUP", show_default=False, help="Name of the group.")]
Names = Annotated[list[str], typer.Argument(metavar="GROUP", show_default=False, help="Names of groups.")]
Http = Annotated[
    str | None,
    typer.Option(
        "--http",
        envvar="HEADRACE_HTTP",
        metavar="HOST:PORT",
        show_default="from the broker's settings",
        help="The broker's HTTP listener (headrace.http.listener).",
    ),
]


@app.command(
    "list",
    cls=Command,
    epilog=examples(
        "groups that are rebalancing",
        "headrace groups list --state PreparingRebalance --state CompletingRebalance",
        "groups by lag, the largest last",
        "headrace groups list --lag | sort -t$'\\t' -nk5",
    ),
)
def list_groups(
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state", "-s", metavar="STATE", show_default=False, help="Only groups in this state; repeatable."
        ),
    ] = None,
    type: Annotated[
        list[str] | None,
        typer.Option(
            "--type",
            "-t",
            metavar="TYPE",
            show_default=False,
            help="Only groups of this type, for example consumer; repeatable.",
        ),
    ] = None,
    lag: Annotated[
        bool, typer.Option("--lag", "-l", help="Also show the number of members and the lag; slower.")
    ] = False,
    assume_reset: AssumedReset = None,
    json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """List groups with their type and state."""
    cluster = _connect(bootstrap)
    from headrace.cli import group_calls, group_report
    from headrace.cli.group_layout import Name, print_table, seconds
    from headrace.cli.group_tables import counted_from

    entries = group_calls.list_groups(cluster, state or (), type or ())
    reset = group_report.assumed_reset(cluster, None, assume_reset) if lag else ""
    summaries, errors = group_report.summaries(cluster, entries, reset) if lag else ({}, {})
    if errors:
        first = next(iter(errors.values())).what
        more = f"; also unknown: {output.count(len(errors) - 1, 'other group')}" if len(errors) > 1 else ""
        output.warn(f"Members or lag unknown (shown as '-'): {first}{more}")
    if json:
        shown = []
        for entry in entries:
            found: dict[str, Any] = {
                "name": entry.name,
                "type": entry.type,
                "state": entry.state,
                "protocol_type": entry.protocol_type,
            }
            if lag:
                summary = summaries[entry.name]
                found |= {**asdict(summary), "assumed_reset": reset}
            shown.append(found)
        output.print_json(shown)
        return
    if not entries and output.stdout_is_terminal():
        filtered = " with this state or type" if state or type else " yet"
        output.tell(f"No groups at {bootstrap}{filtered}.")
        return
    on_terminal = output.stdout_is_terminal()
    columns = [Name("Group"), Column("Type"), Column("State")]
    rows: list[list[output.Cell]] = [[entry.name, entry.type or None, entry.state or None] for entry in entries]
    if lag:
        columns += [Column(title, number=True) for title in ("Members", "Lag", "Behind", "Not committed")]
        for row, entry in zip(rows, entries, strict=True):
            summary = summaries[entry.name]
            row += [summary.members, summary.lag, seconds(summary.lag_seconds, on_terminal)]
            row.append(summary.partitions_not_committed)
    print_table(columns, rows)
    if any(summary.partitions_not_committed for summary in summaries.values()):
        output.warn(f"For partitions without a committed offset, lag is {counted_from(reset)}.")


@app.command(
    cls=Command,
    epilog=examples(
        "members, offsets, lag, and the latest rebalances",
        "headrace groups describe billing",
        "partitions that lag by more than a minute",
        "headrace groups describe billing --json | jq '.[0].partitions[] | select(.lag_seconds > 60)'",
    ),
)
def describe(
    groups: Names,
    rebalances: Annotated[
        int, typer.Option("--rebalances", "-r", min=0, metavar="N", help="Show the latest N rebalances.")
    ] = 5,
    assume_reset: AssumedReset = None,
    http: Http = None,
    json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show a group's members and their assignments, its offsets and lag, and its latest rebalances.

    Rebalances and trends need the HTTP listener of a Headrace broker; everything else works with any Kafka broker.
    """
    from headrace.cli.group_report import report
    from headrace.cli.group_tables import print_reports

    names = list(dict.fromkeys(groups))
    reports = report(_connect(bootstrap), names, http, reset=assume_reset, rebalances=rebalances)
    if json:
        output.print_json([group.as_json() for group in reports])
    else:
        print_reports(reports)


@app.command(
    cls=Command,
    epilog=examples(
        "the last hour",
        "headrace groups timeline billing",
        "rebalances of the last two days, with the members that delayed them",
        "headrace groups timeline billing --since 2d --rebalances",
    ),
)
def timeline(
    group: Name,
    since: Annotated[
        str, typer.Option("--since", metavar="TIME", help="Start time: a duration (15m, 2h, 7d) or a timestamp.")
    ] = "1h",
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=5000, metavar="N", help="Show at most the latest N events.")
    ] = 500,
    rebalances: Annotated[
        bool, typer.Option("--rebalances", "-r", help="One line per rebalance instead of one per event.")
    ] = False,
    http: Http = None,
    json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show a group's history: members that joined, left, timed out or were fenced, and rebalances.

    A Headrace broker keeps the history, by default for a week, and serves it over HTTP; Apache Kafka does not.
    """
    now_ms = clock.now_ms()
    try:
        since_ms = parse_moment(since, now_ms)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="'--since'") from None
    from headrace.cli import group_timeline

    found = group_timeline.timeline(_connect(bootstrap), group, since_ms, now_ms, limit, http)
    if json:
        output.print_json(found)
    elif not found["events"] and output.stdout_is_terminal():
        output.warn(f"No events of group '{group}' in the requested period. Try --since 7d.")
    elif rebalances:
        group_timeline.print_rebalances(found["rebalances"])
    else:
        group_timeline.print_events(found["events"])


@app.command(
    cls=Command,
    epilog=examples(
        "preview the new offsets",
        "headrace groups reset billing --to earliest",
        "commit them",
        "headrace groups reset billing --to 2026-11-21T09:00 --topic orders --execute",
        "to two hours ago; ten records forward in one partition",
        "headrace groups reset billing --to 2h\nheadrace groups reset billing --shift-by 10 --topic orders:3",
        "save the current offsets, and restore them later",
        "headrace groups reset billing --to current --json > before.json\n"
        "headrace groups reset billing --from-file before.json --execute",
    ),
)
def reset(
    group: Name,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="WHERE",
            show_default=False,
            help="earliest, latest, current, an offset (42), a number of records before the end (-10), a time "
            "(2026-11-21T09:30, @MILLISECONDS) or a duration before now (15m, 2h, 1d).",
        ),
    ] = None,
    shift_by: Annotated[
        int | None,
        typer.Option(
            "--shift-by", metavar="N", show_default=False, help="Move N records forward, or back if N is negative."
        ),
    ] = None,
    from_file: Annotated[
        str | None,
        typer.Option(
            "--from-file",
            metavar="FILE",
            show_default=False,
            help="File of offsets, as printed by this command or by Kafka's tool.",
        ),
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC[:PARTITIONS]",
            show_default="all with committed offsets",
            help="Only these partitions: orders, orders:0,2 or orders:0-3; repeatable.",
        ),
    ] = None,
    execute: Annotated[
        bool, typer.Option("--execute", "-x", help="Reset the offsets; without this option, only show the changes.")
    ] = False,
    json: Json = False,
    quiet: Quiet = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Reset a group's offsets. Its members must be stopped.

    Offsets outside a partition are moved to its start or end.
    """
    if (to is not None) + (shift_by is not None) + (from_file is not None) != 1:
        raise usage_error("give exactly one of --to, --shift-by and --from-file")
    from headrace.cli import group_calls, group_reset
    from headrace.cli.offset_plan import parse_selection

    target = None if to is None else group_reset.parse_target(to)
    selection = parse_selection(topic or (), "--topic")
    cluster = _connect(bootstrap)
    described = group_calls.describe_groups(cluster, [group]).get(group)
    if described is None and not selection.topics and from_file is None:
        raise group_calls.missing_group(cluster, group)
    members = described.members if described else []
    if members and execute:
        clients = sorted({f"{member.client_id} at {member.host.removeprefix('/')}" for member in members})
        raise CommandError(
            f"group '{group}' has {output.count(len(members), 'member')}: {listed(clients, len(clients))}",
            "Stop its members first; otherwise they would commit their own offsets.",
        )
    steps = group_reset.steps(cluster, group, target, shift_by, from_file, selection)
    if execute:
        group_calls.alter(cluster, group, {(step.topic, step.partition): step.new for step in steps})
    group_reset.print_steps(group, steps, execute=execute, json=json)
    if quiet:
        return
    for step in steps:
        if step.new != step.wanted:
            output.tell(
                f"{step.topic}:{step.partition}: offset {step.wanted:,} does not exist; the nearest is {step.new:,}"
            )
    if execute:
        output.tell(f"Reset group {group}: {output.count(len(steps), 'partition')}")
    else:
        verb = "has" if len(members) == 1 else "have"
        busy = f" once the group's {output.count(len(members), 'member')} {verb} stopped" if members else ""
        output.warn(f"Nothing was changed. Add --execute to commit these offsets{busy}.")


@app.command(
    cls=Command,
    epilog=examples(
        "with confirmation",
        "headrace groups delete billing",
        "in a script",
        "headrace groups delete billing --yes --if-exists",
    ),
)
def delete(
    groups: Names,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="Succeed if the group does not exist.")] = False,
    quiet: Quiet = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Delete groups and their offsets. Their members must be stopped."""
    groups = list(dict.fromkeys(groups))
    _check_consent(yes)
    cluster = _connect(bootstrap)
    from headrace.cli import group_calls

    existing = group_calls.describe_groups(cluster, groups)
    absent = [name for name in groups if name not in existing]
    if absent and not if_exists:
        raise group_calls.missing_group(cluster, absent[0])
    groups = [name for name in groups if name in existing]
    if not groups:
        return
    if not yes:
        typer.confirm(f"Delete {', '.join(groups)} at {bootstrap}, with all offsets?", abort=True, err=True)
    failures = []
    for name, failure in group_calls.delete(cluster, groups).items():
        if failure is not None:
            failures.append(failure)
        elif not quiet:
            output.tell(f"Deleted group {name}")
    if failures:
        raise failures[0]


@app.command(
    "delete-offsets",
    cls=Command,
    epilog=examples(
        "for a topic that the group no longer reads",
        "headrace groups delete-offsets billing old-orders",
        "for two partitions, in a script",
        "headrace groups delete-offsets billing orders:0,2 --yes",
    ),
)
def delete_offsets(
    group: Name,
    topics: Annotated[
        list[str],
        typer.Argument(metavar="TOPIC[:PARTITIONS]", show_default=False, help="orders, orders:0,2 or orders:0-3."),
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    quiet: Quiet = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Delete a group's committed offsets for the given topics, to which no member may be subscribed."""
    from headrace.cli.offset_plan import missing_place, parse_selection

    selection = parse_selection(topics, "TOPIC")
    _check_consent(yes)
    cluster = _connect(bootstrap)
    from headrace.cli import group_calls

    committed = group_calls.committed(cluster, group)
    if not committed and group not in group_calls.describe_groups(cluster, [group]):
        raise group_calls.missing_group(cluster, group)
    missing = missing_place(selection, committed)
    if missing is not None:
        raise CommandError(
            f"group '{group}' has no offset for {missing}", f"`headrace groups describe {group}` shows its offsets."
        )
    places = [place for place in committed if selection.takes(place)]
    if not yes:
        typer.confirm(
            f"Delete {output.count(len(places), 'offset')} of group {group} at {bootstrap}?", abort=True, err=True
        )
    for (topic, partition), error in sorted(group_calls.delete_offsets(cluster, group, places).items()):
        if error == "GROUP_SUBSCRIBED_TO_TOPIC":
            raise CommandError(
                f"cannot delete the offsets of group '{group}' for topic '{topic}': members are subscribed to it",
                "Stop these members first.",
            )
        if error is not None:
            raise CommandError(f"cannot delete the offset of group '{group}' for {topic}:{partition}: {error}")
        if not quiet:
            output.tell(f"Deleted the offset of group {group} for {topic}:{partition}")


def _connect(bootstrap: str) -> "Cluster":
    # Imported late: loading the client library would delay the help page.
    from headrace.cli.cluster import Cluster

    return Cluster.connect(bootstrap)


def _check_consent(yes: bool) -> None:
    if not yes and not output.is_terminal(sys.stdin):
        raise usage_error("deleting needs confirmation, and standard input is not a terminal", "Confirm with --yes.")
