"""Limit how many batches of jobs on tables run at the same time. Knows nothing of Spark.

If all batches ran at once, all would finish late. In turns, most finish earlier, they need less memory, and the job
that writes their source gets the processor when it has a batch.
"""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_LONGEST_S: Final = 10.0
"""A batch that takes long, or hangs, must not stop the other jobs."""


class Turns:
    """At most `count` batches at once, in the order in which they come. A batch that has waited 10 s runs anyway."""

    def __init__(self, count: int, *, longest_s: float = _LONGEST_S) -> None:
        self._free = count
        self._longest_s = longest_s
        self._lock = threading.Lock()
        self._waiting: deque[threading.Event] = deque()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for a turn, and end it after the block."""
        mine = threading.Event()
        with self._lock:
            if self._free > 0 and not self._waiting:
                self._free -= 1
                mine.set()
            else:
                self._waiting.append(mine)
        if not mine.wait(self._longest_s):
            with self._lock:
                if not mine.is_set():
                    self._waiting.remove(mine)
                    self._free -= 1
        try:
            yield
        finally:
            with self._lock:
                self._free += 1
                if self._free > 0 and self._waiting:
                    self._free -= 1
                    self._waiting.popleft().set()
