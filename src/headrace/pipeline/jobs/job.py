"""A job: one streaming query and where its results go."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pyspark.sql import DataFrame

Transform: TypeAlias = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One table, and one topic if there is a name for it.

    `select` takes the rows of a micro-batch to the rows of the table. Rows are told apart by `keys`: a later row
    replaces an earlier one with the same keys, and the topic, keyed by them, is the table's changelog. Without `keys`
    rows are only ever added. `headers` names the columns that become record headers as well.
    """

    table: str
    keys: tuple[str, ...] = ()
    topic: str | None = None
    select: Transform = lambda rows: rows
    headers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One query over parsed lines. `name` names its checkpoint and its consumer group, and must never change."""

    name: str
    transform: Transform
    output_mode: Literal["append", "update", "complete"]
    outputs: tuple[Output, ...]
