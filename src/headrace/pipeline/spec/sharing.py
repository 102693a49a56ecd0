"""Compute rows only once per batch if several tables of a job need them. Does not import Spark."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, TypeVar

F = TypeVar("F")


class Kept:
    """The frames that are cached until the end of a batch."""

    def __init__(self) -> None:
        self._frames: list[Any] = []
        self.shared = False
        """True if the job itself has shared rows."""

    def keep(self, rows: Any) -> None:
        """Cache the rows when they are first computed."""
        if not any(rows is kept for kept in self._frames):
            rows.persist()
            self._frames.append(rows)

    def release(self) -> None:
        while self._frames:
            self._frames.pop().unpersist()


_batch: Final[ContextVar[Kept | None]] = ContextVar("batch", default=None)


@contextmanager
def batch() -> Iterator[Kept]:
    """Cache shared rows until the end of the block."""
    kept = Kept()
    token = _batch.set(kept)
    try:
        yield kept
    finally:
        _batch.reset(token)
        kept.release()


def shared(rows: F) -> F:
    """Compute these rows once, although the job makes several tables from them.

    Returns `rows`. Outside of a batch, such as in a report or a test, it does nothing.
    """
    kept = _batch.get()
    if kept is not None:
        kept.keep(rows)
        kept.shared = True
    return rows
