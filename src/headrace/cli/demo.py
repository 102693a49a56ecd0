"""`headrace demo`: run the access log pipeline; show it on a terminal, or print its totals as one JSON object."""

import json
import shlex
import shutil
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headrace.cli.failures import CommandError
from headrace.cli.help_pages import examples
from headrace.cli.output import tell, write_lines, writing
from headrace.cli.pipeline_options import Overrides

if TYPE_CHECKING:
    from rich.console import Console

    from headrace.pipeline.demo.state import DemoState

EPILOG = examples(
    "the log of a small web server that the demo starts",
    "headrace demo",
    "your own log; keep the results, and continue there after Ctrl-C",
    "headrace demo --input access.log --data ./demo",
    "sessions end after ten minutes",
    "headrace demo --input access.log --set sessions.gap='10 minutes'",
    "the totals as JSON",
    "headrace demo --input access.log --json | jq .status",
)
_JSON_KEYS: Final = (
    "requests",
    "clients",
    "status",
    "days",
    "top_pages",
    "page_views",
    "visitors",
    "referrers",
    "sessions",
    "quarantined",
)

_QUERIES: Final = (
    "SELECT hour, sum(views) AS views FROM page_views GROUP BY hour ORDER BY views DESC LIMIT 10",
    "SELECT * FROM sessions ORDER BY requests DESC LIMIT 10",
)


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
            help="Directory for topics and tables: a new one, or that of an earlier demo to continue.",
        ),
    ] = None,
    lake: Annotated[
        str | None,
        typer.Option("--lake", metavar="URI", show_default="DIR/lake", help="Directory or URI of the tables."),
    ] = None,
    overrides: Overrides = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print only the totals, as one JSON object.")] = False,
    bootstrap: Annotated[
        str | None,
        typer.Option(
            "--bootstrap", "-b", metavar="HOST:PORT", show_default="a broker of its own", help="Use a running cluster."
        ),
    ] = None,
    prefix: Annotated[
        str,
        typer.Option("--prefix", metavar="TEXT", show_default=False, help="Prefix for the names of topics and groups."),
    ] = "",
) -> None:
    """Ship a web access log through a broker into Spark, and watch the results arrive.

    Without --input, the demo starts a small web server, sends it requests and ships its log.
    """
    from confluent_kafka import KafkaException
    from rich.console import Console

    from headrace.pipeline import requirements
    from headrace.pipeline.demo.deployment import demo_jobs
    from headrace.pipeline.demo.place import Options, Place
    from headrace.pipeline.demo.results import print_results
    from headrace.pipeline.demo.run import Demo, DemoPlan
    from headrace.pipeline.demo.shipping.sources import FileSource, Source, WebServerSource
    from headrace.pipeline.demo.view import View
    from headrace.pipeline.errors import PipelineError
    from headrace.pipeline.spec.deployment import absolute

    started = time.monotonic()
    console = Console(stderr=as_json, quiet=as_json and not sys.stderr.isatty())
    directory: Path | None = None
    try:
        requirements.check()
        source: Source = FileSource(log_file) if log_file else WebServerSource()
        directory = data.resolve() if data else Path(tempfile.mkdtemp(prefix="headrace-demo-"))
        place = absolute(lake or str(directory / "lake"), Path.cwd())
        options = Options(
            input=str(log_file.resolve()) if log_file else None, lake=place, bootstrap=bootstrap, prefix=prefix
        )
        plan = DemoPlan(
            source=source,
            place=Place(directory, options),
            lake=place,
            bootstrap=bootstrap,
            prefix=prefix,
            overrides=tuple(overrides or ()),
        )
        # Check the options before anything starts.
        demo_jobs(bootstrap=bootstrap or "", lake=place, prefix=prefix, overrides=plan.overrides)
        with View(console) as view:
            state, report = Demo(plan, view.show).run()
    except PipelineError as error:
        raise CommandError(str(error)) from None
    except KafkaException as error:
        raise CommandError(
            f"the broker returned an error: {error.args[0].str()}", f"See the logs in {directory}/logs."
        ) from None
    except KeyboardInterrupt:
        tell(f"Stopped. To continue: {_again(log_file, directory, lake, overrides, bootstrap, prefix)}")
        raise
    if as_json:
        rejected = sum(row["count"] for row in report["quarantined"] if row["job"] == "events")
        write_lines(json.dumps({**{key: report[key] for key in _JSON_KEYS}, "rejected": rejected}))
        if data is None:
            shutil.rmtree(directory, ignore_errors=True)
        return
    with writing():
        print_results(console, state, report, time.monotonic() - started)
        _print_next_steps(console, state, own_broker=bootstrap is None, prefix=prefix)


def _headrace() -> str:
    # Name the program as this process was started: its virtual environment may not be on the path.
    return sys.argv[0] if Path(sys.argv[0]).name == "headrace" else f"{sys.executable} -m headrace"


def _again(
    log_file: Path | None,
    directory: Path | None,
    lake: str | None,
    overrides: list[str] | None,
    bootstrap: str | None,
    prefix: str,
) -> str:
    """Return the command that continues this demo."""
    options: list[tuple[str, Any]] = [
        ("--input", log_file),
        ("--data", directory),
        ("--lake", lake),
        *(("--set", text) for text in overrides or ()),
        ("--bootstrap", bootstrap),
        ("--prefix", prefix),
    ]
    words = [word for name, value in options if value for word in (name, shlex.quote(str(value)))]
    return " ".join([_headrace(), "demo", *words])


def _print_next_steps(console: "Console", state: "DemoState", own_broker: bool, prefix: str) -> None:
    say = partial(console.print, highlight=False, markup=False, soft_wrap=True)
    headrace = _headrace()
    lake = f"--lake {shlex.quote(state.lake)}"
    console.print("[bold]Next steps[/]")
    say("Query the tables with SQL, and see what the jobs did:")
    for sql in _QUERIES:
        say(f"  {headrace} pipeline query '{sql}' {lake}")
    say(f"  {headrace} pipeline status {lake}")
    if own_broker:
        say("The broker has stopped. Start it again in another terminal, and read the published results:")
        say(f"  {headrace} start --data {shlex.quote(str(state.data / 'broker'))}")
    else:
        say("Read the published results:")
    where = "" if own_broker else f" --bootstrap {state.bootstrap}"
    say(f"  {headrace} topics list{where}")
    say(f"  {headrace} groups list{where}")
    say(f"  {headrace} consume {prefix}top-pages --until-end --print-key{where}")
    say(f"Logs: {state.data / 'logs'}")
