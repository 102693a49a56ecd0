"""Which errors say that a disk, not a single file on it, has failed."""

import errno
import os
from pathlib import Path
from typing import Final

_OF_THE_DISK: Final = frozenset(
    code
    for name in ("EIO", "EROFS", "ENODEV", "ENXIO", "ESTALE", "EUCLEAN", "ENOTCONN", "EHOSTDOWN", "ESHUTDOWN")
    if (code := getattr(errno, name, None)) is not None
)
"""I/O errors, a file system that has gone read-only or is damaged, a device or a server that has gone. Not a full disk,
which has room again later, nor a lack of descriptors or permissions."""


def is_disk_failure(error: BaseException | None) -> bool:
    """Whether nothing in the directory that `error` was met in can be relied on any more."""
    return isinstance(error, OSError) and error.errno in _OF_THE_DISK


def reason_of(error: OSError, named: Path) -> str:
    """The words of `error` for people: without its number, and without the file `named`, which they know already."""
    if error.errno is None:
        return str(error)
    reason = os.strerror(error.errno)
    return reason if error.filename in (None, str(named), named) else f"{error.filename}: {reason}"
