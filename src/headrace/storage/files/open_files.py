"""Limits the number of open segment files: a broker may have more partitions than the system allows open files.

The files opened first are closed first, even if they are still used: reopening one is cheaper than bookkeeping on every
read and append.
"""

import errno
import logging
import resource
from pathlib import Path
from threading import RLock
from typing import Final, Protocol
from weakref import ReferenceType, ref

from headrace.storage.files.log_file import LogFile

log = logging.getLogger(__name__)

_SHARE: Final = 2
"""Segments may use `ulimit -n` divided by this; the rest is for connections and other files."""
_SPARE: Final = 32
"""Descriptors reserved for files that are open only briefly: indexes, checkpoints, modules."""
_PART: Final = 8
"""At the limit, 1/8 of the files are closed, so that the next few opens stay below it."""


class Closable(Protocol):
    """The owner of an open file, which reopens it when needed."""

    def close_file(self) -> None: ...


class OpenFiles:
    """The open segment files of this process. Thread-safe."""

    def __init__(self, capacity: int | None = None) -> None:
        """Allow `capacity` files; by default a share of the system's limit when the first is opened."""
        self._capacity = capacity
        self._highest = -1
        # reentrant: an allocation in `open` can trigger a garbage collection, whose callbacks remove owners
        self._lock = RLock()
        self._owners: dict[int, ReferenceType[Closable]] = {}

    def __len__(self) -> int:
        return len(self._owners)

    def open(self, path: Path, owner: Closable, *, create: bool = False) -> LogFile:
        """Open a file for `owner`, and close others if there are too many. Raises OSError."""
        with self._lock:
            if self._highest < 0:
                self._read_limit()
            try:
                file = LogFile.open(path, create=create)
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._close_some():
                    raise
                file = LogFile.open(path, create=create)
            key = id(owner)
            self._owners.pop(key, None)
            self._owners[key] = ref(owner, lambda _: self._owners.pop(key, None))
            if len(self._owners) > (self._capacity or 1) or file.fileno() > self._highest:
                self._close_some()
            return file

    def _read_limit(self) -> None:
        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if allowed == resource.RLIM_INFINITY:
            allowed = 2**31 - 1
        self._highest = max(0, allowed - 1 - _SPARE)
        if self._capacity is None:
            self._capacity = max(1, allowed // _SHARE)

    def _close_some(self) -> bool:
        """Close the oldest files, but never the newest; return True if any was closed."""
        oldest = list(self._owners)[: max(1, len(self._owners) // _PART)][: len(self._owners) - 1]
        for key in oldest:
            owner = self._owners.pop(key)()
            if owner is not None:
                owner.close_file()
        log.debug("Closed the %d oldest segment files; %d are open", len(oldest), len(self._owners))
        return bool(oldest)


OPEN_FILES: Final = OpenFiles()
"""One per process, like the limit."""
