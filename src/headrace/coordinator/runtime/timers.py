"""Many timers behind one: a heap that a reschedule rarely touches.

Heartbeats push a member's deadline back all the time. A later deadline only changes the entry; the heap learns of it
when the old deadline comes up. Knows no clock: times are whatever unit the caller uses.
"""

import heapq
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Timers(Generic[K]):
    """Deadlines by key."""

    def __init__(self) -> None:
        self._deadlines: dict[K, tuple[float, int, float]] = {}
        """Key to its deadline, and the number and time of its item in the heap, which is never later."""
        self._heap: list[tuple[float, int, K]] = []
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._deadlines)

    def __contains__(self, key: K) -> bool:
        return key in self._deadlines

    def schedule(self, key: K, deadline: float) -> bool:
        """Set or move the deadline of `key`; whether `next_look` may be another now."""
        entry = self._deadlines.get(key)
        if entry is not None and entry[2] <= deadline:
            self._deadlines[key] = (deadline, *entry[1:])
            return False
        self._push(key, deadline)
        return True

    def cancel(self, key: K) -> None:
        self._deadlines.pop(key, None)
        if len(self._heap) > 2 * len(self._deadlines) + 64:
            self._heap = [item for item in self._heap if self._stands_for(item)]
            heapq.heapify(self._heap)

    @property
    def next_look(self) -> float | None:
        """When `expired` should be called next; None without timers."""
        return self._heap[0][0] if self._heap else None

    def expired(self, now: float) -> Iterator[K]:
        """The keys whose deadline has come, earliest first; each is forgotten as it is taken. One that is moved or
        cancelled in consequence of another does not come any more, and one that is scheduled meanwhile comes with the
        next call: a consequence that schedules its own timer again, for now or for the past, cannot go on for ever.
        """
        due = []
        while self._heap and self._heap[0][0] <= now:
            due.append(heapq.heappop(self._heap))
        for item in due:
            if not self._stands_for(item):
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

    def _stands_for(self, item: tuple[float, int, K]) -> bool:
        entry = self._deadlines.get(item[2])
        return entry is not None and entry[1] == item[1]
