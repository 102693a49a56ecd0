"""`headrace pipeline report`: tables of one day or all days, computed from `events` in one batch."""

from dataclasses import asdict
from datetime import date
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import output, pipeline_options, pipeline_session, row_output
from headrace.cli.failures import CommandError
from headrace.cli.help_pages import examples
from headrace.cli.options import Json
from headrace.cli.pipeline_options import Config, JobFiles, Lake, Master, Overrides

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.pipeline.report import Differences

EPILOG = examples(
    "all tables, of all events",
    "headrace pipeline report",
    "the sessions of a day, with another gap",
    "headrace pipeline report sessions --day 2015-05-17 --set sessions.gap='10 minutes'",
    "all rows, for a script",
    "headrace pipeline report page_views --day 2015-05-17 --json | jq '.tables.page_views[0]'",
    "compare with the tables that the jobs have written",
    "headrace pipeline report --check",
)
_SHOWN = 10


def report(
    tables: Annotated[
        list[str] | None, typer.Argument(metavar="[TABLE]...", show_default="all", help="Names of tables.")
    ] = None,
    day: Annotated[
        str | None,
        typer.Option("--day", metavar="YYYY-MM-DD", show_default="all days", help="A day of event time, in UTC."),
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option(
            "--rows", metavar="N", min=1, show_default=f"{_SHOWN}, all with --json", help="Maximum rows per table."
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Only compare with the tables that the jobs have written; exit code 1 if they differ."
        ),
    ] = False,
    config: Config = None,
    files: JobFiles = None,
    overrides: Overrides = None,
    lake: Lake = None,
    master: Master = None,
    json: Json = False,
) -> None:
    """Compute the tables of the jobs from `events` in one batch. Visitors are counted exactly, not estimated.

    Sessions belong to the day on which they start. As in the jobs, sessions and crawlers leave out requests that are
    too late.
    """
    on = _day(day)
    with pipeline_options.explained():
        selection = pipeline_options.select(config=config, files=files, overrides=overrides, lake=lake)
        with pipeline_session.spark_session(selection.deployment, master) as spark:
            from headrace.pipeline.engine.tables.lake import Lake as Tables
            from headrace.pipeline.report import differences, ordered, report, selected

            stored = Tables(spark, selection.deployment.lake)
            params = {name: settings.params for name, settings in selection.deployment.jobs.items()}
            found = selected(report(stored.read("events"), on=on, params=params), tables or ())
            if check:
                _compare(differences(stored, found, on=on, params=params), json)
                return
            if json:
                some = {name: _first(ordered(name, frame), rows) for name, frame in found.items()}
                answer = {name: row_output.objects(frame) for name, frame in some.items()}
                output.print_json({"day": day, "tables": answer})
                return
            for name, frame in found.items():
                _print(name, ordered(name, frame), rows or _SHOWN)


def _day(text: str | None) -> date | None:
    try:
        return None if text is None else date.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"'{text}' is not a day: use YYYY-MM-DD", param_hint="'--day'") from None


def _first(rows: "DataFrame", count: int | None) -> "DataFrame":
    return rows if count is None else rows.limit(count)


def _print(name: str, rows: "DataFrame", count: int) -> None:
    """Print the first rows of a table below its name."""
    rows = rows.cache()
    total = rows.count()
    columns, cells = row_output.table(rows.limit(count))
    rest = f", the first {count}" if total > count else ""
    output.write_lines(f"{name}: {output.count(total, 'row')}{rest}")
    output.print_table(columns, cells, aligned=True)
    output.write_lines("")


def _compare(found: "dict[str, Differences]", json: bool) -> None:
    """Print the numbers of rows that differ, by table. Raises CommandError if there are any."""
    if json:
        output.print_json({name: asdict(only) for name, only in found.items()})
    else:
        columns = [
            output.Column("Table"),
            output.Column("Only in the report", number=True),
            output.Column("Only in the table", number=True),
        ]
        output.print_table(columns, [[name, only.in_report, only.in_table] for name, only in found.items()])
    wrong = [name for name, only in found.items() if only.in_report or only.in_table]
    if wrong:
        raise CommandError(
            f"tables that differ from the report: {', '.join(wrong)}",
            "Run the jobs until they have read all events, with the same parameters as the report.",
        )
