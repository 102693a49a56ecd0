"""`headrace demo`: run the access log pipeline; show it on a terminal, or print its totals as one JSON object."""

import json
import shutil
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from headrace.cli.failures import CommandError
from headrace.cli.help_pages import examples
from headrace.cli.output import tell, write_lines, writing

if TYPE_CHECKING:
    from rich.console import Console

    from headrace.pipeline.demo.state import DemoState

EPILOG = examples(
    "the log of a small web server that the demo starts",
    "headrace demo",
    "your own log; keep the results",
    "headrace demo --input access.log --data ./demo",
    "the totals for a program",
    "headrace demo --input access.log --json | jq .status",
)
_JSON_KEYS: Final = ("requests", "clients", "status", "days", "rejected", "top_pages")


def demo(
    log_file: Annotated[
        Path | None,
        typer.Option(
            "--input", metavar="FILE", show_default=False, help="Access log to ship, in Common or Combined Log Format."
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            metavar="DIR",
            show_default="a new temporary directory",
            help="New directory for topics and tables.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print only the totals, as one JSON object.")] = False,
    bootstrap: Annotated[
        str | None,
        typer.Option(
            "--bootstrap", "-b", metavar="HOST:PORT", show_default="a broker of its own", help="Use a running cluster."
        ),
    ] = None,
    prefix: Annotated[
        str, typer.Option("--prefix", metavar="TEXT", show_default=False, help="Prefix for the names of all topics.")
    ] = "",
) -> None:
    """Ship a web access log through a broker into Spark, and watch the results arrive.

    Without --input, the demo starts a small web server, sends it requests and ships its log.
    """
    from confluent_kafka import KafkaException
    from rich.console import Console

    from headrace.pipeline import requirements
    from headrace.pipeline.demo.run import Demo, DemoPlan
    from headrace.pipeline.demo.sources import FileSource, Source, WebServerSource
    from headrace.pipeline.demo.view import View, print_report
    from headrace.pipeline.errors import PipelineError

    started = time.monotonic()
    console = Console(stderr=as_json, quiet=as_json and not sys.stderr.isatty())
    directory: Path | None = None
    try:
        requirements.check()
        source: Source = FileSource(log_file) if log_file else WebServerSource()
        directory = _directory(data)
        plan = DemoPlan(source=source, data=directory, bootstrap=bootstrap, prefix=prefix)
        with View(console) as view:
            state, report = Demo(plan, view.show).run()
    except PipelineError as error:
        raise CommandError(str(error)) from None
    except KafkaException as error:
        raise CommandError(f"the broker answered: {error.args[0].str()}", f"Logs are in {directory}/logs.") from None
    except KeyboardInterrupt:
        tell(f"Stopped. Logs and results so far are in {directory}.")
        raise
    if as_json:
        write_lines(json.dumps({key: report[key] for key in _JSON_KEYS}))
        if data is None:
            shutil.rmtree(directory, ignore_errors=True)
        return
    with writing():
        print_report(console, state, report, time.monotonic() - started)
        _print_next_steps(console, state, own_broker=bootstrap is None, prefix=prefix)


def _directory(named: Path | None) -> Path:
    """Return an empty directory, because two runs that share one would count each other's lines."""
    if named is None:
        return Path(tempfile.mkdtemp(prefix="headrace-demo-"))
    try:
        named.mkdir(parents=True, exist_ok=True)
        if any(named.iterdir()):
            raise CommandError(f"{named} is not empty", "Name a new directory, or leave out --data.")
    except OSError as error:
        raise CommandError(f"cannot use {named} for the demo's data: {error.strerror}") from None
    return named.resolve()


def _print_next_steps(console: "Console", state: "DemoState", own_broker: bool, prefix: str) -> None:
    from headrace.pipeline.topics import TOP_PAGES

    say = partial(console.print, highlight=False, markup=False, soft_wrap=True)
    # The way this process was started: a virtual environment need not be on the path.
    headrace = sys.argv[0] if Path(sys.argv[0]).name == "headrace" else f"{sys.executable} -m headrace"
    tables = state.data / "tables"
    console.print("[bold]Next steps[/]")
    if own_broker:
        say("The broker has stopped. Start it again in another terminal, and read the published results:")
        say(f"  {headrace} start --data {state.data / 'broker'}")
    else:
        say("Read the published results:")
    where = "" if own_broker else f" --bootstrap {state.bootstrap}"
    say(f"  {headrace} topics list{where}")
    say(f"  {headrace} consume {prefix}{TOP_PAGES} --until-end --print-key{where}")
    say(f"All results are also Delta tables, in {tables}:")
    say(f"  {', '.join(sorted(table.name for table in tables.iterdir()))}")
    say(f"  {sys.executable} -m headrace.pipeline.look {tables / 'events'}")
    say(f"Logs: {state.data / 'logs'}")
