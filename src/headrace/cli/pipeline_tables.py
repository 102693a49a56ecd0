"""`headrace pipeline audit`, `trace`, `replay-quarantine` and `compact`: look after the tables of a lake."""

import json as json_text
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace import wording
from headrace.cli import output, pipeline_options, pipeline_session
from headrace.cli.failures import CommandError, usage_error
from headrace.cli.group_layout import Prose, print_table
from headrace.cli.help_pages import examples
from headrace.cli.options import Json
from headrace.cli.pipeline_options import Config, JobFiles, Lake, Master, Overrides, PipelineBootstrap, Selection
from headrace.cli.positions import parse_moment

if TYPE_CHECKING:
    from headrace.pipeline.engine.tables.lake import Lake as Tables
    from headrace.pipeline.engine.upkeep.job_audit import Audited
    from headrace.pipeline.engine.upkeep.trace import Reached
    from headrace.pipeline.spec.deployment import Deployment
    from headrace.pipeline.spec.jobs import Additive, Job, Stateful

AUDIT_EPILOG = examples(
    "raw, events and the quarantine against their topics",
    "headrace pipeline audit",
    "an alert from a script: exit code 1 if a record is missing or stored twice",
    "headrace pipeline audit raw --json || notify",
)
TRACE_EPILOG = examples(
    "the record at offset 4711 of partition 0",
    "headrace pipeline trace access-log 0 4711",
    "the tables that it reached",
    "headrace pipeline trace access-log 0 4711 --json | jq '.reached[].table'",
)
REPLAY_EPILOG = examples(
    "count the records that the current parser would accept",
    "headrace pipeline replay-quarantine --dry-run",
    "only records with one reason",
    "headrace pipeline replay-quarantine events --reason 'the line is empty'",
    "with another parser",
    "headrace pipeline replay-quarantine --from my_jobs.py --set events.parser=mine",
)
COMPACT_EPILOG = examples(
    "all tables that collect small files",
    "headrace pipeline compact",
    "one table, but not the hours of the last day",
    "headrace pipeline compact page_views --before 1d",
)

_Jobs = Annotated[
    list[str] | None, typer.Argument(metavar="[JOB]...", show_default="all suitable jobs", help="Names of jobs.")
]


def audit(
    jobs: _Jobs = None,
    config: Config = None,
    files: JobFiles = None,
    lake: Lake = None,
    master: Master = None,
    json: Json = False,
    bootstrap: PipelineBootstrap = None,
) -> None:
    """Prove that every offset of the topics is in the tables, or show why it is not.

    An offset without a row is explained if the log has no record there, or if retention deleted it before the job read
    the partition. The exit code is 1 if a record is missing or stored twice.
    """
    with _selected(config, files, lake=lake, bootstrap=bootstrap) as selection:
        from headrace.pipeline.engine.upkeep.job_audit import keeps_all

        chosen = _chosen(selection, jobs, keeps_all)
        with _tables(selection, master) as tables:
            audits = _audits(tables, selection.deployment, chosen, required=bool(jobs))
    if json:
        output.print_json([_audited(item) for item in audits])
    else:
        _print_audits(audits, tables.uri)
    if not all(item.is_complete for item in audits):
        raise typer.Exit(1)


def _audits(tables: "Tables", deployment: "Deployment", jobs: "Sequence[Job]", *, required: bool) -> "list[Audited]":
    """Audit the jobs that have written rows, and write metrics. If `required`, raise CommandError for other jobs."""
    from headrace.pipeline.engine.files import Files
    from headrace.pipeline.engine.monitoring import status
    from headrace.pipeline.engine.upkeep.audit import ClusterLog
    from headrace.pipeline.engine.upkeep.job_audit import audit_job, metrics

    audits = []
    log = ClusterLog(deployment.cluster)
    try:
        for job in jobs:
            topics = (deployment.settings(job.name).topic or "").split(",")
            found = audit_job(tables, deployment.checkpoints, job, log.ids(filter(None, topics)), log)
            if found is not None:
                audits.append(found)
            elif required:
                raise CommandError(
                    f"job {job.name} has not written to {tables.uri} yet",
                    f"Run it with `headrace pipeline run {job.name}`, or check --lake.",
                )
    finally:
        log.close()
    # In the directory of the jobs' metrics.
    file = f"{status.directory(deployment.checkpoints)}/audit.prom"
    Files(tables.spark).write(file, metrics(audits, datetime.now(UTC)))
    return audits


def _audited(audit: "Audited") -> dict[str, Any]:
    return {
        "job": audit.job,
        "tables": list(audit.tables),
        "complete": audit.is_complete,
        "files": audit.files,
        "files_read": audit.files_read,
        "partitions": [
            {name: value for name, value in asdict(item).items() if name != "gaps"} for item in audit.present
        ],
        "gaps": [asdict(gap) for gap in audit.gaps],
    }


def _print_audits(audits: "Sequence[Audited]", uri: str) -> None:
    if not audits:
        output.tell(f"Nothing to audit: no job has written records of a topic to {uri}. Run the jobs, or check --lake.")
        return
    columns = [
        output.Column("Job"),
        output.Column("Topic"),
        output.Column("Partition", number=True),
        output.Column("First", number=True),
        output.Column("Last", number=True),
        output.Column("Rows", number=True),
        output.Column("Duplicates", number=True),
        output.Column("Explained", number=True),
        output.Column("Missing", number=True),
    ]
    rows: list[list[output.Cell]] = []
    for audit in audits:
        lacking = {kind: _by_partition(audit, kind) for kind in ("explained", "missing")}
        places = {(item.topic, item.topic_id, item.partition): item for item in audit.present}
        for place in sorted({*places, *lacking["explained"], *lacking["missing"]}):
            there = places.get(place)
            rows.append(
                [
                    audit.job,
                    place[0],
                    place[2],
                    *((there.first, there.last, there.rows, there.duplicates) if there else (None, None, 0, 0)),
                    lacking["explained"].get(place, 0),
                    lacking["missing"].get(place, 0),
                ]
            )
    output.print_table(columns, rows)
    missing = [(audit.job, gap) for audit in audits for gap in audit.missing]
    if missing:
        output.write_lines("")
        print_table(
            [
                output.Column("Missing in"),
                output.Column("Topic"),
                output.Column("Partition", number=True),
                output.Column("First", number=True),
                output.Column("Last", number=True),
                Prose("Reason"),
            ],
            [[job, gap.topic, gap.partition, gap.first, gap.last, gap.reason] for job, gap in missing],
        )
    for audit in audits:
        verdict = "every offset is present or explained" if audit.is_complete else "not complete"
        output.tell(
            f"{audit.job}: {verdict} ({', '.join(audit.tables)}; {output.count(audit.files, 'file')}, "
            f"{audit.files_read} of them read, the others checked by their statistics)"
        )


def _by_partition(audit: "Audited", verdict: str) -> dict[tuple[str, str, int], int]:
    """Return the number of offsets with this verdict in each partition."""
    found: dict[tuple[str, str, int], int] = {}
    for gap in audit.gaps:
        if gap.verdict == verdict:
            place = gap.topic, gap.topic_id, gap.partition
            found[place] = found.get(place, 0) + gap.last - gap.first + 1
    return found


def trace(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", show_default=False, help="Topic of the record.")],
    partition: Annotated[
        int, typer.Argument(metavar="PARTITION", min=0, show_default=False, help="Partition of the record.")
    ],
    offset: Annotated[int, typer.Argument(metavar="OFFSET", min=0, show_default=False, help="Offset of the record.")],
    config: Config = None,
    files: JobFiles = None,
    overrides: Overrides = None,
    lake: Lake = None,
    master: Master = None,
    json: Json = False,
) -> None:
    """Show where one record went: its rows in raw, events or the quarantine, and the rows and topics that include it.

    Does not connect to the cluster.
    """
    with _selected(config, files, overrides=overrides, lake=lake) as selection, _tables(selection, master) as tables:
        from headrace.pipeline.engine.upkeep.trace import Place, Tracer

        params = {name: selection.deployment.params(job) for name, job in selection.jobs.items()}
        tracer = Tracer(tables, selection.deployment.checkpoints, selection.jobs, params)
        reached = list(tracer.trace(Place(topic=topic, partition=partition, offset=offset)))
    if not reached:
        raise CommandError(
            f"no table in {tables.uri} has the record at offset {offset} of {topic}, partition {partition}",
            "`headrace pipeline audit` shows which offsets the tables have.",
        )
    if json:
        place = {"topic": topic, "partition": partition, "offset": offset}
        output.print_json({**place, "reached": [asdict(item) for item in reached]})
        return
    _print_trace(reached)


_POSITION = ("topic", "topic_id", "partition", "offset", "source_partition", "source_offset")
_DETAILS = ("timestamp_type", "ingest_date", "settled_before", "settled_after")


def _print_trace(reached: "Sequence[Reached]") -> None:
    """Print the rows; on a terminal, print each column on its own line. Omit the position: the user has typed it."""
    if not output.stdout_is_terminal():
        output.print_table(
            [output.Column("Table"), output.Column("Written"), *map(output.Column, ("Topic", "Key", "Row"))],
            [
                [item.table, "yes" if item.is_written else "no", item.topic, item.key, json_text.dumps(_shown(item))]
                for item in reached
            ],
        )
        return
    width = max(len(name) for item in reached for name in _shown(item))
    for number, each in enumerate(reached):
        notes = [f"topic {each.topic}"] if each.table is not None and each.topic is not None else []
        if each.key is not None:
            notes.append(f"key {each.key}")
        if not each.is_written:
            notes = ["not in the table: the watermark has not passed the row yet, or the record came too late"]
        name = each.table or f"topic {each.topic}"
        title = f"{name} ({', '.join(notes)})" if notes else name
        output.write_lines(*([""] if number else []), wording.escaped_line(title))
        fields = (f"  {name:<{width}}   {value}" for name, value in _shown(each).items())
        output.write_lines(*map(wording.escaped_line, fields))


def _shown(reached: "Reached") -> dict[str, Any]:
    return {name: value for name, value in reached.row.items() if name not in (*_POSITION, *_DETAILS)}


def replay_quarantine(
    jobs: _Jobs = None,
    reasons: Annotated[
        list[str] | None,
        typer.Option("--reason", metavar="TEXT", show_default="all", help="Only records with this reason; repeatable."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count the records.")] = False,
    config: Config = None,
    files: JobFiles = None,
    overrides: Overrides = None,
    lake: Lake = None,
    master: Master = None,
    json: Json = False,
) -> None:
    """Parse quarantined records again, and move those that are valid now to the tables of their job, exactly once.

    The jobs may keep running. Jobs that read these tables process the moved rows like new ones.
    """
    with _selected(config, files, overrides=overrides, lake=lake) as selection:
        from headrace.pipeline.engine.upkeep import replay

        chosen = {job.name: job for job in _chosen(selection, jobs, replay.can_replay)}
        params = {name: selection.deployment.params(job) for name, job in chosen.items()}
        with _tables(selection, master) as tables:
            counts = {
                name: replay.replay(tables, job, params[name], reasons=reasons or (), dry_run=dry_run)
                for name, job in chosen.items()
            }
    found = [{"job": job, **asdict(item)} for job, by_reason in counts.items() for item in by_reason]
    if json:
        output.print_json(found)
        return
    if not found:
        output.tell(f"No records of these jobs are in the quarantine of {tables.uri}")
        return
    print_table(
        [
            output.Column("Job"),
            Prose("Reason"),
            output.Column("Records", number=True),
            output.Column("Good now" if dry_run else "Moved", number=True),
        ],
        [[item["job"], item["reason"], item["records"], item["accepted"]] for item in found],
    )


def compact(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TABLE]...", show_default="all suitable tables", help="Names of tables."),
    ] = None,
    before: Annotated[
        str,
        typer.Option(
            "--before",
            metavar="TIME",
            show_default="now",
            help="Only rows whose minute, hour or day begins before this: a time (2026-11-21T09:00Z), or a duration"
            " before now (1d).",
        ),
    ] = "0s",
    config: Config = None,
    files: JobFiles = None,
    lake: Lake = None,
    master: Master = None,
    json: Json = False,
) -> None:
    """Replace partial sums with totals, and keep only the latest row of each key.

    Jobs and readers may keep running.
    """
    now_ms = int(datetime.now(UTC).timestamp() * 1000)
    try:
        moment = datetime.fromtimestamp(parse_moment(before, now_ms) / 1000, UTC)
    except ValueError as error:
        raise usage_error(f"--before: {error}") from None
    with _selected(config, files, lake=lake) as selection:
        outputs = _compactable(selection, names)
        with _tables(selection, master) as tables:
            from headrace.pipeline.engine.upkeep import compaction

            found = [compaction.compact(tables, item, moment) for item in outputs if names or tables.exists(item.table)]
    if json:
        output.print_json([asdict(item) for item in found])
        return
    if not found:
        output.tell(f"{tables.uri} has no tables to compact yet. Run the jobs that write them, or check --lake.")
        return
    print_table(
        [
            output.Column("Table"),
            output.Column("Rows before", number=True),
            output.Column("Rows after", number=True),
            output.Column("Files before", number=True),
            output.Column("Files after", number=True),
        ],
        [[item.table, item.before.rows, item.after.rows, item.before.files, item.after.files] for item in found],
    )


def _compactable(selection: Selection, names: Sequence[str] | None) -> "list[Additive | Stateful]":
    from headrace.pipeline.spec.jobs import Additive, Stateful
    from headrace.pipeline.spec.params import unknown

    outputs = {
        item.table: item
        for job in selection.jobs.values()
        for item in job.outputs
        if isinstance(item, Additive) or (isinstance(item, Stateful) and item.keys)
    }
    for name in names or ():
        if name not in outputs:
            raise usage_error(unknown("compactable table", name, outputs))
    return [outputs[name] for name in names or outputs]


def _chosen(selection: Selection, names: Sequence[str] | None, suitable: "Callable[[Job], bool]") -> "list[Job]":
    """Return the named jobs, or all suitable ones. Raises PipelineError for an unknown name."""
    if names:
        return [selection.jobs.named(name) for name in dict.fromkeys(names)]
    return [job for job in selection.jobs.values() if suitable(job)]


@contextmanager
def _selected(
    config: Any, files: Any, *, overrides: Any = None, lake: str | None = None, bootstrap: str | None = None
) -> Iterator[Selection]:
    """Read the options of a command that needs Spark. Convert PipelineErrors in the body to CommandErrors."""
    with pipeline_options.explained():
        selection = pipeline_options.select(
            config=config, files=files, overrides=overrides, lake=lake, bootstrap=bootstrap
        )
        from headrace.pipeline import requirements

        requirements.check()
        yield selection


@contextmanager
def _tables(selection: Selection, master: str | None) -> "Iterator[Tables]":
    """Start Spark on the lake."""
    with pipeline_session.spark_session(selection.deployment, master) as spark:
        from headrace.pipeline.engine.tables.lake import Lake as Tables

        yield Tables(spark, selection.deployment.lake)
