"""Start quick jobs before the others. Knows nothing of Spark."""

import time
from collections.abc import Callable, Iterable
from typing import Final

_LONGEST_S: Final = 20.0
"""A quick job that has no input, or fails, must not keep the others from starting."""


class Opening:
    """The start of a driver: until each quick job has finished a batch, the other jobs wait.

    Java has compiled nothing yet, so each job's first batch takes seconds of CPU time. If all jobs began at once, the
    first result would come as late as the last one.
    """

    def __init__(
        self, quick: Iterable[str], *, longest_s: float = _LONGEST_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`quick` are the jobs that start at once. The others start after `longest_s` seconds at the latest."""
        self._quick = frozenset(quick)
        self._unfinished = set(self._quick)
        self._clock = clock
        self._ends_at = clock() + longest_s

    def admits(self, job: str) -> bool:
        """Return True if the job may start."""
        return job in self._quick or not self._unfinished or self._clock() >= self._ends_at

    def finished(self, job: str) -> None:
        """Record that the job has finished a batch."""
        self._unfinished.discard(job)
