"""`headrace reassign`: plan, start, watch, verify and cancel moves of replicas between brokers."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import output
from headrace.cli.failures import FAILED, UNHEALTHY, CommandError, missing_topic, usage_error
from headrace.cli.help_pages import Command, Group, examples
from headrace.cli.options import DEFAULT_BOOTSTRAP, MAX_REPLICAS, Bootstrap, Json, Quiet

if TYPE_CHECKING:
    from headrace.cli.cluster import Cluster
    from headrace.cli.placement.plan import Move
    from headrace.cli.placement.requests import Refusal
    from headrace.cli.placement.state import Partition, Place, State

app = typer.Typer(cls=Group, no_args_is_help=True, help="Move replicas between brokers.")

File = Annotated[str, typer.Argument(metavar="FILE", show_default=False, help="A plan, in Kafka's JSON format.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
KeepThrottle = Annotated[bool, typer.Option("--keep-throttle", help="Do not remove throttles.")]
Reverse = Annotated[
    str | None,
    typer.Option("--reverse", metavar="FILE", show_default=False, help="Write a plan that undoes the moves."),
]


@app.command(
    cls=Command,
    epilog=examples(
        "spread replicas evenly over the brokers that have some",
        "headrace reassign plan --output plan.json",
        "add a broker and retire another one",
        "headrace reassign plan --add 4 --retire 1 --output plan.json --reverse back.json",
        "three replicas per partition for two topics",
        "headrace reassign plan --topics orders,payments --replication-factor 3 --output plan.json",
    ),
)
def plan(
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topics", "-t", metavar="TOPIC[,TOPIC...]", show_default="all", help="Move only these topics; repeatable."
        ),
    ] = None,
    brokers: Annotated[
        list[str] | None,
        typer.Option(
            "--brokers",
            metavar="ID[,ID...]",
            show_default="those that have replicas",
            help="Place replicas on exactly these brokers.",
        ),
    ] = None,
    add: Annotated[
        list[str] | None,
        typer.Option("--add", metavar="ID[,ID...]", show_default=False, help="Also use these brokers; repeatable."),
    ] = None,
    retire: Annotated[
        list[str] | None,
        typer.Option(
            "--retire",
            metavar="ID[,ID...]",
            show_default=False,
            help="Move all replicas off these brokers; repeatable.",
        ),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(
            "--replication-factor",
            "-r",
            min=1,
            max=MAX_REPLICAS,
            metavar="N",
            show_default="unchanged",
            help="Number of replicas of each partition.",
        ),
    ] = None,
    ignore_racks: Annotated[bool, typer.Option("--ignore-racks", help="Do not spread replicas over racks.")] = False,
    to: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", show_default=False, help="Write the plan to this file."),
    ] = None,
    reverse: Reverse = None,
    json: Json = False,
    quiet: Quiet = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Plan moves that spread replicas and leaders evenly, with as few new replicas as possible. Changes nothing."""
    if brokers and (add or retire):
        raise usage_error("--brokers cannot be combined with --add or --retire")
    only, added, retired = _ids("--brokers", brokers), _ids("--add", add), _ids("--retire", retire)
    if both := set(added) & set(retired):
        raise usage_error(f"broker {min(both)} cannot be both added and retired")
    cluster = _connect(bootstrap)
    from headrace.cli import reassign_tables
    from headrace.cli.placement import kafka_json
    from headrace.cli.placement import plan as planning
    from headrace.cli.placement.requests import read_state

    state = read_state(cluster)
    partitions = _of_topics(state, topics or (), bootstrap)
    target = planning.target_brokers(state, only=only, add=added, retire=retired)
    found = planning.plan(state, partitions, target, replication_factor=replication_factor, ignore_racks=ignore_racks)
    if to is not None:
        _write(to, kafka_json.written({move.place: move.after for move in found.moves}))
    if reverse is not None:
        _write(reverse, kafka_json.written({move.place: move.before for move in found.moves}))
    if json:
        output.print_json(reassign_tables.moves_json(found.moves))
    elif found.moves:
        reassign_tables.print_moves(state, found.moves)
    if quiet:
        return
    for place in found.leaderless[:3]:
        output.warn(f"{reassign_tables.named(place)} has no leader and cannot be moved")
    output.warn(_advice(state, found.moves, target, to))


@app.command(
    cls=Command,
    epilog=examples(
        "with confirmation and a progress bar; removes the throttle at the end",
        "headrace reassign execute plan.json --throttle 50MB --watch",
        "in a script",
        "headrace reassign execute plan.json --throttle 50MB --yes",
        "change the throttle of moves in progress",
        "headrace reassign execute plan.json --throttle 200MB --yes",
    ),
)
def execute(
    file: File,
    throttle: Annotated[
        str | None,
        typer.Option(
            "--throttle",
            metavar="RATE",
            show_default="none",
            help="Bytes per second that a broker may send, and receive, for moves: 50MB.",
        ),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Wait until the moves have ended, then remove throttles.")
    ] = False,
    additional: Annotated[
        bool, typer.Option("--additional", help="Start even if other partitions are moving.")
    ] = False,
    reverse: Reverse = None,
    yes: Yes = False,
    json: Json = False,
    quiet: Quiet = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Start the moves of a plan. For moves already in progress, only the throttle is changed."""
    targets = _read(file)
    from headrace.cli.placement import throttles

    rate = None if throttle is None else throttles.parse_rate(throttle, "--throttle")
    _check_can_ask("moving replicas", yes=yes)
    cluster = _connect(bootstrap)
    from headrace.cli import reassign_tables
    from headrace.cli.placement import execution, kafka_json
    from headrace.cli.placement.requests import read_state

    state = read_state(cluster)
    if not additional:
        execution.check_nothing_else_moves(state, targets)
    moves = execution.moves(state, targets, bootstrap)
    if reverse is not None:
        _write(reverse, kafka_json.written({place: state.partitions[place].original for place in targets}))
    if moves and not yes:
        with output.asking(json=json):
            reassign_tables.print_moves(state, moves)
            typer.confirm(f"Start at {bootstrap}: {reassign_tables.summary(moves)}?", abort=True, err=True)
    refused = execution.start(cluster, state, moves, rate)
    started = [move for move in moves if move.place not in refused]
    if json and not watch:
        answer = reassign_tables.moves_json(started)
        output.print_json({**answer, "refused": reassign_tables.refusals_json(refused)})
    if not quiet:
        output.warn(_started(started, len(targets) - len(moves), rate))
    _fail_if_refused(refused, "move")
    if watch:
        _until_done(cluster, targets, file, quiet=quiet)
        _verify(cluster, targets, keep_throttle=False, json=json, quiet=quiet)
    elif started and not quiet:
        output.warn(
            f"`headrace reassign status --watch` shows the progress; "
            f"`headrace reassign verify {file}` checks the result{' and removes the throttle' if rate else ''}."
        )


@app.command(
    cls=Command,
    epilog=examples(
        "moves in progress, with the bytes left to copy",
        "headrace reassign status",
        "a progress bar with rate and time left, until the last move has ended",
        "headrace reassign status --watch",
    ),
)
def status(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show the progress until all moves have ended.")] = False,
    json: Json = False,
    quiet: Quiet = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show all moves in progress, including those that other tools have started."""
    cluster = _connect(bootstrap)
    from headrace.cli import overview_tables, reassign_progress
    from headrace.cli.placement.requests import read_state

    if watch:
        reassign_progress.watch(cluster, lambda _: True, quiet=quiet)
    state = read_state(cluster)
    if json:
        output.print_json(overview_tables.moving_json(state, state.moving))
    elif state.moving or not output.stdout_is_terminal():
        overview_tables.print_moving(state, state.moving)
    if not state.moving and not quiet:
        output.tell(f"No partition is being reassigned at {bootstrap}.")


@app.command(
    cls=Command,
    epilog=examples(
        "check that all moves are done, and remove throttles",
        "headrace reassign verify plan.json",
        "wait in a script until all moves are done",
        "until headrace reassign verify plan.json --quiet; do sleep 10; done",
    ),
)
def verify(
    file: File,
    keep_throttle: KeepThrottle = False,
    json: Json = False,
    quiet: Quiet = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Compare the cluster with a plan; if no partition is moving, remove the replication throttles.

    The exit code is 3 if a partition is still moving, or if its replicas are not as planned.
    """
    targets = _read(file)
    _verify(_connect(bootstrap), targets, keep_throttle=keep_throttle, json=json, quiet=quiet)


@app.command(
    cls=Command,
    epilog=examples(
        "all moves, with confirmation",
        "headrace reassign cancel",
        "some partitions, in a script",
        "headrace reassign cancel orders:0-3 payments --yes",
        "the moves of a plan",
        "headrace reassign cancel --plan plan.json",
    ),
)
def cancel(
    places: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TOPIC[:PARTITIONS]", show_default="all that are moving", help="orders, orders:0,2 or orders:0-3."
        ),
    ] = None,
    file: Annotated[
        str | None,
        typer.Option("--plan", metavar="FILE", show_default=False, help="Cancel the moves of this plan."),
    ] = None,
    keep_throttle: KeepThrottle = False,
    yes: Yes = False,
    json: Json = False,
    quiet: Quiet = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Stop moves in progress: partitions stay on their previous brokers. Completed moves are not undone."""
    from headrace.cli.offset_plan import parse_selection

    if file is not None and places:
        raise usage_error("give either partitions or --plan, not both")
    selection = parse_selection(places or (), "TOPIC[:PARTITIONS]")
    planned = None if file is None else _read(file)
    _check_can_ask("cancelling moves", yes=yes)
    cluster = _connect(bootstrap)
    from headrace.cli import overview_tables, reassign_tables
    from headrace.cli.placement import execution
    from headrace.cli.placement.requests import read_state

    state = read_state(cluster)
    moving = [
        partition
        for partition in state.moving
        if selection.takes(partition.place) and (planned is None or partition.place in planned)
    ]
    if moving and not yes:
        with output.asking(json=json):
            overview_tables.print_moving(state, moving)
            typer.confirm(f"Cancel the moves of {output.count(len(moving), 'partition')}?", abort=True, err=True)
    refused: dict[Place, Refusal] = {}
    if moving:
        state, refused = execution.cancel(cluster, [partition.place for partition in moving])
        if not state.moving and not keep_throttle:
            execution.remove_throttles(cluster, state, [partition.place for partition in moving])
    cancelled = [partition for partition in moving if partition.place not in refused]
    if json:
        output.print_json(
            {
                "cancelled": [
                    {"topic": one.topic, "partition": one.number, "replicas": list(one.original)} for one in cancelled
                ],
                "refused": reassign_tables.refusals_json(refused),
            }
        )
    if not quiet:
        number = output.count(len(cancelled), "partition")
        output.tell(f"Cancelled the moves of {number}." if moving else "None of these partitions is being reassigned.")
    _fail_if_refused(refused, "cancel the move of")


def _connect(bootstrap: str) -> "Cluster":
    # Imported late: loading the client library would delay the help page.
    from headrace.cli.cluster import Cluster

    return Cluster.connect(bootstrap)


def _verify(
    cluster: "Cluster",
    targets: "Mapping[Place, tuple[int, ...]]",
    *,
    keep_throttle: bool,
    json: bool,
    quiet: bool,
) -> None:
    from headrace.cli import reassign_tables
    from headrace.cli.placement import execution

    state, outcomes = execution.settled(cluster, targets)
    clear = not state.moving and not keep_throttle
    if clear:
        execution.remove_throttles(cluster, state, list(targets))
    if json:
        output.print_json(reassign_tables.outcomes_json(outcomes))
    elif not quiet:
        reassign_tables.print_outcomes(outcomes)
    if not quiet:
        throttled = "; removed the throttles" if clear else ""
        output.tell(f"{reassign_tables.outcome_summary(outcomes)}{throttled}")
    if any(outcome.state != execution.DONE for outcome in outcomes):
        raise typer.Exit(UNHEALTHY)


def _until_done(cluster: "Cluster", targets: "Mapping[Place, tuple[int, ...]]", file: str, *, quiet: bool) -> None:
    from headrace.cli import reassign_progress

    try:
        reassign_progress.watch(cluster, targets.__contains__, quiet=quiet)
    except KeyboardInterrupt:
        output.warn(
            f"The moves continue. `headrace reassign verify {file}` checks the result and removes the throttle."
        )
        raise


def _started(started: "Sequence[Move]", unchanged: int, rate: int | None) -> str:
    from headrace.cli import reassign_tables

    parts = [f"Started: {reassign_tables.summary(started)}"]
    if unchanged:
        parts.append(f"{output.count(unchanged, 'partition')} already moved or moving")
    if rate is not None:
        parts.append(f"throttled to {output.size(rate)}/s per broker")
    return "; ".join(parts)


def _advice(state: "State", moves: "Sequence[Move]", brokers: set[int], to: str | None) -> str:
    """Summarize the plan, and suggest the next command."""
    from headrace.cli import reassign_tables
    from headrace.cli.overview_tables import ids

    idle = sorted(set(state.brokers) - brokers - state.hosts)
    hint = f" Brokers without replicas: {ids(idle)}. Use --add {ids(idle)} to place some there." if idle else ""
    if len(state.brokers) == 1 and not moves:
        return "Nothing to move: this cluster has only one broker. Start another one, then plan with --add ID."
    if not moves:
        number = output.count(len(brokers), "broker")
        return f"Nothing to move: replicas and leaders are spread evenly over {number} ({ids(sorted(brokers))}).{hint}"
    text = f"The plan: {reassign_tables.summary(moves)}. Nothing was changed."
    if to is None:
        return f"{text} Add --output FILE to save this plan.{hint}"
    return f"{text} `headrace reassign execute {to}` starts the moves.{hint}"


def _fail_if_refused(refused: "Mapping[Place, Refusal]", doing: str) -> None:
    if refused:
        (topic, number), error = min(refused.items())
        others = f"; also refused: {output.count(len(refused) - 1, 'other partition')}" if len(refused) > 1 else ""
        raise CommandError(
            f"cannot {doing} {topic}:{number}: {error.description} ({error.name}){others}",
            "`headrace cluster` shows brokers and moves in progress.",
            FAILED,
        )


def _of_topics(state: "State", topics: Sequence[str], bootstrap: str) -> "list[Partition]":
    names = [name for text in topics for name in text.split(",") if name]
    known = {partition.topic for partition in state.partitions.values()}
    for name in names:
        if name not in known:
            raise missing_topic(name, bootstrap, known)
    return [partition for partition in state.partitions.values() if not names or partition.topic in names]


def _ids(option: str, texts: Sequence[str] | None) -> list[int]:
    words = [word.strip() for text in texts or () for word in text.split(",")]
    for word in words:
        if not (word.isascii() and word.isdecimal()) or len(word) > 10:
            raise usage_error(f"{option} '{word}' is not a broker id", "For example '3' or '1,2,3'.")
    return [int(word) for word in words]


def _check_can_ask(doing: str, *, yes: bool) -> None:
    if not yes and not output.is_terminal(sys.stdin):
        raise usage_error(f"{doing} needs confirmation, and standard input is not a terminal", "Confirm with --yes.")


def _read(file: str) -> "dict[Place, tuple[int, ...]]":
    from headrace.cli.placement import kafka_json

    name, quoted = ("standard input", "standard input") if file == "-" else (file, f"'{file}'")
    hint = "`headrace reassign plan --output FILE` writes a plan."
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise CommandError(f"cannot read {quoted}: {(error.strerror or str(error)).lower()}", hint) from None
    except UnicodeDecodeError:
        raise CommandError(f"{name} is not UTF-8", hint) from None
    return kafka_json.parsed(text, name)


def _write(file: str, text: str) -> None:
    try:
        Path(file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"cannot write '{file}': {(error.strerror or str(error)).lower()}") from None
