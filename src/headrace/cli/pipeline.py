"""`headrace pipeline`: list and describe the jobs of the Spark pipeline, and print how to submit them."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli import (
    output,
    pipeline_generate,
    pipeline_options,
    pipeline_report,
    pipeline_run,
    pipeline_tables,
)
from headrace.cli.failures import usage_error
from headrace.cli.help_pages import Command, Group, examples
from headrace.cli.options import Json
from headrace.cli.pipeline_options import Config, JobFiles, Lake, Master, Overrides, PipelineBootstrap

app = typer.Typer(cls=Group, no_args_is_help=True, help="Run Spark jobs on topics and tables.")
app.command(cls=Command, epilog=pipeline_run.RUN_EPILOG)(pipeline_run.run)
app.command(cls=Command, epilog=pipeline_run.STATUS_EPILOG)(pipeline_run.status)
app.command(cls=Command, epilog=pipeline_run.QUERY_EPILOG)(pipeline_run.query)
app.command(cls=Command, epilog=pipeline_tables.AUDIT_EPILOG)(pipeline_tables.audit)
app.command(cls=Command, epilog=pipeline_tables.TRACE_EPILOG)(pipeline_tables.trace)
app.command("replay-quarantine", cls=Command, epilog=pipeline_tables.REPLAY_EPILOG)(pipeline_tables.replay_quarantine)
app.command(cls=Command, epilog=pipeline_tables.COMPACT_EPILOG)(pipeline_tables.compact)
app.command(cls=Command, epilog=pipeline_report.EPILOG)(pipeline_report.report)
app.command(cls=Command, epilog=pipeline_generate.EPILOG)(pipeline_generate.generate)


@app.command(
    "list",
    cls=Command,
    epilog=examples(
        "all installed jobs",
        "headrace pipeline list",
        "with your own jobs",
        "headrace pipeline list --from my_jobs.py",
    ),
)
def list_jobs(files: JobFiles = None, config: Config = None, json: Json = False) -> None:
    """List the jobs with their sources and outputs."""
    with pipeline_options.explained():
        selection = pipeline_options.select(config=config, files=files)
    # Imported late: its imports would delay every help page.
    from headrace.cli import job_report

    jobs = job_report.listed(selection)
    if json:
        output.print_json(jobs)
    elif not jobs and output.stdout_is_terminal():
        output.tell("No jobs are installed. Give a file with some: `headrace pipeline list --from FILE`")
    else:
        job_report.print_list(jobs)


@app.command(
    cls=Command,
    epilog=examples(
        "source, outputs, parameters and Spark settings",
        "headrace pipeline describe sessions",
        "with another parameter",
        "headrace pipeline describe sessions --set sessions.gap='10 minutes'",
        "the settings for a Spark cluster",
        "headrace pipeline describe sessions --master spark://host:7077 --json | jq .spark",
    ),
)
def describe(
    job: Annotated[str, typer.Argument(metavar="JOB", show_default=False, help="Name of the job.")],
    config: Config = None,
    files: JobFiles = None,
    overrides: Overrides = None,
    lake: Lake = None,
    master: Master = None,
    json: Json = False,
    bootstrap: PipelineBootstrap = None,
) -> None:
    """Show a job's source, outputs and parameters, and where and how it would run. Connects to nothing."""
    with pipeline_options.explained():
        selection = pipeline_options.select(
            config=config, files=files, overrides=overrides, lake=lake, master=master, bootstrap=bootstrap
        )
        found = selection.jobs.named(job)
        from headrace.cli import job_report

        description = job_report.described(found, selection)
    if json:
        output.print_json(description)
    else:
        job_report.print_description(description)


@app.command(
    cls=Command,
    epilog=examples(
        "all jobs on a Spark cluster",
        "headrace pipeline submit --print --master spark://host:7077",
        "two jobs, as a script",
        "headrace pipeline submit --print page_views sessions --config pipeline.toml > submit.sh",
    ),
)
def submit(
    jobs: Annotated[
        list[str] | None, typer.Argument(metavar="[JOB]...", show_default="all", help="Names of jobs.")
    ] = None,
    print_line: Annotated[bool, typer.Option("--print", help="Required: print the commands; nothing is run.")] = False,
    deploy_mode: Annotated[
        str,
        typer.Option("--deploy-mode", metavar="MODE", help="Where the driver runs: client (here) or cluster."),
    ] = "client",
    config: Config = None,
    files: JobFiles = None,
    overrides: Overrides = None,
    lake: Lake = None,
    master: Master = None,
    json: Json = False,
    bootstrap: PipelineBootstrap = None,
) -> None:
    """Print the spark-submit line that runs jobs with the deployment's settings, and how to build the wheel."""
    if not print_line:
        raise usage_error("submit needs --print", "The command only prints a script; `... --print | sh` runs it.")
    if deploy_mode not in ("client", "cluster"):
        raise usage_error(f"--deploy-mode '{deploy_mode}': must be client or cluster")
    with pipeline_options.explained():
        selection = pipeline_options.select(
            config=config, files=files, overrides=overrides, lake=lake, master=master, bootstrap=bootstrap
        )
        from headrace.pipeline.submission import submission

        submitted = submission(
            selection.deployment,
            jobs=[selection.jobs.named(name).name for name in jobs or ()],
            config=selection.config,
            files=files or (),
            arguments=_arguments(overrides, lake, bootstrap),
            deploy_mode="client" if deploy_mode == "client" else "cluster",
        )
    if json:
        output.print_json(
            {"wheel": submitted.wheel, "command": submitted.command, "notes": submitted.notes},
        )
        return
    output.write_lines(
        "# The wheel, for Python functions on the workers",
        shlex.join(submitted.wheel),
        *(f"# {note}" for note in submitted.notes),
        "spark-submit \\",
        *(f"  {shlex.join(option)} \\" for option in submitted.options),
        f"  {shlex.join(submitted.program)}",
    )


def _arguments(overrides: list[str] | None, lake: str | None, bootstrap: str | None) -> list[str]:
    words = [word for override in overrides or () for word in ("--set", override)]
    if lake is not None:
        from headrace.pipeline.spec.deployment import absolute

        words += ["--lake", absolute(lake, Path.cwd())]
    return words if bootstrap is None else [*words, "--bootstrap", bootstrap]
