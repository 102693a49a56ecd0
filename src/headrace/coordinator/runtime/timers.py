"""Many timers driven by one, in a heap that rescheduling rarely changes.

Heartbeats keep postponing a member's deadline. A later deadline changes only the entry; the heap is updated when the
old deadline is reached. Times are in the caller's unit.
"""

import heapq
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Timers(Generic[K]):
    """Deadlines by key."""

    def __init__(self) -> None:
        self._deadlines: dict[K, tuple[float, int, float]] = {}
        """By key: the deadline, and the number and time of the heap item. That time is never after the deadline."""
        self._heap: list[tuple[float, int, K]] = []
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._deadlines)

    def __contains__(self, key: K) -> bool:
        return key in self._deadlines

    def schedule(self, key: K, deadline: float) -> bool:
        """Set or move the deadline of `key`. Return True if `next_deadline` may have changed."""
        entry = self._deadlines.get(key)
        if entry is not None and entry[2] <= deadline:
            self._deadlines[key] = (deadline, *entry[1:])
            return False
        self._push(key, deadline)
        return True

    def cancel(self, key: K) -> None:
        self._deadlines.pop(key, None)
        if len(self._heap) > 2 * len(self._deadlines) + 64:
            self._heap = [item for item in self._heap if self._is_current(item)]
            heapq.heapify(self._heap)

    @property
    def next_deadline(self) -> float | None:
        """The next time to call `expired`; None without timers."""
        return self._heap[0][0] if self._heap else None

    def expired(self, now: float) -> Iterator[K]:
        """Yield and remove the keys whose deadlines have passed, in the order of their first deadlines. The caller may
        move or cancel timers meanwhile, which are then skipped. A timer scheduled meanwhile expires with the next call
        at the earliest, so that a timer that reschedules itself without a delay does not cause an endless loop.
        """
        due = []
        while self._heap and self._heap[0][0] <= now:
            due.append(heapq.heappop(self._heap))
        for item in due:
            if not self._is_current(item):
                continue
            key = item[2]
            deadline = self._deadlines[key][0]
            if deadline > now:
                self._push(key, deadline)
            else:
                del self._deadlines[key]
                yield key

    def _push(self, key: K, deadline: float) -> None:
        self._sequence += 1
        self._deadlines[key] = (deadline, self._sequence, deadline)
        heapq.heappush(self._heap, (deadline, self._sequence, key))

    def _is_current(self, item: tuple[float, int, K]) -> bool:
        entry = self._deadlines.get(item[2])
        return entry is not None and entry[1] == item[1]
