"""`headrace cluster`: show brokers, the controller, missing replicas and reassignments in progress."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from headrace import wording
from headrace.cli import output
from headrace.cli.failures import UNHEALTHY, usage_error
from headrace.cli.help_pages import examples
from headrace.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json

if TYPE_CHECKING:
    from headrace.cli.cluster import Cluster
    from headrace.cli.placement.state import State

EPILOG = examples(
    "brokers, the controller, and partitions with problems",
    "headrace cluster",
    "wait until all replicas are in sync, for example before restarting the next broker",
    "until headrace cluster --quiet; do sleep 1; done",
    "partitions without a leader",
    "headrace cluster --json | jq '.partitions[] | select(.problem == \"offline\")'",
)

_EVERY_S = 2.0
_CLEAR = "\x1b[H\x1b[2J"


def show_cluster(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh every two seconds, until Ctrl-C.")] = False,
    json: Json = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print nothing except errors; the exit code is the result.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show brokers, the controller, partitions with missing replicas, and reassignments in progress.

    The exit code is 3 if the controller or a broker is missing, or if a replica is not in sync.
    """
    if watch and (json or quiet or not output.stdout_is_terminal()):
        raise usage_error(
            "--watch needs a terminal, and cannot be combined with --json or --quiet",
            "In a script, call the command repeatedly.",
        )
    # Imported late: loading the client library would delay the help page.
    from headrace.cli import overview_tables
    from headrace.cli.cluster import Cluster
    from headrace.cli.placement.requests import read_state

    cluster = Cluster.connect(bootstrap)
    if watch:
        _watch(cluster)
    state = read_state(cluster, sizes=not quiet, needs_moves=False)
    if json:
        output.print_json(overview_tables.as_json(state))
    elif not quiet:
        overview_tables.print_state(state)
    if not state.is_healthy:
        raise typer.Exit(UNHEALTHY)


def _watch(cluster: "Cluster") -> None:
    from headrace.cli import overview_tables
    from headrace.cli.failures import CommandError
    from headrace.cli.placement.requests import read_state

    while True:
        state: State | None = None
        problem = ""
        try:
            state = read_state(cluster, needs_moves=False)
        except CommandError as error:
            # A broker may be restarting: keep trying.
            problem = error.what
        output.write_lines(f"{_CLEAR}{time.strftime('%H:%M:%S')}   Ctrl-C to stop", "")
        if state is None:
            output.write_lines(wording.escaped_line(problem))
        else:
            overview_tables.print_state(state)
        time.sleep(_EVERY_S)
