"""Removes the files of dropped segments some time after the segments were dropped."""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ParamSpec, TypeVar

from headrace.storage.log.state import LogState

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger(__name__)


class DeletedFiles:
    """The files of dropped segments, to be removed after `file.delete.delay.ms`. False if there are none."""

    __slots__ = ("_failure", "_queue", "_state", "_undated")

    def __init__(self, state: LogState) -> None:
        self._state = state
        self._queue: deque[tuple[int, list[str]]] = deque()
        self._undated: deque[list[str]] = deque()
        self._failure: str | None = None
        """The reason of the last failure, which is logged once."""

    def __bool__(self) -> bool:
        return bool(self._queue or self._undated)

    def add(self, files: Sequence[Path], now_ms: int | None = None) -> None:
        """Schedule files in the log's directory for removal. Without `now_ms`, the delay begins at the next check."""
        names = [path.name for path in files]
        if now_ms is None:
            self._undated.append(names)
        else:
            self._queue.append((now_ms + self._state.config.file_delete_delay_ms, names))

    def with_room(self, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Return the result of `work`. If it fails, perhaps because the disk is full, remove all files and try again.

        Raises OSError.
        """
        try:
            return work(*args, **options)
        except OSError:
            for names in (*tuple(self._undated), *(names for _, names in tuple(self._queue))):
                for name in names:
                    (self._state.directory / name).unlink(missing_ok=True)
            return work(*args, **options)

    def clear(self) -> None:
        """Forget the files, which are in a directory that the log no longer uses."""
        self._queue.clear()
        self._undated.clear()

    def remove_due(self, now_ms: int) -> None:
        """Remove the files that are due; those that cannot be removed stay due.

        Blocks on the disk, and may run in another thread.
        """
        failed: list[tuple[int, list[str]]] = []
        failure: OSError | None = None
        for due, names in self._take_due(now_ms):
            kept = []
            for name in names:
                try:
                    (self._state.directory / name).unlink(missing_ok=True)
                except OSError as error:
                    kept.append(name)
                    failure = error
            if kept:
                failed.append((due, kept))
        self._queue.extendleft(reversed(failed))
        reason = None if failure is None else str(self._state.storage_error("remove deleted segments of", failure))
        if reason is not None and reason != self._failure:
            log.warning("Trying again later: %s", reason)
        self._failure = reason

    def _take_due(self, now_ms: int) -> list[tuple[int, list[str]]]:
        taken: list[tuple[int, list[str]]] = []
        with suppress(IndexError):  # until it is empty; another thread may do the same
            while True:
                self._queue.append((now_ms + self._state.config.file_delete_delay_ms, self._undated.popleft()))
        with suppress(IndexError):
            while True:
                due, names = self._queue.popleft()
                if due > now_ms:
                    self._queue.appendleft((due, names))
                    break
                taken.append((due, names))
        return taken
