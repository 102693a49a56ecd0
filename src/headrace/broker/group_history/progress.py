"""Where groups stand in the topics they read, and how fast they move: offsets in, lag, pace and forecast out.

Pure. Thousands of groups are kept in packed arrays, one slot a partition; -1 stands for what is not known.
"""

from array import array
from collections.abc import Sequence
from enum import StrEnum
from itertools import zip_longest
from typing import Final, NamedTuple

UNKNOWN: Final = -1
_PARTITION_BYTES: Final = 3 * 8
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
        return _trend(UNKNOWN if self.pace is None else self.pace, UNKNOWN if self.arrival is None else self.arrival)

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


class Total(NamedTuple):
    """All partitions of one topic that a group reads, or of all topics: as far behind, and as late, as the worst."""

    committed: int = 0
    lag: int | None = None
    max_lag: int | None = None
    oldest_ms: int = UNKNOWN
    """When the oldest record that is not read yet was made."""
    is_dated: bool = True
    """Whether that is known."""
    pace: float = 0.0
    arrival: float = 0.0
    trend: Trend = Trend.UNKNOWN
    catches_up_in: float | None = None

    def lag_seconds(self, now_ms: int) -> float | None:
        """As of one partition."""
        if self.lag is None or not self.is_dated:
            return None
        return 0.0 if self.oldest_ms < 0 else max(now_ms - self.oldest_ms, 0) / 1000


def _trend(pace: float, arrival: float) -> Trend:
    """Of a partition that is behind; -1 for a rate that is not known."""
    if pace < 0 or arrival < 0:
        return Trend.UNKNOWN
    if pace == 0:
        return Trend.STALLED
    if abs(pace - arrival) <= _STEADY * arrival:
        return Trend.KEEPING_PACE
    return Trend.CATCHING_UP if pace > arrival else Trend.FALLING_BEHIND


_WORST_FIRST: Final = (
    Trend.STALLED,
    Trend.FALLING_BEHIND,
    Trend.KEEPING_PACE,
    Trend.CATCHING_UP,
    Trend.UNKNOWN,
    Trend.CAUGHT_UP,
)
_RANKS: Final = {trend: rank for rank, trend in enumerate(_WORST_FIRST)}
_CATCHING_UP: Final = _RANKS[Trend.CATCHING_UP]


def total_of(standings: Sequence[Standing]) -> Total:
    """Partitions taken together."""
    return combined(
        [
            Total(
                each.committed,
                each.lag,
                each.lag,
                each.time_ms,
                not each.lag or each.time_ms >= 0,
                each.pace or 0.0,
                each.arrival or 0.0,
                each.trend,
                each.catches_up_in,
            )
            for each in standings
        ]
    )


def combined(totals: Sequence[Total]) -> Total:
    """Several taken together."""
    if len(totals) == 1:
        return totals[0]
    lags = [each.lag for each in totals if each.lag is not None]
    trends = {each.trend for each in totals}
    waits = [each.catches_up_in for each in totals]
    known = [wait for wait in waits if wait is not None]
    return Total(
        sum(each.committed for each in totals),
        sum(lags) if lags else None,
        max((each.max_lag for each in totals if each.max_lag is not None), default=None),
        min((each.oldest_ms for each in totals if each.oldest_ms >= 0), default=UNKNOWN),
        all(each.is_dated for each in totals),
        sum(each.pace for each in totals),
        sum(each.arrival for each in totals),
        next((each for each in _WORST_FIRST if each in trends), Trend.UNKNOWN),
        max(known) if known and len(known) == len(waits) else None,
    )


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

    def all(self, values: "array[int]", now_ms: int) -> list[float]:
        """Of each value; -1 where it is not known."""
        passed = now_ms - self._old_at
        if passed < _SHORTEST_MS or len(self._old) < len(values):
            return [self._or_unknown(place, value, now_ms) for place, value in enumerate(values)]
        per_ms = 1000 / passed
        return [
            (value - before) * per_ms if 0 <= before <= value else self._or_unknown(place, value, now_ms)
            for place, (value, before) in enumerate(zip(values, self._old, strict=False))
        ]

    def _or_unknown(self, place: int, value: int, now_ms: int) -> float:
        rate = self.of(place, value, now_ms)
        return UNKNOWN if rate is None else rate


class TopicProgress:
    """Where the partitions of a topic begin and end; `has_moved` since the time before."""

    __slots__ = ("ends", "has_moved", "rates", "starts")

    def __init__(self, starts: Sequence[int], ends: Sequence[int], now_ms: int) -> None:
        self.starts, self.ends = array("q", starts), array("q", ends)
        self.rates = Rates(self.ends, now_ms)
        self.has_moved = True

    def update(self, starts: Sequence[int], ends: Sequence[int], now_ms: int) -> None:
        before = self.starts, self.ends
        self.starts, self.ends = array("q", starts), array("q", ends)
        self.has_moved = before != (self.starts, self.ends)
        self.rates.note(self.ends, now_ms)


class GroupProgress:
    """What one group has committed in one topic, and how old the next record of each partition is."""

    __slots__ = ("_sought", "committed", "has_moved", "rates", "seen", "times", "total", "written")

    def __init__(self, committed: "array[int]", now_ms: int) -> None:
        self.committed = committed
        self.rates = Rates(committed, now_ms)
        self.times = array("q", [UNKNOWN]) * len(committed)
        self._sought = self.times[:]
        """The offset that each of `times` is of."""
        self.written: int | None = None
        """Hash of what was last written of it."""
        self.seen: list[object] = []
        """What was committed when it was last looked at."""
        self.has_moved = True
        """Whether anything is not as it was when it was last written."""
        self.total = Total()

    def update(self, committed: "array[int]", topic: TopicProgress) -> list[tuple[int, int]]:
        """Take in what is committed now; `(partition, offset)` of the records whose time has to be looked up."""
        grown = len(committed) - len(self.times)
        if grown > 0:
            self.times.extend([UNKNOWN] * grown)
            self._sought.extend([UNKNOWN] * grown)
        self.committed = committed
        self.has_moved = True
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
            self.has_moved = True

    @property
    def is_dated(self) -> bool:
        """Whether the time of every record that was asked for is known."""
        return all(map(_is_known, self._sought, self.times))

    def sum_up(self, topic: TopicProgress, now_ms: int) -> None:
        """Bring `total` up to date: what `total_of` its standings would be, without making them."""
        paces, arrivals = self.rates.all(self.committed, now_ms), topic.rates.all(topic.ends, now_ms)
        lag = max_lag = 0
        waits = 0.0
        worst = _RANKS[Trend.CAUGHT_UP]
        has_end = is_dated = catches_up = True
        oldest = None
        for offset, end, time_ms, pace, arrival in zip_longest(
            self.committed, topic.ends, self.times, paces, arrivals, fillvalue=UNKNOWN
        ):
            if offset < 0 or offset >= end >= 0:
                continue
            if end < 0:
                has_end = catches_up = False
                worst = min(worst, _RANKS[Trend.UNKNOWN])
                continue
            behind = end - offset
            lag += behind
            max_lag = max(max_lag, behind)
            if time_ms < 0:
                is_dated = False
            elif oldest is None or time_ms < oldest:
                oldest = time_ms
            rank = _RANKS[_trend(pace, arrival)]
            worst = min(worst, rank)
            if rank == _CATCHING_UP:
                waits = max(waits, behind / (pace - arrival))
            else:
                catches_up = False
        knows_lag = has_end or any(end >= 0 for end in topic.ends)
        self.total = Total(
            sum(offset for offset in self.committed if offset >= 0),
            lag if knows_lag else None,
            max_lag if knows_lag else None,
            UNKNOWN if oldest is None else int(oldest),
            is_dated,
            sum(pace for pace in paces if pace >= 0),
            sum(rate for offset, rate in zip(self.committed, arrivals, strict=False) if offset >= 0 and rate >= 0),
            _WORST_FIRST[worst],
            waits if catches_up else None,
        )

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


def _is_known(sought: int, time_ms: int) -> bool:
    return sought < 0 or time_ms >= 0


def from_bytes(data: bytes) -> list[tuple[int, int, int, int]]:
    """`(partition, committed, end, time in ms)` as `as_bytes` wrote them; none where a disk has shortened it."""
    if len(data) % _PARTITION_BYTES:
        return []
    values = array("q")
    values.frombytes(data)
    count = len(values) // 3
    return [
        (partition, values[partition], values[count + partition], values[2 * count + partition])
        for partition in range(count)
        if values[partition] >= 0
    ]
