"""A job: one streaming query and its outputs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pyspark.sql import DataFrame

Transform: TypeAlias = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """A table, and a topic if it has a name.

    `select` maps the rows of a micro-batch to the rows of the table. With `keys`, a row replaces an earlier one with
    the same keys, and the topic, keyed by them, is the table's changelog. Without `keys`, rows are only appended.
    `headers` are columns that also become record headers.
    """

    table: str
    keys: tuple[str, ...] = ()
    topic: str | None = None
    select: Transform = lambda rows: rows
    headers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One query over parsed lines. `name` is that of its checkpoint and consumer group, and must never change."""

    name: str
    transform: Transform
    output_mode: Literal["append", "update", "complete"]
    outputs: tuple[Output, ...]
