"""Limit how many batches of jobs on tables run at the same time. Knows nothing of Spark.

If all batches ran at once, all would finish late. In turns, most finish earlier, they need less memory, and the job
that writes their source gets the processor when it has a batch.
"""

import heapq
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Final

_LONGEST_S: Final = 10.0
"""A batch that takes long, or hangs, must not stop the other jobs."""


class Turns:
    """At most `most` batches at once, those with the earliest deadlines first.

    The deadline is the end of a job's interval, so a job that is expected to answer every second goes before one that
    runs every ten, unless that one has waited for nine seconds longer. A batch runs anyway 10 s after its deadline.
    """

    def __init__(self, most: int, *, longest_s: float = _LONGEST_S) -> None:
        self._free = most
        self._longest_s = longest_s
        self._lock = threading.Lock()
        self._order = count()
        self._waiting: list[tuple[float, int, threading.Event]] = []
        """Deadline, order of arrival, and the event that begins the turn, as a heap."""

    @contextmanager
    def turn(self, interval_s: float) -> Iterator[None]:
        """Wait for a turn of a job that runs every `interval_s` seconds, and end it after the block."""
        mine = threading.Event()
        with self._lock:
            waiting = (time.monotonic() + interval_s, next(self._order), mine)
            heapq.heappush(self._waiting, waiting)
            self._begin_next()
        if not mine.wait(interval_s + self._longest_s):
            with self._lock:
                if not mine.is_set():
                    self._waiting.remove(waiting)
                    heapq.heapify(self._waiting)
                    self._free -= 1
        try:
            yield
        finally:
            with self._lock:
                self._free += 1
                self._begin_next()

    def _begin_next(self) -> None:
        if self._free > 0 and self._waiting:
            self._free -= 1
            heapq.heappop(self._waiting)[2].set()
