"""Rows that several outputs of a job are made from.

Spark computes a DataFrame again for every output. A job's function says with `shared` which rows it uses more than
once; the engine keeps these until the end of the batch. Anywhere else, `shared` does nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_batch: "Final[ContextVar[list[DataFrame] | None]]" = ContextVar("batch", default=None)


def shared(rows: "DataFrame") -> "DataFrame":
    """Return the rows, which a batch computes only once."""
    batch = _batch.get()
    if batch is not None:
        batch.append(rows.persist())
    return rows


@contextmanager
def sharing() -> "Iterator[list[DataFrame]]":
    """Yield a list to which functions of jobs add the rows they share; the caller unpersists these after the batch."""
    rows: list[DataFrame] = []
    token = _batch.set(rows)
    try:
        yield rows
    finally:
        _batch.reset(token)
