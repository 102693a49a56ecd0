"""Options of the pipeline's commands, and the jobs and deployment that they select."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.failures import CommandError
from headrace.cli.options import DEFAULT_BOOTSTRAP

if TYPE_CHECKING:
    from headrace.pipeline.spec.deployment import Deployment
    from headrace.pipeline.spec.registry import Jobs

DEFAULT_CONFIG = "pipeline.toml"

Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        show_default=f"{DEFAULT_CONFIG}, if it exists",
        help="The deployment: cluster, lake, Spark and settings of jobs.",
    ),
]
JobFiles = Annotated[
    list[Path] | None,
    typer.Option("--from", metavar="FILE", show_default=False, help="A Python file with your own jobs; repeatable."),
]
Lake = Annotated[
    str | None,
    typer.Option("--lake", metavar="URI", show_default="the deployment's", help="Directory or URI of the tables."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="JOB.PARAM=VALUE",
        show_default=False,
        help="Set one parameter, for example sessions.gap='10 minutes'; repeatable.",
    ),
]
Master = Annotated[
    str | None,
    typer.Option("--master", metavar="URL", show_default="the deployment's, or local[*]", help="Spark's master."),
]
PipelineBootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        "-b",
        metavar="HOST:PORT",
        show_default="the deployment's",
        help="A broker of the cluster, or several separated by commas.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The jobs and the deployment that the options of a command select."""

    jobs: "Jobs"
    deployment: "Deployment"
    config: Path | None
    """The deployment's file."""


def select(
    *,
    config: Path | None = None,
    files: list[Path] | None = None,
    overrides: list[str] | None = None,
    lake: str | None = None,
    bootstrap: str | None = None,
    master: str | None = None,
) -> Selection:
    """Find the jobs and read the deployment. Raises PipelineError."""
    from headrace.pipeline.spec import registry

    config = _config(config)
    deployed = read_deployment(config, lake)
    jobs = registry.find(files or ())
    if config is not None:
        deployed.check(jobs, config)
    deployed = deployed.with_overrides(jobs, overrides or ())
    if bootstrap is not None:
        deployed = deployed.with_bootstrap(bootstrap)
    if master is not None:
        deployed = deployed.with_master(master)
    return Selection(jobs=jobs, deployment=deployed, config=config)


def read_deployment(config: Path | None, lake: str | None) -> "Deployment":
    """Read the deployment, without checking the settings of its jobs. Raises PipelineError."""
    from headrace.pipeline.spec import deployment

    config = _config(config)
    default = os.environ.get("HEADRACE_BOOTSTRAP") or DEFAULT_BOOTSTRAP
    deployed = deployment.load(config, default) if config else deployment.Deployment.default(default)
    return deployed if lake is None else deployed.with_lake(lake)


def _config(named: Path | None) -> Path | None:
    return Path(DEFAULT_CONFIG) if named is None and Path(DEFAULT_CONFIG).is_file() else named


@contextmanager
def explained() -> Iterator[None]:
    """Convert PipelineErrors, and OSErrors of a file, to CommandErrors."""
    from headrace.pipeline.errors import PipelineError

    try:
        yield
    except PipelineError as error:
        raise CommandError(str(error)) from None
    except OSError as error:
        if error.filename is None:  # not of a file, for example a closed pipe
            raise
        raise CommandError(f"cannot use {error.filename}: {(error.strerror or str(error)).lower()}") from None
