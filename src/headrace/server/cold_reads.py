"""Detects bytes of a log that are not in the page cache, and loads them, so that no disk read blocks the event loop.

Only Linux can check this without blocking (`preadv2` with RWF_NOWAIT); elsewhere, everything counts as cached.
"""

import os
from typing import Final

from headrace.storage.files.log_file import FileSlice

CHUNK: Final = 1024 * 1024
"""Bytes that are checked, loaded and sent at a time."""
_SMALL: Final = 16 * 1024
"""Minimum bytes to check: consumers that keep up fetch less, and the check takes two system calls."""
_AHEAD: Final = CHUNK
_NOWAIT: Final[int] = getattr(os, "RWF_NOWAIT", 0)


def is_cold(part: FileSlice) -> bool:
    """Return True if the first or last byte of `part` (at most CHUNK bytes) is not cached: sending it would block."""
    if part.size < _SMALL or not _NOWAIT:
        return False
    descriptor = part.file.fileno()
    byte = bytearray(1)
    try:
        os.preadv(descriptor, (byte,), part.position + part.size - 1, _NOWAIT)
        os.preadv(descriptor, (byte,), part.position, _NOWAIT)
    except BlockingIOError:
        return True
    except OSError:  # not supported by the file system
        return False
    return False


def load_part(part: FileSlice) -> None:
    """Load `part` into the page cache and start reading ahead. Blocks: call it in a thread.

    The system's readahead does not recognize sequential readers that share a file. Disk errors are reported when the
    bytes are sent.
    """
    descriptor = part.file.fileno()
    try:
        os.posix_fadvise(descriptor, part.position, part.size + _AHEAD, os.POSIX_FADV_WILLNEED)
        os.pread(descriptor, 1, part.position)
        os.pread(descriptor, 1, part.position + part.size - 1)
    except OSError:
        return
