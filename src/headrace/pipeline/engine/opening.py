"""Start jobs in stages after the start of a driver. Knows nothing of Spark."""

import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Final

_LONGEST_S: Final = 20.0
"""Jobs that have no input, or fail, must not keep the others from starting."""


class Opening:
    """The start of a driver: the jobs of a stage wait until those of earlier stages have finished a batch.

    Java has compiled nothing yet, so each job's first batch takes seconds of CPU time. If all jobs began at once, the
    first result would come as late as the last one.
    """

    def __init__(
        self,
        stages: Sequence[Collection[str]],
        *,
        longest_s: float = _LONGEST_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Jobs that are in no stage start last. A stage ends after `longest_s` seconds at the latest."""
        self._stages = [set(stage) for stage in stages if stage]
        self._longest_s = longest_s
        self._clock = clock
        self._lock = threading.Lock()
        self._open = {job for stage in self._stages[:1] for job in stage}
        self._began = clock()

    @property
    def unfinished(self) -> Collection[str]:
        """The jobs of the present stage that have not finished a batch."""
        with self._lock:
            return tuple(self._stages[0]) if self._stages else ()

    def admits(self, job: str) -> bool:
        """Return True if the job may start."""
        with self._lock:
            if self._stages and self._clock() >= self._began + self._longest_s:
                self._next()
            return job in self._open or not self._stages

    def finished(self, job: str) -> None:
        """Record that the job has finished a batch, or has nothing to read."""
        with self._lock:
            if self._stages:
                self._stages[0].discard(job)
                if not self._stages[0]:
                    self._next()

    def _next(self) -> None:
        del self._stages[0]
        self._open |= {job for stage in self._stages[:1] for job in stage}
        self._began = self._clock()
