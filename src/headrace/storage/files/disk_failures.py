"""Recognizes errors of a whole disk, as opposed to a single file."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_DISK_ERRORS: Final = frozenset(
    code
    for name in ("EIO", "EROFS", "ENODEV", "ENXIO", "ESTALE", "EUCLEAN", "ENOTCONN", "EHOSTDOWN", "ESHUTDOWN")
    if (code := getattr(errno, name, None)) is not None
)
"""I/O errors, read-only or damaged file systems, missing devices or servers. A full disk and a lack of descriptors or
permissions are not included: they affect single operations, and may pass."""


class HalfDoneError(OSError):
    """A change of several files failed halfway, so they differ from memory until the log is loaded again."""


@contextmanager
def indivisible(change: str) -> Iterator[None]:
    """Raise HalfDoneError instead of an OSError; `change` is the subject of "... failed halfway"."""
    try:
        yield
    except OSError as error:
        raise HalfDoneError(f"{change} failed halfway: {error.strerror or error}") from error


def is_disk_failure(error: BaseException | None) -> bool:
    """Return True if `error` makes the whole log directory unreliable."""
    return isinstance(error, HalfDoneError) or (isinstance(error, OSError) and error.errno in _DISK_ERRORS)


def may_pass(error: BaseException | None) -> bool:
    """Return True if `error` affects a single operation, which may succeed later."""
    return isinstance(error, OSError) and not is_disk_failure(error)


def reason_of(error: OSError, named: Path) -> str:
    """Return the text of `error` without its number, and without its path if that is `named`."""
    if error.errno is None:
        return str(error)
    reason = os.strerror(error.errno)
    return reason if error.filename in (None, str(named), named) else f"{error.filename}: {reason}"
