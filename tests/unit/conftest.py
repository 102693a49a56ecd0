"""Unit tests run in one process without a network: one that starts a process or listens on a port fails."""

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
    """An audit hook. One cannot be removed, so it is switched on for each unit test."""

    watching = False
    older: frozenset[int | None] = frozenset()
    """Threads that other tests have left running, such as a broker that they share."""

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        """Fail the running test. `pytest.fail` raises no `Exception`, so code under test cannot catch it."""
        if not self.watching:
            return
        if event in _PROCESSES:
            self._refuse(f"starts a process ({event})")
        elif event == "socket.bind" and args[0].family in (socket.AF_INET, socket.AF_INET6):
            self._refuse(f"listens at {args[1]}")

    def _refuse(self, deed: str) -> None:
        if threading.get_ident() not in self.older:
            pytest.fail(f"a unit test {deed}: move it to tests/broker, tests/cli, ...")


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
