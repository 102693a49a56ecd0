"""Where groups stand in the topics they read, and how fast they move: offsets in, lag, pace and forecast out.

Pure. Thousands of groups are kept in packed arrays, one slot a partition; -1 stands for what is not known.
"""

from array import array
from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple

UNKNOWN: Final = -1
_HALF_WINDOW_MS: Final = 30_000
_SHORTEST_MS: Final = 500
"""Over less time than that a rate says nothing."""
_STEADY: Final = 0.05
"""A consumer whose pace is so near to what arrives keeps up, neither gaining nor losing."""


class Trend(StrEnum):
    """Where a lag is going."""

    CAUGHT_UP = "caught up"
    CATCHING_UP = "catching up"
    KEEPING_PACE = "keeping pace"
    FALLING_BEHIND = "falling behind"
    STALLED = "stalled"
    """There is something to read, and nothing is committed."""
    UNKNOWN = "unknown"
    """It has not been watched for long enough, or the partition has no end that this broker knows."""


class Standing(NamedTuple):
    """One partition of one group; rates in records per second, None where not known."""

    partition: int
    committed: int
    start: int
    end: int
    time_ms: int
    """When the oldest record that is not read yet was made; -1 without one."""
    pace: float | None
    arrival: float | None

    @property
    def lag(self) -> int | None:
        """Records that are not read yet."""
        return None if self.end < 0 else max(self.end - self.committed, 0)

    def lag_seconds(self, now_ms: int) -> float | None:
        """Age of the oldest record that is not read yet; 0 where all are."""
        if self.lag is None:
            return None
        if self.lag == 0:
            return 0.0
        return None if self.time_ms < 0 else max(now_ms - self.time_ms, 0) / 1000

    @property
    def trend(self) -> Trend:
        """Where the lag is going at the present pace."""
        if self.lag is None:
            return Trend.UNKNOWN
        if self.lag == 0:
            return Trend.CAUGHT_UP
        if self.pace is None or self.arrival is None:
            return Trend.UNKNOWN
        if self.pace == 0:
            return Trend.STALLED
        if abs(self.pace - self.arrival) <= _STEADY * self.arrival:
            return Trend.KEEPING_PACE
        return Trend.CATCHING_UP if self.pace > self.arrival else Trend.FALLING_BEHIND

    @property
    def catches_up_in(self) -> float | None:
        """Seconds until the lag is gone, if both rates stay as they are; None where it never is."""
        if self.lag == 0:
            return 0.0
        if self.trend is not Trend.CATCHING_UP:
            return None
        assert self.lag is not None
        assert self.pace is not None
        assert self.arrival is not None
        return self.lag / (self.pace - self.arrival)


class Rates:
    """How fast the numbers of a list grow, over the last half to whole minute."""

    __slots__ = ("_old", "_old_at", "_young", "_young_at")

    def __init__(self, values: "array[int]", now_ms: int) -> None:
        self._old = self._young = values
        self._old_at = self._young_at = now_ms

    def note(self, values: "array[int]", now_ms: int) -> None:
        """The values as of now, in a list that nobody changes any more."""
        if now_ms - self._young_at >= _HALF_WINDOW_MS:
            self._old, self._old_at = self._young, self._young_at
            self._young, self._young_at = values, now_ms

    def of(self, place: int, value: int, now_ms: int) -> float | None:
        """Per second; None where it is not known: since when, or because the value went back."""
        for values, at_ms in ((self._old, self._old_at), (self._young, self._young_at)):
            if place < len(values) and 0 <= values[place] <= value and now_ms - at_ms >= _SHORTEST_MS:
                return (value - values[place]) * 1000 / (now_ms - at_ms)
        return None


class TopicProgress:
    """Where the partitions of a topic begin and end."""

    __slots__ = ("ends", "rates", "starts")

    def __init__(self, starts: Sequence[int], ends: Sequence[int], now_ms: int) -> None:
        self.starts, self.ends = array("q", starts), array("q", ends)
        self.rates = Rates(self.ends, now_ms)

    def update(self, starts: Sequence[int], ends: Sequence[int], now_ms: int) -> None:
        self.starts, self.ends = array("q", starts), array("q", ends)
        self.rates.note(self.ends, now_ms)


class GroupProgress:
    """What one group has committed in one topic, and how old the next record of each partition is."""

    __slots__ = ("_sought", "committed", "rates", "times", "written")

    def __init__(self, committed: "array[int]", now_ms: int) -> None:
        self.committed = committed
        self.rates = Rates(committed, now_ms)
        self.times = array("q", [UNKNOWN]) * len(committed)
        self._sought = self.times[:]
        """The offset that each of `times` is of."""
        self.written: int | None = None
        """Hash of what was last written of it."""

    def update(self, committed: "array[int]", topic: TopicProgress, now_ms: int) -> list[tuple[int, int]]:
        """Take in what is committed now; `(partition, offset)` of the records whose time has to be looked up."""
        grown = len(committed) - len(self.times)
        if grown > 0:
            self.times.extend([UNKNOWN] * grown)
            self._sought.extend([UNKNOWN] * grown)
        self.committed = committed
        self.rates.note(committed, now_ms)
        wanted = []
        starts, ends, sought = topic.starts, topic.ends, self._sought
        for partition, offset in enumerate(committed):
            if offset < 0 or partition >= len(ends) or offset >= ends[partition]:
                sought[partition] = self.times[partition] = UNKNOWN
                continue
            offset = max(offset, starts[partition])
            if offset != sought[partition] or self.times[partition] == UNKNOWN:
                sought[partition] = offset
                self.times[partition] = UNKNOWN
                wanted.append((partition, offset))
        return wanted

    def found(self, partition: int, offset: int, time_ms: int) -> None:
        """The time of the record at `offset`, unless it is no longer the one that is asked for."""
        if partition < len(self._sought) and self._sought[partition] == offset:
            self.times[partition] = time_ms

    def standings(self, topic: TopicProgress, now_ms: int) -> list[Standing]:
        """Of every partition that something is committed of."""
        out = []
        for partition, offset in enumerate(self.committed):
            if offset < 0:
                continue
            known = partition < len(topic.ends)
            end = topic.ends[partition] if known else UNKNOWN
            out.append(
                Standing(
                    partition,
                    offset,
                    topic.starts[partition] if known else UNKNOWN,
                    end,
                    self.times[partition],
                    self.rates.of(partition, offset, now_ms),
                    topic.rates.of(partition, end, now_ms),
                )
            )
        return out

    def as_bytes(self, topic: TopicProgress) -> bytes:
        """What is written of it: committed offsets, ends, and times of the oldest unread records."""
        count = len(self.committed)
        ends = topic.ends[:count]
        ends.extend([UNKNOWN] * (count - len(ends)))
        return (self.committed + ends + self.times[:count]).tobytes()


def from_bytes(data: bytes) -> list[tuple[int, int, int, int]]:
    """`(partition, committed, end, time in ms)` as `as_bytes` wrote them."""
    values = array("q")
    values.frombytes(data)
    count = len(values) // 3
    return [
        (partition, values[partition], values[count + partition], values[2 * count + partition])
        for partition in range(count)
        if values[partition] >= 0
    ]
