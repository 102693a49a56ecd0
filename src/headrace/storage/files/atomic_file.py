"""Small files that are replaced whole, so that a reader sees the old content or the new; syncing and removing."""

import os
from pathlib import Path

fdatasync = getattr(os, "fdatasync", os.fsync)
"""macOS has no fdatasync."""


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

    Raises OSError, which names the file.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, os.fstat(descriptor).st_size)
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        os.close(descriptor)


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
