"""Limits for time that also hold on a slow or busy machine: known work, measured beside the test, scales them."""

import contextlib
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Final

_IMPORTS: Final = "import asyncio, decimal, email.message, http.client, logging, sqlite3, ssl, subprocess, uuid"
_LOOP_S: Final = 0.03
"""CPU seconds of `_loop` on the machine for which the tests' limits were written."""


def cpu_seconds(command: list[str]) -> float:
    """Run a command; return its CPU seconds, including those of processes that it waited for."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, capture_output=True, check=True, timeout=120)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def python_processes(cost_s: Callable[[], float], *, runs: int = 3) -> float:
    """Return what `cost_s` returns, relative to the CPU seconds of a Python process that imports common modules.

    Both are measured `runs` times in turns, and the least of each counts: CPU time grows if other processes run.
    """
    costs, processes = [], []
    for _ in range(runs):
        costs.append(cost_s())
        processes.append(cpu_seconds([sys.executable, "-c", _IMPORTS]))
    return min(costs) / min(processes)


def _loop() -> None:
    table = {}
    for number in range(100_000):
        table[number % 1000] = str(number)


def slowness() -> float:
    """Return how much CPU time a loop takes, relative to the machine for which limits were written; at least 1."""
    started = time.thread_time()
    _loop()
    return max(1.0, (time.thread_time() - started) / _LOOP_S)


def delay() -> float:
    """Return how much longer work takes, by the clock, than on an idle machine for which limits were written.

    The load of the last minute counts as well as that of this moment. At least 1.
    """
    started = time.monotonic()
    slow = slowness()
    clock = (time.monotonic() - started) / _LOOP_S
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    return max(1.0, clock, slow * load)


@contextlib.contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """Fail if this thread takes more CPU time inside `with`, on the machine for which limits were written.

    The limit grows with the time that a loop takes directly afterwards.
    """
    started = time.thread_time()
    yield
    taken = time.thread_time() - started
    # An idle machine need not run the loop.
    assert taken < seconds or taken < seconds * (slow := slowness()), f"{taken:.2f} s, more than {seconds * slow:.2f} s"
