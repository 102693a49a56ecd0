"""`headrace pipeline generate`: a seeded access log with known results, as files or to a topic."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headrace import clock
from headrace.cli import output
from headrace.cli.failures import CommandError, usage_error
from headrace.cli.help_pages import examples
from headrace.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json, Quiet
from headrace.cli.positions import parse_moment
from headrace.cli.progress import Bar

if TYPE_CHECKING:
    from headrace.pipeline.generate.parameters import Parameters

EPILOG = examples(
    "100,000 lines over 14 hours, and the expected results",
    "headrace pipeline generate --output ./log",
    "a day with late, torn and duplicate lines",
    "headrace pipeline generate --hours 24 --late 0.02 --torn 0.005 --duplicates 0.01 --output ./log",
    "a live site: 500 lines a second to a topic, with the current time",
    "headrace pipeline generate --rate 500 --lines 60000 --topic access-log",
)
_MISHAPS: Final = "Mishaps"
_SHOW_EVERY_S: Final = 0.2


def generate(
    directory: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="DIR",
            show_default=False,
            help="New directory for access.log and truth/; with --topic, only for truth/.",
        ),
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic", metavar="NAME", show_default=False, help="Topic for the lines; created if it does not exist."
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", help="Seed of the random numbers: the same seed gives the same log.")
    ] = 1,
    lines: Annotated[
        int | None,
        typer.Option("--lines", metavar="N", show_default="100,000 without --hours", help="Number of lines."),
    ] = None,
    hours: Annotated[
        float | None,
        typer.Option("--hours", metavar="H", show_default=False, help="Length of the log in event time."),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--start",
            metavar="TIME",
            show_default="2026-01-05T00:00:00Z; now with --topic and --rate",
            help="Time of the first request: 2026-11-21T09:30:00Z, @MILLISECONDS or 15m ago.",
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            "--rate",
            metavar="N",
            show_default="2",
            help="Lines per second of event time; with --topic, also the rate of sending (default: no limit).",
        ),
    ] = None,
    visitors: Annotated[
        int | None,
        typer.Option("--visitors", metavar="N", show_default="1,440 times the rate", help="Number of visitors."),
    ] = None,
    late: Annotated[
        float,
        typer.Option(
            "--late", metavar="FRACTION", rich_help_panel=_MISHAPS, help="Share of lines 20 s to 90 min late."
        ),
    ] = 0.0,
    torn: Annotated[
        float,
        typer.Option(
            "--torn", metavar="FRACTION", rich_help_panel=_MISHAPS, help="Share of lines without their end or start."
        ),
    ] = 0.0,
    duplicates: Annotated[
        float,
        typer.Option("--duplicates", metavar="FRACTION", rich_help_panel=_MISHAPS, help="Share of lines logged twice."),
    ] = 0.0,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions",
            metavar="N",
            show_default="the topic's, or 1",
            help="Partitions of a new topic; without --topic, of the topic to which you will send the log.",
        ),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Generate the access log of a made-up web site, and the results that the pipeline must compute from it.

    Visitors have sessions, a page becomes more popular, and five kinds of crawlers visit. The same options produce the
    same bytes.
    """
    from headrace.cli.interruption import Interruption
    from headrace.pipeline.errors import PipelineError
    from headrace.pipeline.generate.parameters import Parameters

    if directory is None and topic is None:
        raise usage_error("give --output or --topic", "--output DIR writes files, --topic NAME sends the lines.")
    chosen: dict[str, Any] = {
        "rate": rate,
        "start": _start(start, now=topic is not None and rate is not None),
        "partitions": partitions,
    }
    started = time.monotonic()
    try:
        parameters = Parameters(
            seed=seed,
            lines=lines,
            hours=hours,
            visitors=visitors,
            late=late,
            torn=torn,
            duplicates=duplicates,
            **{name: value for name, value in chosen.items() if value is not None},
        )
        if topic is not None:
            parameters = replace(parameters, partitions=_partitions(bootstrap, topic, partitions))
        with (
            Interruption() as interruption,
            _progress(topic or "access.log", parameters.lines, quiet=quiet) as progress,
        ):
            totals = _run(parameters, directory, topic, bootstrap, rate, progress, lambda: interruption.asked)
    except PipelineError as error:
        raise CommandError(str(error)) from None
    if json:
        output.print_json(totals)
    elif not quiet:
        _tell_totals(totals, topic, directory, time.monotonic() - started)
    if interruption.asked:
        raise KeyboardInterrupt


def _run(
    parameters: "Parameters",
    directory: Path | None,
    topic: str | None,
    bootstrap: str,
    rate: float | None,
    progress: Callable[[int], None],
    stopped: Callable[[], bool],
) -> dict[str, Any]:
    """Write or send the log, and return the totals."""
    from headrace.pipeline.generate.files import described, truth_files, write_log
    from headrace.pipeline.generate.log import log
    from headrace.pipeline.generate.truth import Truth

    if topic is None:
        assert directory is not None
        return write_log(parameters, directory, progress=progress, stopped=stopped)
    from headrace.pipeline.generate.topic import send_log

    if directory is None:
        truth = Truth(parameters.partitions, lambda *_: None)
        send_log(log(parameters, truth, stopped), bootstrap, topic, rate=rate, progress=progress)
        return described(parameters, truth)
    with truth_files(parameters, directory) as (truth, totals):
        send_log(log(parameters, truth, stopped), bootstrap, topic, rate=rate, progress=progress)
    return totals


def _start(text: str | None, *, now: bool) -> int | None:
    """Return seconds since the epoch; None for the default."""
    now_ms = clock.now_ms()
    if text is None:
        return now_ms // 1000 if now else None
    try:
        return parse_moment(text, now_ms) // 1000
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="'--start'") from None


def _partitions(bootstrap: str, topic: str, wanted: int | None) -> int:
    """Return the number of the topic's partitions; create the topic if it does not exist."""
    from confluent_kafka.admin import NewTopic

    from headrace.cli.cluster import Cluster

    cluster = Cluster.connect(bootstrap)
    if not cluster.exists(topic):
        cluster.create(NewTopic(topic) if wanted is None else NewTopic(topic, num_partitions=wanted))
    found = len(cluster.partitions(topic))
    if wanted is not None and wanted != found:
        raise CommandError(
            f"topic '{topic}' has {output.count(found, 'partition')}, not {wanted}",
            "Leave --partitions out, or name another topic.",
        )
    return found


@contextmanager
def _progress(name: str, total: int | None, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Show the number of lines on a terminal, at most five times a second."""
    if quiet or not output.is_terminal(sys.stderr):
        yield lambda _: None
        return
    from rich.progress import MofNCompleteColumn, SpinnerColumn, TextColumn

    columns = SpinnerColumn(), TextColumn(name, markup=False), MofNCompleteColumn(), TextColumn("lines")
    with Bar(*columns, total=total) as bar:
        shown = 0.0

        def show(done: int) -> None:
            nonlocal shown
            if time.monotonic() - shown > _SHOW_EVERY_S:
                shown = time.monotonic()
                bar.show(completed=done)

        yield show


def _tell_totals(totals: dict[str, Any], topic: str | None, directory: Path | None, seconds: float) -> None:
    where = f"{directory}/access.log" if topic is None else f"topic {topic}"
    rate = f"{totals['lines'] / seconds:,.0f} lines/s"
    output.tell(f"{output.count(totals['lines'], 'line')} to {where} in {output.seconds(seconds)}: {rate}")
    output.tell(f"Event times: {totals['first']} to {totals['last']}")
    if directory is not None:
        output.tell(f"Truth: {directory}/truth")
