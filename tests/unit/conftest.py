"""Unit tests that start a process or listen on a port fail."""

import socket
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

import pytest

_HERE: Final = Path(__file__).parent
_PROCESSES: Final = frozenset(
    {"subprocess.Popen", "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn"}
)


class _Guard:
    """An audit hook. Python cannot remove it, so it is switched on for the duration of a unit test."""

    watching = False
    older: frozenset[int | None] = frozenset()
    """Threads of other tests that still run, such as a shared broker."""

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        """Fail the running test. Code under test cannot catch this: `pytest.fail` raises a BaseException."""
        if not self.watching:
            return
        if event in _PROCESSES:
            self._refuse(f"starts a process ({event})")
        elif event == "socket.bind" and args[0].family in (socket.AF_INET, socket.AF_INET6):
            self._refuse(f"listens at {args[1]}")

    def _refuse(self, action: str) -> None:
        if threading.get_ident() not in self.older:
            pytest.fail(f"a unit test {action}: move it to tests/broker, tests/cli, ...")


_guard: Final = _Guard()
sys.addaudithook(_guard)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Watch fixtures too. The hook is called for the tests of all directories."""
    _guard.older = frozenset(thread.ident for thread in threading.enumerate()) - {threading.get_ident()}
    _guard.watching = _HERE in item.path.parents
    try:
        return (yield)
    finally:
        _guard.watching = False
