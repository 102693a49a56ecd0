"""Atomic replacement of small files, so that readers see either the old or the new content; syncing and removing."""

import os
from pathlib import Path
from stat import S_ISREG
from typing import Final

fdatasync = getattr(os, "fdatasync", os.fsync)  # macOS has no fdatasync
_MAX_READ_BYTES: Final = 256 * 1024 * 1024
"""The largest file that is read whole: the state of five million producers."""
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL


class UnusableFileError(OSError):
    """The file is not a regular file, or is far too large."""

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
    """Make writes to `path` through other descriptors survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_file(path: Path) -> tuple[int, int]:
    """Open a file that `read_file` can read. Return its descriptor and size. Raises the errors of `read_file`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # do not wait for the writer of a FIFO
    try:
        status = os.fstat(descriptor)
        if not S_ISREG(status.st_mode):
            raise UnusableFileError(path, "is not a regular file")
        if status.st_size > _MAX_READ_BYTES:
            raise UnusableFileError(path, f"has {status.st_size} bytes, more than {_MAX_READ_BYTES}")
    except OSError:
        os.close(descriptor)
        raise
    return descriptor, status.st_size


def read_file(path: Path) -> bytes:
    """Read a whole small file with few system calls: startup reads several files per partition.

    Raises OSError with the file name, or its subclass UnusableFileError for files that would block or fill the memory.
    """
    descriptor, size = open_file(path)
    try:
        return os.read(descriptor, size)
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        os.close(descriptor)


def replace_file(path: Path, data: bytes, *, sync: bool = True, temporary_suffix: str = ".tmp") -> None:
    """Replace the content of `path`; with `sync` the change survives a power failure.

    The data is first written to a file with `temporary_suffix`, which must differ between concurrent calls for `path`.
    After an OSError, the file has the old content, or the new content if only the sync of the directory failed.
    """
    temporary = path.with_name(path.name + temporary_suffix)
    try:
        descriptor = os.open(temporary, _CREATE, 0o644)
    except FileExistsError:
        # A crash left it. If it were reused without a sync, a power failure could bring its old content back.
        temporary.unlink()
        descriptor = os.open(temporary, _CREATE, 0o644)
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
    """Remove a directory, ignoring errors; the next start removes the rest."""
    # imported late: shutil loads the libraries of all archive formats, which slows the start of a broker
    from shutil import rmtree

    rmtree(directory, ignore_errors=True)
