"""Progress of a group in one partition, and totals over several: lag, trend and forecast. Pure.

Lag in partitions without a committed offset counts from the offset where the group would start.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

UNKNOWN: Final = -1
_STEADY: Final = 0.05
"""Largest difference between pace and arrival, relative to arrival, at which a consumer keeps pace."""


class Trend(StrEnum):
    """How a lag changes over time."""

    CAUGHT_UP = "caught up"
    CATCHING_UP = "catching up"
    KEEPING_PACE = "keeping pace"
    FALLING_BEHIND = "falling behind"
    STALLED = "stalled"
    """Some records are unread, but the group commits nothing."""
    UNKNOWN = "unknown"
    """A rate or the end of the partition is unknown."""


class Standing(NamedTuple):
    """A group's progress in one partition.

    `pace` (of commits) and `arrival` are in offsets per second; None if unknown.
    """

    partition: int
    committed: int
    """-1 if the group has committed nothing."""
    start: int
    end: int
    time_ms: int
    """Timestamp of the oldest unread record; -1 if unknown."""
    pace: float | None
    arrival: float | None
    assumed: int = UNKNOWN
    """The offset where the group would start if it has committed nothing; otherwise -1."""
    markers: int = 0
    """Transaction markers between the position and the end: offsets without a record."""

    @property
    def is_committed(self) -> bool:
        return self.committed >= 0

    @property
    def position(self) -> int:
        """The first unread offset."""
        return self.committed if self.committed >= 0 else self.assumed

    @property
    def lag(self) -> int | None:
        """Number of unread records; None if the end of the partition is unknown."""
        return None if self.end < 0 else max(self.end - self.position - self.markers, 0)

    def lag_seconds(self, now_ms: int) -> float | None:
        """Return the age (s) of the oldest unread record: 0 if all are read, None if lag or timestamp is unknown."""
        if self.lag is None:
            return None
        if self.lag == 0:
            return 0.0
        return None if self.time_ms < 0 else max(now_ms - self.time_ms, 0) / 1000

    @property
    def trend(self) -> Trend:
        """How the lag changes at the current rates."""
        if self.lag is None:
            return Trend.UNKNOWN
        if self.lag == 0:
            return Trend.CAUGHT_UP
        return _trend(UNKNOWN if self.pace is None else self.pace, UNKNOWN if self.arrival is None else self.arrival)

    @property
    def catches_up_in(self) -> float | None:
        """Seconds until the lag is 0 at the current rates; None if it does not shrink."""
        if self.lag == 0:
            return 0.0
        if self.trend is not Trend.CATCHING_UP:
            return None
        assert self.lag is not None
        assert self.pace is not None
        assert self.arrival is not None
        return self.lag / (self.pace - self.arrival)


class Total(NamedTuple):
    """Totals over partitions of one or all topics; `oldest_ms`, `trend` and `catches_up_in` are the worst of them."""

    committed: int = 0
    lag: int | None = None
    max_lag: int | None = None
    oldest_ms: int = UNKNOWN
    """Timestamp of the oldest unread record."""
    is_dated: bool = True
    """True if the timestamp of the oldest unread record is known in every partition."""
    pace: float = 0.0
    arrival: float = 0.0
    trend: Trend = Trend.UNKNOWN
    catches_up_in: float | None = None
    not_committed: int = 0
    """Partitions without a committed offset."""
    unmeasured: int = 0
    """Partitions whose end is unknown, because this broker has no in-sync replica of them. The lag excludes them."""

    def lag_seconds(self, now_ms: int) -> float | None:
        """Return the age (s) of the oldest unread record: 0 if all are read, None if unknown."""
        if self.lag is None or not self.is_dated:
            return None
        return 0.0 if self.oldest_ms < 0 else max(now_ms - self.oldest_ms, 0) / 1000


def _trend(pace: float, arrival: float) -> Trend:
    """Return the trend of a partition with lag; -1 is an unknown rate."""
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


Row: TypeAlias = tuple[int, int, int, int, float, float]
"""One partition: committed offset, position, end, time of the next record, pace and arrival; -1 means unknown.

If the position is -1, the group does not read the partition."""


def total_of(standings: Iterable[Standing]) -> Total:
    return summed(
        (
            standing.committed,
            standing.position,
            standing.end - standing.markers,
            standing.time_ms,
            UNKNOWN if standing.pace is None else standing.pace,
            UNKNOWN if standing.arrival is None else standing.arrival,
        )
        for standing in standings
    )


def summed(rows: Iterable[Row]) -> Total:
    """Total several partitions, in one loop: 5,000 groups have 100,000 rows per sample."""
    committed = lag = max_lag = read = not_committed = unmeasured = 0
    paces = arrivals = waits = 0.0
    worst = _RANKS[Trend.CAUGHT_UP]
    knows_lag = False
    is_dated = catches_up = True
    oldest = UNKNOWN
    for offset, position, end, time_ms, pace, arrival in rows:
        if position < 0:
            continue
        read += 1
        if offset < 0:
            not_committed += 1
        else:
            committed += offset
        if pace > 0:
            paces += pace
        if arrival > 0:
            arrivals += arrival
        if end < 0:
            unmeasured += 1
            catches_up = False
            worst = min(worst, _RANKS[Trend.UNKNOWN])
            continue
        knows_lag = True
        behind = end - position
        if behind <= 0:
            continue
        lag += behind
        max_lag = max(max_lag, behind)
        if time_ms < 0:
            is_dated = False
        elif oldest < 0 or time_ms < oldest:
            oldest = time_ms
        rank = _RANKS[_trend(pace, arrival)]
        worst = min(worst, rank)
        if rank == _CATCHING_UP:
            waits = max(waits, behind / (pace - arrival))
        else:
            catches_up = False
    if not read:
        return Total()
    return Total(
        committed,
        lag if knows_lag else None,
        max_lag if knows_lag else None,
        int(oldest),
        is_dated,
        paces,
        arrivals,
        _WORST_FIRST[worst],
        waits if catches_up else None,
        not_committed,
        unmeasured,
    )


def combined(totals: Sequence[Total]) -> Total:
    if len(totals) == 1:
        return totals[0]
    lags = [total.lag for total in totals if total.lag is not None]
    trends = {total.trend for total in totals}
    waits = [total.catches_up_in for total in totals]
    known = [wait for wait in waits if wait is not None]
    return Total(
        sum(total.committed for total in totals),
        sum(lags) if lags else None,
        max((total.max_lag for total in totals if total.max_lag is not None), default=None),
        min((total.oldest_ms for total in totals if total.oldest_ms >= 0), default=UNKNOWN),
        all(total.is_dated for total in totals),
        sum(total.pace for total in totals),
        sum(total.arrival for total in totals),
        next((item for item in _WORST_FIRST if item in trends), Trend.UNKNOWN),
        max(known) if known and len(known) == len(waits) else None,
        sum(total.not_committed for total in totals),
        sum(total.unmeasured for total in totals),
    )
