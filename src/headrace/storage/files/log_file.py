"""The open file of one segment, which is closed with its last reference.

Every read and write passes its position, so threads can share the file.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from headrace.storage.files.atomic_file import fdatasync
from headrace.types import Buffer

_MAX_BUFFERS = 1024
"""The most buffers that Linux and macOS accept in one call (IOV_MAX)."""


class LogFile:
    """A file descriptor shared by the segment and the replies that are being sent from it.

    The segment never closes it, so a slice of a deleted segment stays readable until it is sent.
    """

    __slots__ = ("__weakref__", "_descriptor")

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def open(cls, path: Path, *, create: bool = False) -> "LogFile":
        flags = os.O_RDWR | (os.O_CREAT if create else 0)
        return cls(os.open(path, flags, 0o644))

    def fileno(self) -> int:
        return self._descriptor

    def pread(self, size: int, position: int) -> bytes:
        """Read `size` bytes, or fewer at the end of the file."""
        return os.pread(self._descriptor, size, position)

    def append(self, buffers: Sequence[Buffer], size: int, position: int) -> None:
        """Write `buffers`, `size` bytes in total, at `position`, the end of the file.

        On OSError, such as a full disk, cut the file back to `position` bytes.
        """
        try:
            few = buffers if len(buffers) <= _MAX_BUFFERS else buffers[:_MAX_BUFFERS]
            written = os.pwritev(self._descriptor, few, position)
            if written != size:
                self._write_rest(buffers, written, position)
        except OSError:
            self.truncate(position)
            raise

    def _write_rest(self, buffers: Sequence[Buffer], written: int, position: int) -> None:
        rest = memoryview(b"".join(buffers))
        while written < len(rest):
            written += os.pwrite(self._descriptor, rest[written:], position + written)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def preallocate(self, size: int) -> None:
        """Reserve `size` bytes. Raises OSError."""
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self._descriptor, 0, size)
        else:
            os.ftruncate(self._descriptor, size)

    def trim(self, size: int) -> None:
        """Free preallocated space after `size` bytes."""
        if os.fstat(self._descriptor).st_size > size:
            self.truncate(size)

    def sync(self) -> None:
        fdatasync(self._descriptor)

    def __del__(self, _close=os.close) -> None:  # type: ignore[no-untyped-def]
        # bound at definition, because `os` may be unloaded when the interpreter exits
        _close(self._descriptor)


class FileSlice(NamedTuple):
    """A region of a log file, in bytes; it keeps the file open.

    A truncation may remove the bytes before they are sent; a sender closes the connection on a short read.
    """

    file: LogFile
    position: int
    size: int

    def read(self) -> bytes:
        return self.file.pread(self.size, self.position)
