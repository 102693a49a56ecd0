"""Jobs: typed functions from DataFrame to DataFrame, with their source, outputs and expectations."""

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar

from headrace.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    Frames: TypeAlias = DataFrame | dict[str, DataFrame]

DEFAULT_TRIGGER: Final = "1 second"
_JOB: Final = "__headrace_job__"
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Topic:
    """The records of the topics that the deployment assigns to the job, with the columns of `raw`."""


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
    """A table of partial aggregates, which its view combines by `keys`.

    The function aggregates only the rows of a batch. `sketches` are HLL sketches of Apache DataSketches
    (`hll_sketch_agg`), which the view merges.
    """

    table: str
    keys: tuple[str, ...]
    sums: tuple[str, ...] = ()
    minima: tuple[str, ...] = ()
    maxima: tuple[str, ...] = ()
    sketches: tuple[str, ...] = ()
    time: str | None = None
    """The key that contains an hour, minute or day. The table is pruned and compacted by it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stateful:
    """A table written by a query with state and a watermark. With `keys`, rows replace earlier ones with the same keys.

    `late_by` names the parameter with the longest permitted lateness. Later rows are removed from the stream, and
    the watermark of `event_time` is set before the function is called. If `late_by` is None, the function must set a
    watermark, and Spark drops later rows.
    """

    table: str
    keys: tuple[str, ...] = ()
    mode: Literal["append", "update"] = "append"
    late_by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A small table with the function's result for the whole view of the source table, rewritten only if it changes."""

    table: str
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Changelog:
    """A topic with the changed rows of the table `of`, keyed by the table's keys; compacted if the table has keys."""

    topic: str
    of: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """A topic with the rows that the function returns, without a table. It is compacted if it has `keys`.

    If the function returns a dict, it contains these rows under the topic's name.
    """

    topic: str
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Expect:
    """A condition in SQL on the input rows; for a stateful job, on the rows that it returns.

    `otherwise` says what happens to rows for which it is not true.
    """

    condition: str
    reason: str
    otherwise: Literal["quarantine", "drop", "fail"] = "quarantine"


TableOutput: TypeAlias = Append | Additive | Stateful | Snapshot
"""An output that is a table."""
Output: TypeAlias = TableOutput | Changelog | Publish
Source: TypeAlias = Topic | Table


@dataclass(frozen=True, slots=True)
class NoParams:
    """The parameters of a job that has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job. `name` and `version` are in its checkpoint's path and transactional id, `name` in its consumer group."""

    name: str
    version: int
    source: Source
    outputs: tuple[Output, ...]
    function: Callable[..., "Frames"]
    params: type[Any] = NoParams
    expects: tuple[Expect, ...] = ()
    trigger: str = DEFAULT_TRIGGER
    """Default time between the starts of two batches."""
    late: Literal["counted", "quarantined"] = "counted"
    """How a stateful job treats rows later than `late_by`. Additive jobs have no late rows."""

    @property
    def tables(self) -> tuple[str, ...]:
        return tuple(output.table for output in self.outputs if not isinstance(output, Changelog | Publish))


def job(
    *,
    name: str,
    source: Source,
    outputs: tuple[Output, ...],
    version: int = 1,
    params: type[Any] = NoParams,
    expects: tuple[Expect, ...] = (),
    late: Literal["counted", "quarantined"] = "counted",
    trigger: str = DEFAULT_TRIGGER,
) -> Callable[[F], F]:
    """Register a function `(rows, params) -> DataFrame`, or `-> {table or topic: DataFrame}`, as a job.

    The function itself is unchanged: streams, reports and unit tests call it in the same way. Raises PipelineError for
    an invalid definition.
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
            trigger=trigger,
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
    if not job.tables and not any(isinstance(output, Publish) for output in job.outputs):
        raise PipelineError(f"job {job.name} has no output: give it an Append, Additive, Stateful, Snapshot or Publish")
    for output in job.outputs:
        if isinstance(output, Stateful):
            _check_stateful(job, output)
        if isinstance(output, Snapshot) and not isinstance(job.source, Table):
            raise PipelineError(
                f"job {job.name}: Snapshot('{output.table}') needs source=Table(...): it reads a whole table"
            )
        if isinstance(output, Changelog) and output.of not in job.tables:
            raise PipelineError(
                f"job {job.name}: Changelog('{output.topic}') names table '{output.of}', which the job does not write"
            )
    _check_params(job)


def _check_stateful(job: Job, output: Stateful) -> None:
    if any(not isinstance(other, Changelog) for other in job.outputs if other is not output):
        raise PipelineError(
            f"job {job.name} is stateful, so its other outputs must be changelogs: move the rest to other jobs"
        )
    if output.late_by is not None and output.late_by not in getattr(job.params, "__dataclass_fields__", ()):
        raise PipelineError(f"job {job.name}: late_by names '{output.late_by}', which is not a parameter of the job")


def _check_params(job: Job) -> None:
    if not is_dataclass(job.params) or any(field.default is field.default_factory for field in fields(job.params)):
        raise PipelineError(f"job {job.name}: the parameters must be a dataclass whose fields all have defaults")
