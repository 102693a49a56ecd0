"""Limit how many batches run at the same time, for jobs that read tables, and decide which jobs start first.

If all batches ran at once, all would finish late. If they take turns, most finish earlier, all need less memory, and
the job that writes the tables that they read gets the processor as soon as it has a batch. Knows nothing of Spark.
"""

import threading
import time
from bisect import insort
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Final

_LONGEST_S: Final = 10.0
"""A batch that takes long, or hangs, must not stop the other jobs."""
_STAGE_S: Final = 20.0
"""Jobs that have no input, or fail, must not keep the others from starting."""
QUICK_S: Final = 2.0
"""Longest interval of a quick job."""


class Turns:
    """At most `most` batches at once, those with the earliest deadlines first.

    The deadline is the end of a job's interval, so a job that is expected to answer every second goes before one that
    runs every ten, unless that one has waited for nine seconds longer. A batch runs anyway 10 s after its deadline.

    With `reserved`, one of several turns is only for jobs with an interval of at most two seconds. Otherwise, slower
    jobs would occupy all of them on a busy machine.
    """

    def __init__(self, most: int, *, reserved: bool = False, longest_s: float = _LONGEST_S) -> None:
        self._free = most
        self._free_for_slow = max(1, most - reserved)
        self._longest_s = longest_s
        self._lock = threading.Lock()
        self._order = count()
        self._waiting: list[tuple[float, int, bool, threading.Event]] = []
        """Deadline, order of arrival, True for a slow job, and the event that begins the turn; sorted."""

    @contextmanager
    def turn(self, interval_s: float) -> Iterator[None]:
        """Wait for a turn for a job that runs every `interval_s` seconds; the turn ends with the block."""
        mine, is_slow = threading.Event(), interval_s > QUICK_S
        with self._lock:
            waiting = (time.monotonic() + interval_s, next(self._order), is_slow, mine)
            insort(self._waiting, waiting)
            self._begin_next()
        if not mine.wait(interval_s + self._longest_s):
            with self._lock:
                if not mine.is_set():
                    self._begin(waiting)
        try:
            yield
        finally:
            with self._lock:
                self._free += 1
                self._free_for_slow += is_slow
                self._begin_next()

    def _begin_next(self) -> None:
        if self._free > 0:
            first = next((item for item in self._waiting if not item[2] or self._free_for_slow > 0), None)
            if first is not None:
                self._begin(first)

    def _begin(self, waiting: tuple[float, int, bool, threading.Event]) -> None:
        _, _, is_slow, event = waiting
        self._waiting.remove(waiting)
        self._free -= 1
        self._free_for_slow -= is_slow
        event.set()


class Opening:
    """The start of a driver: the jobs of a stage wait until those of earlier stages have finished a batch.

    Java has compiled nothing yet, so each job's first batch takes seconds of CPU time. If all jobs began at once, the
    first result would come as late as the last one.
    """

    def __init__(
        self,
        stages: Sequence[Collection[str]],
        *,
        longest_s: float = _STAGE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Jobs that are in no stage start last. A stage ends after `longest_s` seconds at the latest."""
        self._stages = [set(stage) for stage in stages if stage]
        self._longest_s = longest_s
        self._clock = clock
        self._lock = threading.Condition()
        self._open = {job for stage in self._stages[:1] for job in stage}
        self._began = clock()

    @property
    def unfinished(self) -> Collection[str]:
        """The jobs of the present stage that have not finished a batch."""
        with self._lock:
            return tuple(self._stages[0]) if self._stages else ()

    def holds(self, job: str) -> bool:
        """Return True if the job must not begin another batch: it has had one in this stage, unlike another job."""
        with self._lock:
            self._end_if_long()
            return bool(self._stages) and job in self._open and job not in self._stages[0]

    def wait_for_others(self, job: str) -> None:
        """Block while the job must not begin another batch."""
        with self._lock:
            while self.holds(job):
                self._lock.wait(max(0.0, self._began + self._longest_s - self._clock()))

    def admits(self, job: str) -> bool:
        """Return True if the job may start."""
        with self._lock:
            self._end_if_long()
            return job in self._open or not self._stages

    def finished(self, job: str) -> None:
        """Record that the job has finished a batch, or has nothing to read."""
        with self._lock:
            if self._stages:
                self._stages[0].discard(job)
                if not self._stages[0]:
                    self._next()

    def _end_if_long(self) -> None:
        if self._stages and self._clock() >= self._began + self._longest_s:
            self._next()

    def _next(self) -> None:
        del self._stages[0]
        self._open |= {job for stage in self._stages[:1] for job in stage}
        self._began = self._clock()
        self._lock.notify_all()
