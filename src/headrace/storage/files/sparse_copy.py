"""Copies of files with holes."""

import errno
import os
from pathlib import Path
from typing import Final

_COPY_BYTES: Final = 1024 * 1024


def copy_file(source: Path, target: Path) -> None:
    """Copy a file, keeping its holes. Raises OSError."""
    with source.open("rb", buffering=0) as read, target.open("wb") as written:
        size = os.fstat(read.fileno()).st_size
        written.truncate(size)
        while chunk := read.read(_COPY_BYTES):
            if chunk.strip(b"\0"):
                written.seek(read.tell() - len(chunk))
                written.write(chunk)
            elif (data := _next_data(read.fileno(), read.tell(), size)) > read.tell():
                read.seek(data)


def _next_data(descriptor: int, position: int, size: int) -> int:
    """Return where the next data begins, or `position` if that is unknown."""
    try:
        return os.lseek(descriptor, position, os.SEEK_DATA)
    except AttributeError:  # this system cannot tell
        return position
    except OSError as error:
        # ENXIO: only a hole up to the end; others: this file system cannot tell
        return size if error.errno == errno.ENXIO else position
