"""Compact a table, and count its rows and files before and after."""

from dataclasses import dataclass
from datetime import datetime

from headrace.pipeline.engine.tables import additive
from headrace.pipeline.engine.tables.lake import Lake
from headrace.pipeline.spec.jobs import Additive, Stateful


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Rows and data files of a table."""

    rows: int
    files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """A table before and after a compaction; a running pipeline may have appended to it in between."""

    table: str
    before: Size
    after: Size


def compact(lake: Lake, output: Additive | Stateful, before: datetime) -> Compacted:
    """Compact a table with `additive.compact`, and return its size before and after. Raises PipelineError."""
    at_first = _size(lake, output.table)
    replaced = additive.compact(lake, output, before)
    return Compacted(table=output.table, before=at_first, after=_size(lake, output.table) if replaced else at_first)


def _size(lake: Lake, table: str) -> Size:
    from delta.tables import DeltaTable

    detail = DeltaTable.forPath(lake.spark, lake.path(table)).detail().collect()[0]
    return Size(rows=lake.read(table).count(), files=detail.numFiles)
