"""Deployments: where a pipeline runs and how much it reads, from TOML. Reads no secrets and connects to nothing."""

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from headrace.pipeline.errors import PipelineError
from headrace.pipeline.spec import client_settings, params, profiles
from headrace.pipeline.spec.client_settings import Cluster
from headrace.pipeline.spec.jobs import Job, Table
from headrace.pipeline.spec.secret_values import Secret, Value, flattened

DEFAULT_BOOTSTRAP: Final = "127.0.0.1:9092"
DEFAULT_LAKE: Final = "headrace-lake"
"""Relative to the working directory."""
DEFAULT_MAX_ROWS: Final = 400_000
"""Maximum rows in a batch of a job that reads a topic."""
DEFAULT_MAX_TABLE_ROWS: Final = 1_000_000
"""Maximum rows in a batch of a job that reads a table: such jobs read only the columns that they need."""
_CHECKPOINTS: Final = "_checkpoints"
"""Directory beside the tables, so that a checkpoint stays with its own tables. No table's name starts with '_'."""
_TABLES: Final = ("cluster", "place", "spark", "jobs")
_JOB_KEYS: Final = ("topic", "trigger", "max_rows", "params")
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*:/", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """The settings of a job: the topics that it reads, the interval and the size of its batches, and its parameters."""

    topic: str | None = None
    """The topic of a job whose source is `Topic`; several are separated by commas."""
    trigger: str | None = None
    """Time between the starts of two batches; '0 seconds' for no pause. None: the job's default."""
    max_rows: int | None = None
    """Maximum number of records or rows in a batch, to bound memory and time. None: the default for the source."""
    params: Mapping[str, object] = field(default_factory=dict)
    """Parameters that differ from the job's defaults."""

    def rows_of(self, job: Job) -> int:
        """Return the maximum number of records or rows in a batch of the job."""
        if self.max_rows is not None:
            return self.max_rows
        return DEFAULT_MAX_TABLE_ROWS if isinstance(job.source, Table) else DEFAULT_MAX_ROWS


@dataclass(frozen=True, slots=True, kw_only=True)
class Spark:
    """Spark's master, and settings by full name (`spark.executor.memory`). Printing shows no secrets."""

    master: str | None = None
    """If None, `--master` or spark-submit sets the master; the default is local[*]."""
    settings: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """A cluster, a lake, Spark, and settings of jobs."""

    cluster: Cluster
    lake: str
    """Directory or URI of the tables."""
    checkpoints: str
    prefix: str = ""
    """Precedes the names of result topics, consumer groups and transactional ids."""
    spark: Spark = Spark()
    jobs: Mapping[str, JobSettings] = field(default_factory=dict)

    @classmethod
    def default(cls, bootstrap: str = DEFAULT_BOOTSTRAP, lake: str = DEFAULT_LAKE) -> "Deployment":
        """Return a deployment for a laptop: no authentication, local[*], and a lake in a local directory."""
        place = absolute(lake, Path.cwd())
        return cls(cluster=client_settings.plain(bootstrap), lake=place, checkpoints=f"{place}/{_CHECKPOINTS}")

    def settings(self, job: str) -> JobSettings:
        """Return the settings of a job: those of `[jobs.NAME]`, or the defaults."""
        return self.jobs.get(job, JobSettings())

    def params(self, job: Job) -> Any:
        """Return the parameters of a job. Raises PipelineError if the deployment has an invalid one."""
        return params.build(job, self.settings(job.name).params)

    def with_lake(self, lake: str) -> "Deployment":
        """Return the deployment with another lake and its checkpoints. Raises PipelineError if `lake` is empty."""
        if not lake:
            raise PipelineError("--lake is empty: give a directory or a URI")
        place = absolute(lake, Path.cwd())
        return replace(self, lake=place, checkpoints=f"{place}/{_CHECKPOINTS}")

    def with_bootstrap(self, bootstrap: str) -> "Deployment":
        """Return the deployment with other brokers and unchanged security settings."""
        settings = {**self.cluster.settings, "bootstrap.servers": bootstrap}
        return replace(self, cluster=replace(self.cluster, settings=settings))

    def with_prefix(self, prefix: str) -> "Deployment":
        """Return the deployment with another prefix. Raises PipelineError if topic names cannot begin with it."""
        return replace(self, prefix=_prefix(prefix))

    def with_master(self, master: str) -> "Deployment":
        """Return the deployment with another Spark master. Raises PipelineError if it is invalid."""
        profiles.profile_of(master)
        return replace(self, spark=replace(self.spark, master=master))

    def with_overrides(self, jobs: Mapping[str, Job], texts: Iterable[str]) -> "Deployment":
        """Return the deployment with the given `--set` options (`JOB.PARAM=VALUE`). Raises PipelineError."""
        changed = dict(self.jobs)
        for name, values in params.overrides(jobs, texts).items():
            settings = self.settings(name)
            changed[name] = replace(settings, params={**settings.params, **values})
        return replace(self, jobs=changed)

    def check(self, jobs: Mapping[str, Job], path: Path) -> None:
        """Raise PipelineError if `[jobs]` in the file at `path` has an unknown job or parameter or an invalid value."""
        for name, settings in self.jobs.items():
            if name not in jobs:
                raise PipelineError(
                    f"{path}: [jobs.{name}]: {params.unknown('job', name, jobs)} Jobs of your own need --from FILE."
                )
            try:
                params.build(jobs[name], settings.params)
            except PipelineError as error:
                raise PipelineError(f"{path}: {error}") from None


def load(path: Path, bootstrap: str = DEFAULT_BOOTSTRAP) -> Deployment:
    """Read a deployment; `bootstrap` is the cluster if the file has none.

    Raises PipelineError for an unreadable file, an unknown key or an invalid value.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PipelineError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PipelineError(f"{path} is not TOML: {error}") from None
    try:
        return parse(table, path.resolve().parent, bootstrap)
    except PipelineError as error:
        raise PipelineError(f"{path}: {error}") from None


def parse(table: Mapping[str, object], directory: Path, bootstrap: str = DEFAULT_BOOTSTRAP) -> Deployment:
    """Return the deployment of a TOML document. Relative paths are resolved from `directory`. Raises PipelineError."""
    _check_keys(table, _TABLES, "", "table")
    place = _table(table, "place")
    _check_keys(place, ("lake", "checkpoints", "prefix"), "[place]")
    lake = absolute(_text(place, "lake", DEFAULT_LAKE, "[place]"), directory)
    checkpoints = _text(place, "checkpoints", f"{lake}/{_CHECKPOINTS}", "[place]")
    return Deployment(
        cluster=client_settings.parse(_table(table, "cluster") or {"bootstrap": bootstrap}, directory),
        lake=lake,
        checkpoints=absolute(checkpoints, directory),
        prefix=_prefix(place.get("prefix", "")),
        spark=_spark(_table(table, "spark"), directory),
        jobs={name: _job(name, value) for name, value in _table(table, "jobs").items()},
    )


def absolute(place: str, directory: Path) -> str:
    """Return `place`, a URI or a path relative to `directory`, as a URI or absolute path without a trailing slash."""
    if _SCHEME.match(place):
        return place.rstrip("/")
    return str((directory / Path(place).expanduser()).resolve())


def _spark(table: Mapping[str, object], directory: Path) -> Spark:
    settings = flattened(table, "[spark]", directory)
    master = settings.pop("master", None)
    if isinstance(master, Secret):
        raise PipelineError("[spark] master must be a string")
    if master is not None:
        profiles.profile_of(master)
    named = {name if name.startswith("spark.") else f"spark.{name}": value for name, value in settings.items()}
    for name in named.keys() & profiles.fixed().keys():
        raise PipelineError(f"[spark] {name} cannot be changed: results or secrets depend on it")
    return Spark(master=master, settings=named)


def _job(name: str, value: object) -> JobSettings:
    where = f"[jobs.{name}]"
    if not isinstance(value, dict):
        raise PipelineError(f"{where} must be a table")
    _check_keys(value, _JOB_KEYS, where)
    given = value.get("params", {})
    if not isinstance(given, dict):
        raise PipelineError(f"{where} params must be a table: params.NAME = VALUE")
    trigger = _text(value, "trigger", "", where) if "trigger" in value else None
    try:
        if trigger is not None:
            params.seconds_of(trigger)
    except ValueError:
        raise PipelineError(f"{where} trigger must be an interval such as '10 seconds', not '{trigger}'") from None
    rows = value.get("max_rows")
    if rows is not None and (type(rows) is not int or rows < 1):
        raise PipelineError(f"{where} max_rows must be a whole number, at least 1, not {rows!r}")
    return JobSettings(topic=_topic(value.get("topic"), where), trigger=trigger, max_rows=rows, params=given)


def _prefix(value: object) -> str:
    if not isinstance(value, str) or (value and _TOPIC.fullmatch(value) is None):
        raise PipelineError(f"the prefix {value!r} cannot begin a topic's name: use letters, digits, '.', '_', '-'")
    return value


def _topic(value: object, where: str) -> str | None:
    if value is None:
        return None
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise PipelineError(f'{where} topic must be the name of a topic or a list: "a" or ["a", "b"]')
    names = [name.strip() for name in names]
    for name in names:
        if _TOPIC.fullmatch(name) is None:
            raise PipelineError(f"{where} topic: '{name}' cannot be a topic's name: use letters, digits, '.', '_', '-'")
    return ",".join(names)


def _table(table: Mapping[str, object], name: str) -> Mapping[str, object]:
    found = table.get(name, {})
    if not isinstance(found, dict):
        raise PipelineError(f"{name} must be a table: [{name}]")
    return found


def _text(table: Mapping[str, object], name: str, default: str, where: str) -> str:
    value = table.get(name, default)
    if not isinstance(value, str) or not value:
        raise PipelineError(f"{where} {name} must be non-empty text, not {value!r}")
    return value


def _check_keys(table: Mapping[str, object], known: Iterable[str], where: str, kind: str = "key") -> None:
    for name in table:
        if name not in known:
            raise PipelineError(f"{where} {params.unknown(kind, name, known)}".lstrip())
