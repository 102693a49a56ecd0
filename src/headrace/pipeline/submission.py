"""The spark-submit command of a pipeline. Only builds the command: it starts nothing and does not import pyspark."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

from headrace import __version__
from headrace.pipeline import jars
from headrace.pipeline.errors import PipelineError
from headrace.pipeline.spec import profiles
from headrace.pipeline.spec.deployment import Deployment
from headrace.pipeline.spec.secret_values import Secret

DeployMode: TypeAlias = Literal["client", "cluster"]

_PROGRAM: Final = Path(__file__).with_name("submitted.py")
_ROOT: Final = Path(__file__).resolve().parents[3]
_WHEEL: Final = f"dist/headrace-{__version__}-py3-none-any.whl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """The commands that run a pipeline with spark-submit."""

    wheel: tuple[str, ...]
    """The command that builds the wheel for the workers."""
    options: tuple[tuple[str, ...], ...]
    """Arguments of spark-submit: one tuple per option, with its value."""
    program: tuple[str, ...]
    """The program, and its arguments for `headrace pipeline run`."""
    notes: tuple[str, ...]

    @property
    def command(self) -> tuple[str, ...]:
        return ("spark-submit", *(word for option in self.options for word in option), *self.program)


def submission(
    deployment: Deployment,
    *,
    jobs: Sequence[str],
    config: Path | None,
    files: Sequence[Path],
    arguments: Sequence[str],
    deploy_mode: DeployMode,
) -> Submission:
    """Return the submission of `jobs`, or of all jobs if empty. `arguments` are passed to `headrace pipeline run`.

    The command contains no secrets: the driver reads them from the variables and files in the deployment. Raises
    PipelineError if the master cannot run Python programs in this mode, if the image for Kubernetes is missing, and as
    `jars.spark_settings` does.
    """
    master = deployment.spark.master or profiles.DEFAULT_MASTER
    profile = profiles.profile_of(master)
    _check(deployment, master, deploy_mode)
    shipped = [path for path in (config, *files) if path is not None]
    settings = profiles.settings(profile) | {
        name: value for name, value in deployment.spark.settings.items() if not isinstance(value, Secret)
    }
    connector = {
        "spark.jars": "--jars",
        "spark.jars.packages": "--packages",
    }
    options = [
        ("--master", master),
        ("--deploy-mode", deploy_mode),
        ("--name", " ".join(["headrace", *jobs])),
        *((connector[name], value) for name, value in jars.spark_settings().items()),
        ("--py-files", _WHEEL),
        *([("--files", ",".join(str(path.resolve()) for path in shipped))] if deploy_mode == "cluster" else []),
        *(("--conf", f"{name}={value}") for name, value in settings.items()),
    ]

    def placed(path: Path) -> str:
        # In cluster mode, --files copies files into the driver's working directory.
        return path.name if deploy_mode == "cluster" else str(path.resolve())

    program = str(_PROGRAM) if deploy_mode == "client" else f"local://{_PROGRAM}"
    words = [*jobs, *(["--config", placed(config)] if config else [])]
    for path in files:
        words += ["--from", placed(path)]
    source = str(_ROOT) if (_ROOT / "pyproject.toml").is_file() else f"headrace=={__version__}"
    return Submission(
        wheel=("env", "HEADRACE_COMPILE=0", "python", "-m", "pip", "wheel", "--no-deps", "--wheel-dir", "dist", source),
        options=tuple(options),
        program=(program, *words, *arguments),
        notes=tuple(_notes(deployment, master, deploy_mode)),
    )


def _check(deployment: Deployment, master: str, deploy_mode: DeployMode) -> None:
    if deploy_mode == "cluster" and master.startswith(("spark://", "local")):
        raise PipelineError(
            f"Spark has no cluster mode for Python programs on {master}: use --deploy-mode client, YARN or Kubernetes"
        )
    if master.startswith("k8s://") and "spark.kubernetes.container.image" not in deployment.spark.settings:
        raise PipelineError(
            "Kubernetes needs an image that contains Headrace: add `kubernetes.container.image` to [spark]"
        )


def _notes(deployment: Deployment, master: str, deploy_mode: DeployMode) -> list[str]:
    notes = []
    if profiles.profile_of(master) == "server" and deployment.lake.startswith("/"):
        notes.append(f"The lake is the directory {deployment.lake}: driver and workers must share it under this path.")
    if deploy_mode == "cluster":
        notes.append("The driver's image needs headrace[pipeline]; replace the path of submitted.py by the image's.")
    places = [
        str(value)
        for table in (deployment.cluster.settings, deployment.cluster.java, deployment.spark.settings)
        for value in table.values()
        if isinstance(value, Secret)
    ]
    if places:
        notes.append(f"The driver reads secrets from: {', '.join(dict.fromkeys(places))}.")
    return notes
