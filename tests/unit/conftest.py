"""Unit tests that start a process or listen on a port fail. They do not wait for the disk."""

import logging
import os
import socket
import sys
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest

from headrace.storage.files import atomic_file, log_file

_HERE: Final = "tests/unit/"
_MEMORY: Final = Path("/dev/shm")
_PROCESSES: Final = frozenset(
    {"subprocess.Popen", "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn"}
)


class _Guard:
    """An audit hook. Python cannot remove it, so it is switched on for the duration of a unit test."""

    watching = False
    others: set[threading.Thread]
    """Threads of other tests that still run, such as a shared broker, and the threads that those start."""

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        """Fail the running test. Code under test cannot catch this: `pytest.fail` raises a BaseException."""
        if not self.watching:
            return
        if event in _PROCESSES:
            self._refuse(f"starts a process ({event})")
        elif event == "socket.bind" and args[0].family in (socket.AF_INET, socket.AF_INET6):
            self._refuse(f"listens at {args[1]}")

    def _refuse(self, action: str) -> None:
        if not self.is_of_another_test():
            pytest.fail(f"a unit test {action}: move it to tests/broker, tests/cli, ...")

    def is_of_another_test(self) -> bool:
        return threading.current_thread() in self.others


_guard: Final = _Guard()
sys.addaudithook(_guard)
_start_thread: Final = threading.Thread.start


def _start(thread: threading.Thread) -> None:
    if _guard.is_of_another_test():
        _guard.others.add(thread)
    _start_thread(thread)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Watch fixtures too. The hook is called for the tests of all directories."""
    _guard.others = {*threading.enumerate()} - {threading.current_thread()}
    if not item.nodeid.startswith(_HERE):
        return (yield)
    _guard.watching = True
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(threading.Thread, "start", _start)
            # No unit test loses power: tests/crashes checks what is flushed when. Closed descriptors are still refused.
            for module, name in ((os, "fsync"), (atomic_file, "fdatasync"), (log_file, "fdatasync")):
                patch.setattr(module, name, os.fstat)
            return (yield)
    finally:
        _guard.watching = False


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """The log lines of this test, without those of a broker that other tests share."""

    def is_of_this_test(_: logging.LogRecord) -> bool:
        return not _guard.is_of_another_test()

    caplog.handler.addFilter(is_of_this_test)
    yield caplog
    caplog.handler.removeFilter(is_of_this_test)


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory in memory, if there is one: making and removing thousands on a disk takes seconds."""
    if not _MEMORY.is_dir():
        yield tmp_path_factory.mktemp("unit")
        return
    with TemporaryDirectory(prefix="headrace-unit-", dir=_MEMORY) as directory:
        yield Path(directory)
