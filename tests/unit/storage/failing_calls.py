"""Fails system calls of the storage code: single ones, or those that need a file descriptor or space on the disk."""

import errno
import io
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final, NoReturn

import pytest

from headrace.storage.files import atomic_file, log_file

CALLS: Final = (
    *((os, name) for name in ("open", "rename", "replace", "unlink", "ftruncate", "truncate", "fsync")),
    *((os, name) for name in ("pwrite", "posix_fallocate") if hasattr(os, name)),
    (io, "open"),
    (atomic_file, "fdatasync"),
    (log_file, "fdatasync"),
)


class FailingCall:
    """Fails the system call number `place` of those that follow, by default with an error that may pass."""

    def __init__(
        self,
        patch: pytest.MonkeyPatch,
        place: int,
        calls: Iterable[tuple[ModuleType, str]] = CALLS,
        *,
        code: int = errno.EMFILE,
    ) -> None:
        self.left = place
        self._code = code
        for module, name in calls:
            patch.setattr(module, name, self._counting(getattr(module, name)))

    def _counting(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                raise OSError(self._code, os.strerror(self._code))
            return call(*args, **options)

        return counted


def refuse(*_: object, **__: object) -> NoReturn:
    """Fail like a system call on a full disk."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextmanager
def without_descriptors(suffix: str = "") -> Iterator[None]:
    """Refuse to open files whose names end with `suffix`."""
    real = os.open

    def refused(path: Any, *arguments: Any, **options: Any) -> int:
        if os.fspath(path).endswith(suffix):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(path, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", refused)
        yield


@contextmanager
def full_disk(free_bytes: int) -> Iterator[None]:
    real = os.pwrite
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pwrite", lambda file, data, at: real(file, data[:free_bytes], at))
        yield
