"""Limit how many batches run at the same time, for jobs that read tables, and decide which jobs start first.

If all batches ran at once, all would finish late. If they take turns, most finish earlier, all need less memory, and
the job that writes their source tables gets the CPU as soon as it has a batch. Does not import Spark.
"""

import threading
import time
from bisect import insort
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Final

_LONGEST_S: Final = 10.0
"""Maximum delay of a batch after its deadline: a batch that hangs must not stop the other jobs."""
_STAGE_S: Final = 20.0
"""Maximum duration of a stage: jobs without input, or that fail, must not keep others from starting."""
QUICK_S: Final = 2.0
"""Maximum interval of a quick job."""


class Turns:
    """Limits the batches that run at once to `most`. Those with the earliest deadlines go first.

    The deadline is the end of a job's interval. So a job that runs every second goes before one that runs every ten
    seconds, unless the latter has waited nine seconds longer. A batch starts at the latest 10 s after its deadline.

    With `reserved`, one of several turns is only for jobs with an interval of at most two seconds. Otherwise, slower
    jobs would occupy all turns on a busy machine.
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

    Before Java has compiled its code, each job's first batch takes seconds of CPU time. If all jobs started at once,
    the first result would be as late as the last one.
    """

    def __init__(
        self,
        stages: Sequence[Collection[str]],
        *,
        longest_s: float = _STAGE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Jobs that are in no stage start last. A stage lasts at most `longest_s` seconds."""
        self._stages = [set(stage) for stage in stages if stage]
        self._longest_s = longest_s
        self._clock = clock
        self._lock = threading.Condition()
        self._open = {job for stage in self._stages[:1] for job in stage}
        self._began = clock()

    @property
    def unfinished(self) -> Collection[str]:
        """The jobs of the current stage that have not finished a batch."""
        with self._lock:
            return tuple(self._stages[0]) if self._stages else ()

    def holds(self, job: str) -> bool:
        """Return True if the job has finished a batch, and must now wait for other jobs of the current stage."""
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
