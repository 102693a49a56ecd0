"""Jobs: typed functions from DataFrame to DataFrame, with their source, outputs and expectations."""

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar

from headrace.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    Frames: TypeAlias = DataFrame | dict[str, DataFrame]

_JOB: Final = "__headrace_job__"
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Topic:
    """The records of the job's topics, which the deployment names, in the columns of `raw`."""


@dataclass(frozen=True, slots=True)
class Table:
    """The rows appended to a table of this pipeline, as a stream."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """A table to which rows are appended."""

    table: str
    partition_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Additive:
    """A table of partial aggregates, which its view sums up by `keys`.

    The function returns the aggregates of its rows alone. `sketches` are HLL sketches of DataSketches
    (`hll_sketch_agg`), which the view unites.
    """

    table: str
    keys: tuple[str, ...]
    sums: tuple[str, ...] = ()
    minima: tuple[str, ...] = ()
    maxima: tuple[str, ...] = ()
    sketches: tuple[str, ...] = ()
    time: str | None = None
    """The key that is an hour, minute or day, by which the table is pruned and compacted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stateful:
    """A table written by a query with state and a watermark; with `keys`, a row replaces the one with the same keys."""

    table: str
    keys: tuple[str, ...] = ()
    mode: Literal["append", "update"] = "append"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A small table with the function's result for the whole view of the source table, rewritten only if it changes."""

    table: str
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Changelog:
    """A topic with the changed rows of a table, keyed by the table's keys; compacted if the table has keys."""

    topic: str
    of: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Expect:
    """A condition on the input rows, in SQL. Rows for which it is not true are treated as `otherwise` says."""

    condition: str
    reason: str
    otherwise: Literal["quarantine", "drop", "fail"] = "quarantine"


Output: TypeAlias = Append | Additive | Stateful | Snapshot | Changelog
Source: TypeAlias = Topic | Table


@dataclass(frozen=True, slots=True)
class NoParams:
    """For jobs without parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job. `name` and `version` are in its checkpoint's path, its consumer group and its transactional id."""

    name: str
    version: int
    source: Source
    outputs: tuple[Output, ...]
    function: Callable[..., "Frames"]
    params: type[Any] = NoParams
    expects: tuple[Expect, ...] = ()
    late: Literal["counted", "quarantined"] = "counted"
    """Rows later than the job's watermark: additive jobs count them, stateful ones quarantine them."""

    @property
    def tables(self) -> tuple[str, ...]:
        return tuple(output.table for output in self.outputs if not isinstance(output, Changelog))


def job(
    *,
    name: str,
    source: Source,
    outputs: tuple[Output, ...],
    version: int = 1,
    params: type[Any] = NoParams,
    expects: tuple[Expect, ...] = (),
    late: Literal["counted", "quarantined"] = "counted",
) -> Callable[[F], F]:
    """Register a function `(rows, params) -> DataFrame`, or `-> {table: DataFrame}` with several tables, as a job.

    The function stays a plain function: the same call is the streaming batch, the report and the unit test. Raises
    PipelineError for a definition that cannot work.
    """

    def register(function: F) -> F:
        definition = Job(
            name=name,
            version=version,
            source=source,
            outputs=outputs,
            function=function,
            params=params,
            expects=expects,
            late=late,
        )
        _check(definition)
        setattr(function, _JOB, definition)
        return function

    return register


def job_of(function: Callable[..., Any]) -> Job | None:
    """Return the definition of a decorated function; None for any other object."""
    found = getattr(function, _JOB, None)
    return found if isinstance(found, Job) else None


def _check(job: Job) -> None:
    if not job.tables:
        raise PipelineError(
            f"job {job.name} has no table among its outputs: give it an Append, Additive, Stateful or Snapshot"
        )
    for output in job.outputs:
        if isinstance(output, Snapshot) and not isinstance(job.source, Table):
            raise PipelineError(
                f"job {job.name}: Snapshot('{output.table}') needs source=Table(...): a topic has no view"
            )
        if isinstance(output, Changelog) and output.of not in job.tables:
            raise PipelineError(
                f"job {job.name}: Changelog('{output.topic}') is of '{output.of}', not a table of the job"
            )
    if not is_dataclass(job.params) or any(field.default is field.default_factory for field in fields(job.params)):
        raise PipelineError(f"job {job.name}: the parameters must be a dataclass whose fields all have defaults")
