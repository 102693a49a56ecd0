"""Small files that are replaced whole, so that a reader sees the old content or the new; syncing and removing."""

import os
from pathlib import Path
from stat import S_ISREG
from typing import Final

fdatasync = getattr(os, "fdatasync", os.fsync)
"""macOS has no fdatasync."""


_MOST_READ: Final = 256 * 1024 * 1024
"""Bytes of a file that is read whole: the state of five million producers."""


_COPIED: Final = 1024 * 1024


class UnusableFileError(OSError):
    """Something else is in the place of a file."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"{path} {what}: move it away while the broker is down")


def sync_directory(directory: Path) -> None:
    """Make renames, creations and removals in `directory` survive a power failure."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Make what other descriptors wrote to `path` survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_file(path: Path) -> bytes:
    """All of a small file. A broker with thousands of partitions reads several of each when it starts.

    Raises OSError, which names the file; UnusableFileError, one of those, for what would block or fill the memory.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a FIFO is opened without waiting for its writer
    try:
        status = os.fstat(descriptor)
        if not S_ISREG(status.st_mode):
            raise UnusableFileError(path, "is not a regular file")
        if status.st_size > _MOST_READ:
            raise UnusableFileError(path, f"has {status.st_size} bytes, more than {_MOST_READ}")
        return os.read(descriptor, status.st_size)
    except UnusableFileError:
        raise
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        os.close(descriptor)


def copy_file(source: Path, target: Path) -> None:
    """Copy the bytes of a file, without the holes in it. Raises OSError."""
    with source.open("rb", buffering=0) as read, target.open("wb") as written:
        size = os.fstat(read.fileno()).st_size
        written.truncate(size)
        while chunk := read.read(_COPIED):
            if chunk.strip(b"\0"):
                written.seek(read.tell() - len(chunk))
                written.write(chunk)
            elif (data := _next_data(read.fileno(), read.tell(), size)) > read.tell():
                read.seek(data)


def _next_data(descriptor: int, position: int, size: int) -> int:
    try:
        return os.lseek(descriptor, position, os.SEEK_DATA)
    except OSError:  # nothing but a hole up to the end
        return size


def replace_file(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Put `data` under the name `path`; with `sync` it also survives a power failure.

    Raises OSError; the old content is then still there.
    """
    temporary = path.with_name(path.name + ".tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    temporary.replace(path)
    if sync:
        sync_directory(path.parent)


def remove_tree(directory: Path) -> None:
    """Remove a directory of files, as far as that is possible; what stays is found again at the next start."""
    # imported late: it brings the libraries of every kind of archive with it, which a starting broker has no use for
    from shutil import rmtree

    rmtree(directory, ignore_errors=True)
