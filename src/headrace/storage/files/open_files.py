"""Bounds how many segment files are open: a broker may have more partitions than the system allows it files.

Those opened longest ago are closed first. One that is still in use costs an open again, once in as many as are allowed;
in return reading and appending carry no bookkeeping.
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
"""Segments have one in so many of the files that `ulimit -n` allows; clients and everything else have the others."""
_SPARE: Final = 32
"""So many are left for what opens a file for a moment: indexes, checkpoints, modules."""
_PART: Final = 8
"""One in so many is closed where there are too many, so that not every open finds the limit again."""


class Closable(Protocol):
    """What has a file open; it opens it again when it is needed."""

    def close_file(self) -> None: ...


class OpenFiles:
    """All segment files that this process has open. Any thread may call it."""

    def __init__(self, capacity: int | None = None) -> None:
        """At most `capacity` files; without it, a share of what the system allows when the first is opened."""
        self._capacity = capacity
        self._highest = -1
        # a lock that may be taken again: opening allocates, and what is collected then takes itself off the list
        self._lock = RLock()
        self._owners: dict[int, ReferenceType[Closable]] = {}

    def __len__(self) -> int:
        return len(self._owners)

    def open(self, path: Path, owner: Closable, *, create: bool = False) -> LogFile:
        """Open the file that `owner` has from now on, at the expense of others. Raises OSError."""
        with self._lock:
            if self._highest < 0:
                self._ask_system()
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

    def _ask_system(self) -> None:
        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if allowed == resource.RLIM_INFINITY:
            allowed = 2**31 - 1
        self._highest = max(0, allowed - 1 - _SPARE)
        if self._capacity is None:
            self._capacity = max(1, allowed // _SHARE)

    def _close_some(self) -> bool:
        """Close those opened longest ago, but for the newest; whether there were any."""
        oldest = list(self._owners)[: max(1, len(self._owners) // _PART)][: len(self._owners) - 1]
        for key in oldest:
            owner = self._owners.pop(key)()
            if owner is not None:
                owner.close_file()
        log.debug("Closed %d segment files that were opened long ago; %d are open", len(oldest), len(self._owners))
        return bool(oldest)


OPEN_FILES: Final = OpenFiles()
"""Of this process, as the limit is."""
