"""`headrace elect`: make preferred replicas leaders, or elect any live replica of partitions without a leader."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import output
from headrace.cli.failures import FAILED, usage_error
from headrace.cli.help_pages import examples
from headrace.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json, Quiet

if TYPE_CHECKING:
    from headrace.cli.offset_plan import Selection
    from headrace.cli.placement.elections import Election
    from headrace.cli.placement.state import State

EPILOG = examples(
    "partitions that are not led by their preferred replica",
    "headrace elect",
    "elect the preferred replicas",
    "headrace elect --execute",
    "elect leaders for two partitions that have none, although records may be lost",
    "headrace elect orders:0,3 --unclean --execute",
)


def elect(
    places: Annotated[
        list[str] | None,
        typer.Argument(metavar="TOPIC[:PARTITIONS]", show_default="all", help="orders, orders:0,2 or orders:0-3."),
    ] = None,
    unclean: Annotated[
        bool,
        typer.Option("--unclean", help="Elect live replicas for partitions without a leader; may lose records."),
    ] = False,
    execute: Annotated[bool, typer.Option("--execute", "-x", help="Elect the leaders.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Hold an unclean election without asking.")] = False,
    json: Json = False,
    quiet: Quiet = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Elect leaders. By default, make the preferred (first) replica of every partition its leader.

    Without --execute, nothing changes.
    """
    from headrace.cli.offset_plan import parse_selection

    selection = parse_selection(places or (), "TOPIC[:PARTITIONS]")
    if unclean and execute and not yes and not output.is_terminal(sys.stdin):
        raise usage_error(
            "an unclean election needs confirmation, and standard input is not a terminal", "Confirm with --yes."
        )
    # Imported late: loading the client library would delay the help page.
    from headrace.cli import elect_tables
    from headrace.cli.cluster import Cluster
    from headrace.cli.placement import elections
    from headrace.cli.placement.requests import PREFERRED, UNCLEAN, read_state

    cluster = Cluster.connect(bootstrap)
    state = read_state(cluster, sizes=False, needs_moves=False)
    _check_selection(state, selection, bootstrap)
    planned = [
        elections.preview(state, partition, unclean=unclean)
        for partition in state.partitions.values()
        if selection.takes(partition.place)
    ]
    possible = [one.place for one in planned if one.state == elections.POSSIBLE]
    if not execute:
        _show(planned, json=json, everything=bool(places))
        if not quiet:
            output.warn(elect_tables.preview_summary(planned, unclean=unclean))
        return
    if possible and unclean and not yes:
        number = output.count(len(possible), "partition")
        question = f"Elect leaders for {number}, although acknowledged records may be lost?"
        with output.asking(json=json):
            _show(planned, json=False, everything=False)
            typer.confirm(question, abort=True, err=True)
    results = elections.hold(cluster, UNCLEAN if unclean else PREFERRED, planned)
    _show(results, json=json, everything=bool(places))
    if not quiet:
        output.warn(elect_tables.result_summary(results))
    if any(one.state in (elections.FAILED, elections.IMPOSSIBLE) for one in results):
        raise typer.Exit(FAILED)


def _show(found: "Sequence[Election]", *, json: bool, everything: bool) -> None:
    """Print the elections. A table omits those that are not needed, unless partitions were named."""
    from headrace.cli import elect_tables
    from headrace.cli.placement.elections import NOT_NEEDED

    if json:
        output.print_json(elect_tables.as_json(found))
        return
    shown = [one for one in found if everything or one.state != NOT_NEEDED]
    if shown or not output.stdout_is_terminal():
        elect_tables.print_elections(shown)


def _check_selection(state: "State", selection: "Selection", bootstrap: str) -> None:
    """Raise CommandError if a named topic or partition does not exist."""
    from headrace.cli.failures import missing_partition, missing_topic

    for topic, numbers in selection.topics.items():
        known = {number for name, number in state.partitions if name == topic}
        if not known:
            raise missing_topic(topic, bootstrap, {name for name, _ in state.partitions})
        missing = None if numbers is None else numbers.first_missing(known)
        if missing is not None:
            raise missing_partition(topic, missing, max(known))
