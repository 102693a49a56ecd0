"""The shape of a job: the parts that its checkpoint and tables depend on. If they change, the job cannot resume.

Spark resumes a query only with the same source and the same state; a table's keys cannot change. The shape is stored
beside the checkpoint as JSON. Imports no Spark and opens no files.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from headrace.pipeline.errors import PipelineError
from headrace.pipeline.spec.jobs import (
    Additive,
    Append,
    Changelog,
    Job,
    Publish,
    Snapshot,
    Stateful,
    Table,
    TableOutput,
    Topic,
)

_FORMAT: Final = 1
_KINDS: Final[Mapping[str, Callable[..., TableOutput]]] = {
    kind.__name__: kind for kind in (Append, Additive, Stateful, Snapshot)
}
DIRECTORY: Final = "shapes"
"""Beside the checkpoints, with a file `<job>-<version>.json` for each job that has run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The parts of a job that must not change while its version has a checkpoint."""

    name: str
    version: int
    source: str
    """'topic' or 'table NAME'. The names of the topics may change."""
    outputs: Mapping[str, Mapping[str, Any]]
    """Kind and fixed parts of each output, by table."""
    changelogs: Mapping[str, str]
    """Tables by topic."""
    state: Mapping[str, str]
    """Schemas of stateful tables, if known."""

    def as_json(self) -> dict[str, Any]:
        """Return the shape as JSON values."""
        return {"format": _FORMAT, **dataclasses.asdict(self)}


@dataclass(frozen=True, slots=True)
class Change:
    """A difference between a checkpoint's shape and the code's."""

    what: str
    before: str | None
    """None if it is new."""
    after: str | None
    """None if it is gone."""

    def __str__(self) -> str:
        if self.before is None:
            return f"{self.what} is new"
        return (
            f"{self.what} is gone" if self.after is None else f"{self.what} changed from {self.before} to {self.after}"
        )


def shape_of(job: Job, state: Mapping[str, str] | None = None) -> Shape:
    """Return the shape of a job; `state` has the schemas of its stateful tables, which only Spark knows."""
    match job.source:
        case Topic():
            source = "topic"
        case Table(name=name):
            source = f"table {name}"
    return Shape(
        name=job.name,
        version=job.version,
        source=source,
        outputs={output.table: _fixed(output) for output in job.outputs if not isinstance(output, Changelog | Publish)},
        changelogs={output.topic: output.of for output in job.outputs if isinstance(output, Changelog)},
        state=dict(state or {}),
    )


def from_json(value: Mapping[str, Any]) -> Shape:
    """Return the stored shape. Raises PipelineError if another release of Headrace wrote it in another format."""
    if value.get("format") != _FORMAT:
        raise PipelineError(
            f"the checkpoint's job definition has format {value.get('format')}, which this release of Headrace cannot "
            "read: use the release that wrote it, or another lake (--lake)"
        )
    return Shape(**{name: part for name, part in value.items() if name != "format"})


def changes(stored: Shape, now: Shape) -> tuple[Change, ...]:
    """Return the differences that prevent resuming the checkpoint.

    Allowed changes: new sums, minima, maxima and sketches of an additive table (null in older rows); new, renamed or
    removed changelog topics; a changed schema of the state if the old or the new one is unknown.
    """
    return tuple(_changes(stored, now))


def check_resumable(stored: Shape, now: Shape) -> None:
    """Raise PipelineError if the checkpoint cannot be resumed. The message says what has changed and what to do."""
    found = changes(stored, now)
    if found:
        raise refusal(now.name, stored.version, "; ".join(map(str, found)))


def refusal(job: str, version: int, changed: str) -> PipelineError:
    """Return the error for a job that cannot resume from the checkpoint of this version."""
    return PipelineError(
        f"job {job} cannot resume from its checkpoint: {changed}. Undo the change, or keep the old results and start "
        f"again: in @job, write version={version + 1} and new names of tables and changelogs. To start with an empty "
        "lake, use --lake"
    )


def table_outputs(stored: Shape) -> dict[str, TableOutput]:
    """Return the tables of a stored shape, so that they can be read without the job's definition."""
    return {
        table: _KINDS[fixed["kind"]](
            table=table,
            **{name: tuple(part) if isinstance(part, list) else part for name, part in fixed.items() if name != "kind"},
        )
        for table, fixed in stored.outputs.items()
    }


def _fixed(output: Append | Additive | Stateful | Snapshot) -> dict[str, Any]:
    """Return the parts of an output that must not change, with lists instead of tuples, as in JSON."""
    kind = type(output).__name__
    match output:
        case Append(partition_by=partition_by):
            return {"kind": kind, "partition_by": list(partition_by)}
        case Additive():
            values = {name: list(getattr(output, name)) for name in ("keys", "sums", "minima", "maxima", "sketches")}
            return {"kind": kind, **values, "time": output.time}
        case Stateful(keys=keys, mode=mode):
            return {"kind": kind, "keys": list(keys), "mode": mode}
        case Snapshot(keys=keys):
            return {"kind": kind, "keys": list(keys)}


_MAY_GROW: Final = ("sums", "minima", "maxima", "sketches")


def _changes(stored: Shape, now: Shape) -> Iterator[Change]:
    for what in ("name", "version", "source"):
        before, after = getattr(stored, what), getattr(now, what)
        if before != after:
            yield Change(f"its {what}", _shown(before), _shown(after))
    for table in dict.fromkeys([*stored.outputs, *now.outputs]):
        if table not in now.outputs:
            yield Change(f"table {table}", _shown(stored.outputs[table]["kind"]), None)
        elif table not in stored.outputs:
            yield Change(f"table {table}", None, _shown(now.outputs[table]["kind"]))
        else:
            yield from _table_changes(table, stored.outputs[table], now.outputs[table])
    for table in stored.state.keys() & now.state.keys():
        if stored.state[table] != now.state[table]:
            yield Change(f"the state of {table}", f"({stored.state[table]})", f"({now.state[table]})")


def _table_changes(table: str, stored: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Change]:
    if stored["kind"] != now["kind"]:
        yield Change(f"table {table}", _shown(stored["kind"]), _shown(now["kind"]))
        return
    for what in dict.fromkeys([*stored, *now]):
        before, after = stored.get(what), now.get(what)
        if what in _MAY_GROW and set(before or ()) <= set(after or ()):
            continue
        if before != after:
            yield Change(f"{what} of table {table}", _shown(before), _shown(after))


def _shown(value: object) -> str:
    if isinstance(value, list):
        return "(" + ", ".join(map(str, value)) + ")"
    return "none" if value is None else str(value)
