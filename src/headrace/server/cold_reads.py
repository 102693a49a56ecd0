"""Whether bytes of a log are in memory, and bringing them there: a read from the disk must not hold up the event loop.

Linux alone can be asked without waiting (`preadv2` with RWF_NOWAIT); elsewhere everything counts as being in memory.
"""

import os
from typing import Final

from headrace.storage.files.log_file import FileSlice

CHUNK: Final = 1024 * 1024
"""Bytes that are looked for, brought in and sent at a time."""
_SMALL: Final = 16 * 1024
"""Less than this is what consumers get who keep up, and is not worth two system calls."""
_AHEAD: Final = CHUNK
_NOWAIT: Final[int] = getattr(os, "RWF_NOWAIT", 0)


def is_cold(part: FileSlice) -> bool:
    """Whether sending `part`, at most CHUNK bytes, would wait for the disk: an end of it is not in memory."""
    if part.size < _SMALL or not _NOWAIT:
        return False
    descriptor = part.file.fileno()
    byte = bytearray(1)
    try:
        os.preadv(descriptor, (byte,), part.position + part.size - 1, _NOWAIT)
        os.preadv(descriptor, (byte,), part.position, _NOWAIT)
    except BlockingIOError:
        return True
    except OSError:  # a file system that cannot tell
        return False
    return False


def bring_in(part: FileSlice) -> None:
    """Wait until `part` is in memory, and have what follows it brought in as well: for a thread.

    The system's own reading ahead does not see that a reader goes through the log in order where several share the
    file. A disk that fails shows when the bytes are sent.
    """
    descriptor = part.file.fileno()
    try:
        os.posix_fadvise(descriptor, part.position, part.size + _AHEAD, os.POSIX_FADV_WILLNEED)
        os.pread(descriptor, 1, part.position)
        os.pread(descriptor, 1, part.position + part.size - 1)
    except OSError:
        return
