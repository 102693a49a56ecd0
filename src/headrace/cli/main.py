"""The `headrace` command line: its commands and their exit codes.

Command modules import only cheap modules at the top, and modules that talk to a cluster when a command runs.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from headrace import __version__, extras
from headrace.cli import (
    consume,
    demo,
    directories,
    elect,
    groups,
    output,
    overview,
    pipeline,
    produce,
    reassign,
    start_args,
    topics,
    transactions,
    usage,
    verify,
)
from headrace.cli.failures import FAILED, INTERRUPTED, CommandError
from headrace.cli.help_pages import Command, Group, examples
from headrace.cli.interruption import interrupt, stop_signals


def _version(asked: bool) -> None:
    if asked:
        output.write_lines(f"headrace {__version__}")
        raise typer.Exit


_ORDER = [
    "start",
    "demo",
    "topics",
    "groups",
    "transactions",
    "cluster",
    "reassign",
    "elect",
    "produce",
    "consume",
    "pipeline",
    "verify",
    "takeover",
    "handover",
]


class Commands(Group):
    """The group of all commands. Expected errors and Ctrl-C end a command with an exit code and no traceback."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the commands in the order in which a newcomer needs them."""
        return sorted(super().list_commands(ctx), key=_ORDER.index)

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with _ending():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        with _ending():
            return super().invoke(ctx)


@contextmanager
def _ending() -> Iterator[None]:
    try:
        with usage.explained():
            yield
    except CommandError as error:
        output.tell_error(error.what, error.hint)
        raise typer.Exit(error.exit_code) from None
    except ModuleNotFoundError as error:
        if (found := extras.missing(error)) is None:
            raise
        package, command = found
        what = f"this command needs the package {package}, which is not installed. Install it with: {command}"
        output.tell_error(what, None)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except typer.Abort as abort:
        # The user declined, or pressed Ctrl-C, after which the cursor is still on the line of the prompt.
        interrupted = isinstance(abort.__context__, KeyboardInterrupt)
        output.tell("" if interrupted else "Nothing was changed.")
        raise typer.Exit(INTERRUPTED if interrupted else FAILED) from None
    except BrokenPipeError:
        # The reader, for example `head`, has closed the pipe.
        raise typer.Exit(0) from None


def _own_name(name: str) -> str:
    return {"bootstrap-server": "bootstrap", "bootstrap-servers": "bootstrap", "broker-list": "bootstrap"}.get(
        name, name
    )


app = typer.Typer(
    name="headrace",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "token_normalize_func": _own_name},
    epilog=examples(
        "a broker at 127.0.0.1:9092; run the rest in a second terminal",
        "headrace start",
        "a topic",
        "headrace topics create hello --partitions 3",
        "one record per line",
        "echo 'hello, world' | headrace produce hello",
        "all records, then new ones as they arrive",
        "headrace consume hello",
    ),
)
app.add_typer(topics.app, name="topics")
app.add_typer(groups.app, name="groups")
app.add_typer(transactions.app, name="transactions")
app.add_typer(reassign.app, name="reassign")
app.add_typer(pipeline.app, name="pipeline")
app.command("cluster", cls=Command, epilog=overview.EPILOG)(overview.show_cluster)
app.command(cls=Command, epilog=elect.EPILOG)(elect.elect)
app.command(cls=Command, epilog=demo.EPILOG)(demo.demo)
app.command(cls=Command, epilog=produce.EPILOG)(produce.produce)
app.command(cls=Command, epilog=consume.EPILOG)(consume.consume)
app.command(cls=Command, epilog=verify.EPILOG)(verify.verify)
app.command(cls=Command, epilog=directories.TAKEOVER_EPILOG)(directories.takeover)
app.command(cls=Command, epilog=directories.HANDOVER_EPILOG)(directories.handover)


@app.callback()
def headrace(
    version: Annotated[
        bool, typer.Option("--version", "-V", is_eager=True, help="Print the version.", callback=_version)
    ] = False,
) -> None:
    """A partitioned, replicated commit log that any Kafka client can use.

    Exit codes: 0 success, 1 failure, 2 usage error, 3 cluster not in the expected state, 130 stopped with Ctrl-C.
    """


@app.command(
    cls=Command,
    epilog=examples(
        "with defaults, in ./headrace-data",
        "headrace start",
        "with another directory and address",
        "headrace start --data /var/lib/headrace --listen 0.0.0.0:9092",
        "with Kafka's configuration file and one change",
        "headrace start --config server.properties --set log.retention.hours=24",
    ),
)
def start(
    data: Annotated[
        str | None, typer.Option("--data", metavar="DIR", show_default=False, help="Log directory.")
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option("--listen", metavar="HOST:PORT", show_default="127.0.0.1:9092", help="Address to listen on."),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option("--config", metavar="FILE", show_default=False, help="A Kafka server.properties file."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", show_default=False, help="Set one Kafka setting; repeatable."),
    ] = None,
    until_eof: Annotated[
        bool,
        typer.Option("--until-eof", help="Stop at the end of standard input, such as when the parent process dies."),
    ] = False,
) -> None:
    """Start a broker; Ctrl-C stops it.

    It needs no other service and no configuration. Settings have Kafka's names; --set overrides the file.
    """
    try:
        options = start_args.start_options(data, listen, config, settings or [], until_eof=until_eof)
    except start_args.UsageError as error:
        raise typer.BadParameter(str(error)) from None
    from headrace.cli.start import run as run_broker

    raise typer.Exit(run_broker(options))


def run() -> int:
    """Run the command line of this process. Raises SystemExit with the exit code."""
    # `timeout 5 headrace consume ...` and service managers send SIGTERM, closed terminals SIGHUP: exit as after Ctrl-C.
    for number in stop_signals():
        # In scripts, sh ignores SIGINT for commands with `&`: Ctrl-C is for the command in the foreground.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, interrupt)
    app(prog_name="headrace")
    return 0
