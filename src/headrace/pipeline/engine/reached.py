"""The event time up to which a log has been read. Pure.

A partition is complete up to its latest event time, except for late records. The log is complete, or settled, up to the
earliest of these times. Idle partitions do not count: those without records in the batch and in the five minutes before
its end, measured by the timestamps of the other partitions' records.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

IDLE_US: Final = 300_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """The state after a batch. Times are in microseconds since 1970; partitions are named `topic id/partition`."""

    latest: Mapping[str, int] = field(default_factory=dict)
    """The latest event time of each partition."""
    arrived: Mapping[str, int] = field(default_factory=dict)
    """The latest record timestamp of each partition."""
    settled: int | None = None
    """Partitions, except idle ones, will only have late records before this time; None if unknown."""

    def after(self, latest: Mapping[str, int], arrived: Mapping[str, int]) -> "Reached":
        """Return the state after a batch with these latest times of its partitions. `settled` never decreases."""
        all_latest, all_arrived = _later(self.latest, latest), _later(self.arrived, arrived)
        now = max(all_arrived.values(), default=0)
        # In a backlog, partitions reach different times, so only a partition without records in the batch may be idle.
        read = {*latest, *arrived}
        active = [time for at, time in all_latest.items() if at in read or now - all_arrived.get(at, now) <= IDLE_US]
        settled = [time for time in (self.settled, min(active, default=None)) if time is not None]
        return Reached(latest=all_latest, arrived=all_arrived, settled=max(settled, default=None))


def _later(before: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    return {**before, **{at: max(time, before.get(at, time)) for at, time in now.items()}}
