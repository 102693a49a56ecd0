"""Directories of deleted partitions, which are removed after a delay."""

import logging
from collections.abc import Collection, Iterable
from pathlib import Path

from headrace.storage.files.atomic_file import remove_tree
from headrace.storage.log.config import LogConfig

log = logging.getLogger(__name__)


class DoomedDirs:
    """Directories to be removed, with their due times in ms."""

    def __init__(self, found: Iterable[Path] = ()) -> None:
        """Begin with the directories `found`, which an earlier process left."""
        self._waiting: list[tuple[int | None, Path]] = [(None, path) for path in found]

    def add(self, path: Path, due_ms: int) -> None:
        self._waiting.append((due_ms, path))

    def remove_due(self, now_ms: int, full: Collection[Path]) -> None:
        """Remove the directories that are due, and all those in the log directories `full`. This can take a long time.

        Directories from an earlier process are due after the default delay, counted from the first call.
        """
        waiting: list[tuple[int | None, Path]] = []
        # swap the list, because another thread may add directories during the removal
        doomed, self._waiting = self._waiting, []
        for due, path in doomed:
            if due is None and path.parent not in full:
                waiting.append((now_ms + LogConfig().file_delete_delay_ms, path))
            elif due is not None and due > now_ms and path.parent not in full:
                waiting.append((due, path))
            else:
                remove_tree(path)
                log.info("Removed %s", path)
        self._waiting += waiting
