"""`headrace pipeline run`, `status` and `query`."""

import json as json_text
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headrace.cli import output, pipeline_options, pipeline_session, row_output
from headrace.cli.failures import CommandError, refused
from headrace.cli.help_pages import examples
from headrace.cli.options import Json
from headrace.cli.pipeline_options import Config, JobFiles, Lake, Master, Overrides, PipelineBootstrap

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.pipeline.spec.deployment import Deployment
    from headrace.pipeline.spec.jobs import Job, TableOutput

RUN_EPILOG = examples(
    "all jobs, until Ctrl-C",
    "headrace pipeline run --config pipeline.toml",
    "two jobs, until they have processed everything that is now in the topics",
    "headrace pipeline run events page_views --once",
    "a job of your own",
    "headrace pipeline run my_views --from my_jobs.py",
)
STATUS_EPILOG = examples(
    "all jobs",
    "headrace pipeline status",
    "the lag of one job, for a script",
    "headrace pipeline status --json | jq '.[] | select(.job == \"events\") | .lag'",
)
QUERY_EPILOG = examples(
    "tables have plain names; additive tables show their totals",
    "headrace pipeline query 'SELECT page, sum(views) FROM page_views GROUP BY page'",
    "estimate the number of visitors from a sketch",
    "headrace pipeline query 'SELECT hour, hll_sketch_estimate(visitors) FROM page_views'",
)
_COLUMNS: Final = (
    output.Column("Job"),
    output.Column("State"),
    output.Column("Batch", number=True),
    output.Column("Lag", number=True),
    output.Column("Rows/s", number=True),
    output.Column("Watermark"),
    output.Column("State rows", number=True),
    output.Column("Late", number=True),
    output.Column("Quarantined", number=True),
    output.Column("Age"),
    output.Column("Last failure"),
    output.Column("Next retry"),
)


def run(
    jobs: Annotated[
        list[str] | None, typer.Argument(metavar="[JOB]...", show_default="all", help="Names of jobs.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Process what is available now, then end.")] = False,
    config: Config = None,
    files: JobFiles = None,
    overrides: Overrides = None,
    lake: Lake = None,
    master: Master = None,
    bootstrap: PipelineBootstrap = None,
    accept_new_topic: Annotated[
        list[str] | None,
        typer.Option(
            "--accept-new-topic",
            metavar="TOPIC",
            show_default=False,
            help="Read this re-created source topic from its beginning, and keep earlier results; repeatable.",
        ),
    ] = None,
    accept_lost: Annotated[
        list[str] | None,
        typer.Option(
            "--accept-lost",
            metavar="TOPIC",
            show_default=False,
            help="Continue without records of this source topic that were deleted before they were read; repeatable.",
        ),
    ] = None,
) -> None:
    """Run jobs on Spark until Ctrl-C, which ends them after their current batches.

    A failing job is restarted after a delay of at most a minute; the others continue. It is not restarted if the cause
    must be fixed by hand or, with --once, after five failures in ten minutes.
    """
    import logging

    from confluent_kafka import KafkaException

    from headrace.pipeline import requirements

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    with pipeline_options.explained():
        selection = pipeline_options.select(
            config=config, files=files, overrides=overrides, lake=lake, bootstrap=bootstrap
        )
        requirements.check()
        from headrace.pipeline.engine import run as engine

        try:
            complete = engine.run(
                selection.deployment,
                selection.jobs,
                jobs or (),
                once=once,
                master=master,
                accepted=accept_new_topic or (),
                accepted_losses=accept_lost or (),
                started=lambda names: output.tell(
                    f"Running {', '.join(names)}. Ctrl-C stops them after the current batch."
                ),
            )
        except KafkaException as error:
            raise refused(error.args[0], selection.deployment.cluster.bootstrap, "starting the jobs") from None
    if not complete:
        raise CommandError("a job failed", "`headrace pipeline status` shows the job and the reason.")


def status(config: Config = None, lake: Lake = None, json: Json = False) -> None:
    """Show the progress of all jobs: batch, lag, rate, watermark, state, late and quarantined rows, failures.

    The command needs neither Spark nor the cluster: it reads files that the driver writes next to the checkpoints.
    """
    with pipeline_options.explained():
        deployment = pipeline_options.read_deployment(config, lake)
        from headrace.pipeline.engine.monitoring import status as files

        jobs = files.read(deployment.checkpoints, datetime.now(UTC), prefix=deployment.prefix)
    if json:
        output.print_json(jobs)
        return
    if not jobs:
        output.tell(f"No job has run with the lake {deployment.lake} yet. Run the jobs: `headrace pipeline run`")
        return
    output.print_table(_COLUMNS, [_row(job) for job in jobs])


def _row(job: dict[str, Any]) -> list[output.Cell]:
    return [
        job["job"],
        job["state"],
        job["batch"],
        job["lag"],
        round(job["rows_per_s"]),
        job["watermark"],
        job["state_rows"],
        job["late_rows"],
        job["quarantined_rows"],
        output.seconds(job["age_s"]),
        job["last_failure"],
        job["next_retry"],
    ]


def query(
    sql: Annotated[str, typer.Argument(metavar="SQL", show_default=False, help="A query in Spark's SQL.")],
    config: Config = None,
    files: JobFiles = None,
    lake: Lake = None,
    master: Master = None,
    json: Json = False,
) -> None:
    """Query the tables of the lake. Additive tables show their totals; times are in UTC."""
    with pipeline_options.explained():
        selection = pipeline_options.select(config=config, files=files, lake=lake)
        with pipeline_session.spark_session(selection.deployment, master) as spark:
            from pyspark.errors import AnalysisException

            tables = _name_tables(spark, selection.deployment, list(selection.jobs.values()), sql)
            try:
                rows = spark.sql(sql)
            except AnalysisException as error:
                if error.getCondition() != "TABLE_OR_VIEW_NOT_FOUND":
                    raise
                what = str(error).splitlines()[0].partition("] ")[2].partition(" Verify")[0]
                raise CommandError(
                    what, f"Tables in {selection.deployment.lake}: {', '.join(tables) or 'none'}."
                ) from None
            if json:
                output.print_json(row_output.objects(rows))
            else:
                output.print_table(*row_output.table(rows))


def _name_tables(spark: "SparkSession", deployment: "Deployment", jobs: "list[Job]", sql: str) -> "list[str]":
    """For every table that the query may refer to, create a view with the table's plain name.

    Return the names of all tables in the lake.
    """
    from headrace.pipeline.engine.tables.lake import Lake
    from headrace.pipeline.spec.jobs import Changelog, Publish

    lake = Lake(spark, deployment.lake)
    words = {word.lower() for word in re.findall(r"\w+", sql)}
    tables = lake.names()
    # SHOW TABLES refers to all tables.
    names = [table for table in tables if table.lower() in words or {"show", "tables"} <= words]
    outputs = {item.table: item for job in jobs for item in job.outputs if not isinstance(item, Changelog | Publish)}
    if not outputs.keys() >= set(names):
        outputs = _stored_outputs(spark, deployment.checkpoints) | outputs
    for table in names:
        rows = lake.view(outputs[table]) if table in outputs else lake.read(table)
        rows.createOrReplaceTempView(table)
    return tables


def _stored_outputs(spark: "SparkSession", checkpoints: str) -> "dict[str, TableOutput]":
    """Return the tables of all jobs that have run, because the jobs' files (`--from`) may be missing here."""
    from headrace.pipeline.engine.files import Files
    from headrace.pipeline.spec import shape

    files, directory = Files(spark), f"{checkpoints}/{shape.DIRECTORY}"
    texts = (files.read(f"{directory}/{name}") for name in sorted(files.names(directory)) if name.endswith(".json"))
    shapes = [shape.from_json(json_text.loads(text)) for text in texts if text]
    return {table: found for stored in shapes for table, found in shape.table_outputs(stored).items()}
