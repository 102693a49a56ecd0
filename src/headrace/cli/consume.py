"""`headrace consume`: write a topic's records to standard output."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import output
from headrace.cli.failures import CommandError, usage_error
from headrace.cli.help_pages import examples
from headrace.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Quiet
from headrace.cli.positions import Position, parse_position
from headrace.cli.text_lines import Formatter, compile_columns, compile_template, for_terminal, unescape
from headrace.clock import now_ms

if TYPE_CHECKING:
    from headrace.cli.reading import Outcome

EPILOG = examples(
    "all records, then new ones as they arrive, until Ctrl-C",
    "headrace consume access-log",
    "the last ten records of each partition",
    "headrace consume access-log --from=-10 --until-end",
    "the last 15 minutes as JSON",
    "headrace consume orders --from 15m --until-end --jsonl | jq .key",
    "as a member of a group, from the committed offsets",
    "headrace consume orders --group billing",
    "a format of your own",
    "headrace consume orders --format '{time} {key}: {value}'",
)

_OUTPUT = "Output"
_COLUMNS = ("timestamp", "partition", "offset", "headers", "key")


def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", show_default=False, help="Name of the topic.")],
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="Start: beginning, end, an offset (42), a number of records before the end (-10), a time "
            "(2026-11-21T09:30, @MILLISECONDS) or a duration before now (15m, 2h). With --group: only for partitions "
            "without a committed offset.",
        ),
    ] = "beginning",
    partition: Annotated[
        int | None,
        typer.Option("--partition", "-p", min=0, show_default="all", metavar="N", help="Only this partition."),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group", "-g", metavar="NAME", show_default=False, help="Join a consumer group and commit its offsets."
        ),
    ] = None,
    max_messages: Annotated[
        int | None,
        typer.Option("--max-messages", "-n", min=1, show_default=False, metavar="N", help="Stop after N records."),
    ] = None,
    until_end: Annotated[
        bool, typer.Option("--until-end", "-e", help="Stop at the current end instead of waiting for more records.")
    ] = False,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout", metavar="SECONDS", min=0.1, show_default=False, help="Stop after this long without a record."
        ),
    ] = None,
    jsonl: Annotated[
        bool,
        typer.Option(
            "--jsonl", "--json", rich_help_panel=_OUTPUT, help="One JSON object per line, as `produce --jsonl` reads."
        ),
    ] = False,
    template: Annotated[
        str | None,
        typer.Option(
            "--format",
            "-f",
            metavar="TEMPLATE",
            show_default=False,
            rich_help_panel=_OUTPUT,
            help="One line per record, from {topic} {partition} {offset} {timestamp} {time} {headers} {key} {value}; "
            "\\t is a tab.",
        ),
    ] = None,
    print_timestamp: Annotated[
        bool,
        typer.Option("--print-timestamp", rich_help_panel=_OUTPUT, help="Print the timestamp (ms) before the value."),
    ] = False,
    print_partition: Annotated[
        bool, typer.Option("--print-partition", rich_help_panel=_OUTPUT, help="Print the partition before the value.")
    ] = False,
    print_offset: Annotated[
        bool, typer.Option("--print-offset", rich_help_panel=_OUTPUT, help="Print the offset before the value.")
    ] = False,
    print_headers: Annotated[
        bool, typer.Option("--print-headers", rich_help_panel=_OUTPUT, help="Print the headers before the value.")
    ] = False,
    print_key: Annotated[
        bool, typer.Option("--print-key", rich_help_panel=_OUTPUT, help="Print the key before the value.")
    ] = False,
    separator: Annotated[
        str,
        typer.Option(
            "--separator", metavar="TEXT", rich_help_panel=_OUTPUT, help="Text between the fields of a record."
        ),
    ] = "\\t",
    null: Annotated[
        str,
        typer.Option("--null", metavar="TEXT", rich_help_panel=_OUTPUT, help="Text for a null key or value."),
    ] = "null",
    quiet: Quiet = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Print the records of a topic, one per line.

    The exit code is 1 if --timeout or --until-end stops it before it has read --max-messages records.
    """
    printed = (print_timestamp, print_partition, print_offset, print_headers, print_key)
    columns = [name for name, wanted in zip(_COLUMNS, printed, strict=True) if wanted]
    if jsonl + (template is not None) + bool(columns) > 1:
        raise usage_error(
            "--jsonl, --format and the --print-... options cannot be combined",
            "Give --jsonl, --format TEMPLATE, or any of the --print-... options.",
        )
    if group is not None and partition is not None:
        raise usage_error("--group and --partition cannot be combined", "A group assigns partitions to its members.")
    formatter = _formatter(jsonl, template, columns, separator, null)

    # Imported late: loading the client library would delay the help page.
    from headrace.cli.cluster import Cluster
    from headrace.cli.reading import Reading, read

    reading = Reading(
        topic=topic,
        partition=partition,
        start=_position(start),
        group=group,
        limit=max_messages,
        until_end=until_end,
        timeout_s=timeout,
        quiet=quiet,
    )
    outcome = read(Cluster.connect(bootstrap), reading, formatter, sys.stdout.buffer)
    if not quiet:
        output.tell(outcome.summary())
    if outcome.lost is not None:
        raise outcome.lost
    _check_complete(outcome, max_messages)
    if outcome.interrupted:
        raise KeyboardInterrupt


def _formatter(jsonl: bool, template: str | None, columns: list[str], separator: str, null: str) -> Formatter:
    if jsonl:
        from headrace.cli.json_lines import to_json_line

        return to_json_line
    if template is None:
        formatter = compile_columns([*columns, "value"], unescape(separator), null)
    else:
        try:
            formatter = compile_template(template, null)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="'--format'") from None
    return for_terminal(formatter) if output.stdout_is_terminal() else formatter


def _position(text: str) -> Position:
    try:
        return parse_position(text, now_ms())
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="'--from'") from None


def _check_complete(outcome: "Outcome", limit: int | None) -> None:
    if limit is not None and outcome.records < limit and not outcome.interrupted:
        raise CommandError(f"read only {outcome.records:,} of {limit:,} records from topic '{outcome.topic}'")
