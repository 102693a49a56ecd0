"""Record the times at which lines arrive in the topic, to measure the time until a result includes them."""

import statistics
from bisect import bisect_left
from typing import Final

_APART_S: Final = 0.05


class Arrivals:
    """A sample of at most twenty lines per second and partition. Times are those of one monotonic clock."""

    def __init__(self) -> None:
        self._offsets: dict[int, list[int]] = {}
        self._times: dict[int, list[float]] = {}

    def arrived(self, partition: int, offset: int, now: float) -> None:
        """Add a line. Offsets of a partition must increase."""
        times = self._times.setdefault(partition, [])
        if not times or now - times[-1] >= _APART_S:
            # Append the time first: a reader in another thread must find a time for every offset.
            times.append(now)
            self._offsets.setdefault(partition, []).append(offset)

    def ages(self, partition: int, start: int, end: int, now: float) -> list[float]:
        """Return the ages in seconds of the sampled lines from offset `start` up to, but not including, `end`."""
        offsets = self._offsets.get(partition, [])
        times = self._times.get(partition, [])[bisect_left(offsets, start) : bisect_left(offsets, end)]
        return [now - moment for moment in times]


def median(ages: list[float]) -> float | None:
    return statistics.median(ages) if ages else None
