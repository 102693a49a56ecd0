"""Directories of partitions that are gone, whose files are kept for a while."""

import logging
from collections.abc import Collection, Iterable
from pathlib import Path

from headrace.storage.files.atomic_file import remove_tree
from headrace.storage.log.config import LogConfig

log = logging.getLogger(__name__)


class DoomedDirs:
    """What waits for its removal, and until when."""

    def __init__(self, found: Iterable[Path]) -> None:
        """With what an earlier process left behind."""
        self._waiting: list[tuple[int | None, Path]] = [(None, path) for path in found]

    def add(self, path: Path, due_ms: int) -> None:
        self._waiting.append((due_ms, path))

    def remove_due(self, now_ms: int, full: Collection[Path]) -> None:
        """Remove those whose time has come, and all in the log directories `full`; may take long.

        What an earlier process left behind waits for the default delay, counted from the first call.
        """
        waiting: list[tuple[int | None, Path]] = []
        # Taken as a whole, because deletions are added from another thread meanwhile.
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
