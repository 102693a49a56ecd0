"""Test order (long tests first, so that no worker ends alone with one), broker logs of failed tests, fixtures."""

import gc
import signal
from collections.abc import Generator, Iterator
from typing import Final

import hypothesis
import pytest

from headrace.storage.files import log_file
from tests.support.broker_process import LogsSince
from tests.support.flush_disk import Disk

_REST: Final = "*"
_ORDER: Final = (
    "tests/pipeline/test_exactly_once",
    "tests/adoption",
    "tests/simulation",
    "tests/copier",
    "tests/checker",
    "tests/pipeline",
    "tests/crashes",
    "tests/parity",
    "tests/clients",
    "tests/broker",
    _REST,
    "tests/unit/wire",
    "tests/unit/storage",
    "tests/unit",
)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A background shell passes SIG_IGN on, which the processes started by tests would inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The duration of an example depends on the machine.
hypothesis.settings.register_profile("no deadline", deadline=None)
hypothesis.settings.load_profile("no deadline")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exempt the modules and tests, which live until the end, from garbage collection."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the random order within each of `_ORDER`."""
    items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    places = (place for place, prefix in enumerate(_ORDER) if item.nodeid.startswith(prefix))
    return next(places, _ORDER.index(_REST))


_logs_since: Final = pytest.StashKey[LogsSince]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[_logs_since] = LogsSince()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the lines that running brokers logged during a failed test."""
    report = yield
    if report.failed and report.when != "teardown":
        report.sections.extend(item.stash[_logs_since].of_running())
    return report


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    """The disk under every log of this test, as far as flushes are concerned; blocked flushes continue at the end."""
    disk = Disk()
    monkeypatch.setattr(log_file, "fdatasync", disk.fdatasync)
    yield disk
    disk.free.set()
