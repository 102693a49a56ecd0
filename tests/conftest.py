"""Test order (long tests first, so that no worker ends alone with one), one worker for Spark, broker logs, fixtures."""

import atexit
import faulthandler
import gc
import signal
import time
from collections.abc import Callable, Generator, Iterator
from functools import cache, partial
from typing import Any, Final

import hypothesis
import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from xdist.scheduler.loadfile import LoadFileScheduling

from headrace.storage.files import log_file
from tests.support import examples
from tests.support.broker_process import LogsSince
from tests.support.flush_disk import Disk

_REST: Final = "*"
_OWN_SPARK: Final = (
    "tests/pipeline/test_exactly_once",
    "tests/pipeline/test_standalone",
    "tests/pipeline/test_demo",
    "tests/pipeline/test_tutorial_commands",
    "tests/pipeline/test_run_command",
)
"""Files whose tests start Spark in processes of their own."""
_SHARED_SPARK: Final = "tests/pipeline"
_SHARED_BROKERS: Final = ("tests/cluster/clients", "tests/parity")
"""Directories whose tests share brokers, among them Kafka."""
_SHARED_TOOLS: Final = (
    "tests/clients/test_kafka_tools",
    "tests/clients/test_dump_log",
    "tests/clients/test_group_admin",
    "tests/broker/test_transactions",
    "tests/adoption/test_from_kraft",
)
"""Files that run many of Kafka's tools, in one JVM per worker."""
_SHARED_SCHEMAS: Final = (
    "tests/unit/wire/test_bounds",
    "tests/unit/wire/test_encoder",
    "tests/unit/wire/test_fetched",
    "tests/unit/wire/test_strict_fields",
    "tests/unit/server/test_dispatch",
    "tests/unit/broker",
)
"""Tests that load the schemas of many versions and APIs."""
_SHARE_NOTHING: Final = ("tests/simulation", "tests/crashes")
"""Directories whose tests take seconds of processor time each. They fill the cores until the end, one by one."""
_ORDER: Final = (
    # All of them are one unit of work, the longest one.
    _SHARED_SPARK,
    # Those that mostly wait come before those that compute, which fill both cores until the end.
    "tests/clients/test_every_client",
    *_OWN_SPARK,
    "tests/cli/test_endings",
    "tests/hostile",
    "tests/clients",
    "tests/parity",
    "tests/adoption",
    "tests/broker",
    "tests/checker",
    "tests/copier",
    _REST,
    "tests/simulation",
    "tests/crashes",
    # Directories whose files take a second come before those whose files take milliseconds.
    "tests/unit/wire",
    "tests/unit/pipeline",
    "tests/unit/storage",
    "tests/unit/replication",
    "tests/unit/server",
    "tests/unit",
    "tests/unit/config",
)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A background shell passes SIG_IGN on, which the processes started by tests would inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Python's last garbage collections would take half a second.
atexit.register(gc.freeze)

# The duration of an example depends on the machine. Each run takes other examples. The option --hypothesis-profile is
# applied later.
hypothesis.settings.load_profile(examples.GATE)

_HANGS_S: Final = 960.0
"""Longer than the longest test."""
_ARMS_AGAIN_S: Final = 30.0


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exempt the modules and tests, which live until the end, from garbage collection.

    Full collections, of what fixtures keep, are rare, but there is one after the last test: it finds files that are not
    closed and errors of tasks that nobody retrieved.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(*gc.get_threshold()[:2], 1000)
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the random order within each of `_ORDER`."""
    items.sort(key=lambda item: _place(item.nodeid.partition("::")[0]))


@cache
def _place(file: str) -> int:
    """Return the place of the longest prefix."""
    places = [(len(prefix), place) for place, prefix in enumerate(_ORDER) if file.startswith(prefix)]
    return max(places, default=(0, _ORDER.index(_REST)))[1]


class _Files(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """Gives each file to one worker, and files that share Spark, Kafka, its tools or schemas to the same one.

    Simulations go to any worker, test by test.

    Spark takes 20 s of processor time to start and to warm up, Kafka 6 s. All schemas take 2 s.
    """

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(_SHARED_SPARK) and not nodeid.startswith(_OWN_SPARK):
            return _SHARED_SPARK
        for directory in _SHARED_BROKERS:
            if nodeid.startswith(directory):
                return directory
        if nodeid.startswith(_SHARED_TOOLS):
            return _SHARED_TOOLS[0]
        if nodeid.startswith(_SHARED_SCHEMAS):
            return _SHARED_SCHEMAS[0]
        if nodeid.startswith(_SHARE_NOTHING):
            return nodeid
        file: str = super()._split_scope(nodeid)
        return file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _Files | None:
    return _Files(config, log) if config.getvalue("dist") == "loadfile" else None


_logs_since: Final = pytest.StashKey[LogsSince]()
_armed_at_s: Final = pytest.StashKey[float]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[_logs_since] = LogsSince()
    _end_process_if_it_hangs(item.config)


def _end_process_if_it_hangs(config: pytest.Config) -> None:
    """Print the stacks of all threads if a test hangs out of reach of exceptions (C code, clean-up), and exit.

    pytest's own option `faulthandler_timeout` starts a thread for each test, which takes 2 ms.
    """
    now = time.monotonic()
    if now - config.stash.get(_armed_at_s, -_ARMS_AGAIN_S) >= _ARMS_AGAIN_S:
        config.stash[_armed_at_s] = now
        faulthandler.dump_traceback_later(_HANGS_S, exit=True, file=config.stash[fault_handler_stderr_fd_key])


def pytest_sessionstart(session: pytest.Session) -> None:
    """Let workers send neither the beginning and end of a test nor reports of passed set-ups and tear-downs.

    Sending them takes more time than many tests do. They are sent if an option needs them.
    """
    options = session.config.option
    if not hasattr(session.config, "workerinput") or options.durations or options.xmlpath or options.verbose > 0:
        return
    for plugin in session.config.pluginmanager.get_plugins():
        if hasattr(plugin, "sendevent"):
            plugin.sendevent = partial(_send, plugin.sendevent)


def _send(send: Callable[..., None], name: str, **values: Any) -> None:
    if name in ("logstart", "logfinish"):
        return
    report = values["data"] if name == "testreport" else {}
    if not report or report["when"] == "call" or report["outcome"] != "passed" or report["sections"]:
        send(name, **values)


def pytest_sessionfinish() -> None:
    faulthandler.cancel_dump_traceback_later()


def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    if nextitem is None:
        gc.collect()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the lines that running brokers logged during a failed test.

    Nobody reads the keywords of a passed test, which a worker would send three times.
    """
    report = yield
    if report.passed:
        report.keywords = {}
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
