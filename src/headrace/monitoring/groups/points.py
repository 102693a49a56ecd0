"""The points of /groups/history: states of a group at evenly spaced samples, read from the file in steps."""

from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias

from headrace.monitoring.groups.progress import from_bytes
from headrace.monitoring.groups.standing import Standing
from headrace.monitoring.groups.store import HistoryStore
from headrace.slices import Steps

MAX_POINTS: Final = 10_000
"""Maximum number of points in a reply, but at least two for each partition: longer series are thinned out."""
_BEFORE_ALL: Final = -1

Point: TypeAlias = list[Any]


class Wanted(NamedTuple):
    """A part of a group's history. `topic` and `partition` are None for all."""

    group_id: str
    topic: str | None
    partition: int | None
    from_ms: int
    to_ms: int


def series_of(store: HistoryStore, wanted: Wanted) -> Steps[list[dict[str, Any]]]:
    """Return a list of points for each partition, in steps that block on the disk.

    Chooses the samples before it reads them, so that memory and time depend on the number of points returned.
    """
    topics = store.topics_of(wanted.group_id) if wanted.topic is None else [wanted.topic]
    ranges = {}
    for topic in topics:
        yield
        start, end = _range_of(store, wanted, topic)
        if start <= end:
            ranges[topic] = start, end
    expected = max(len(ranges), 1)
    while True:
        found = yield from _Reader(store, wanted, expected).read(ranges)
        if len(found) <= 2 * expected:
            break
        expected = len(found)
    most = _most_points(len(found))
    series = []
    for (topic, partition), points in sorted(found.items()):
        yield
        series.append({"topic": topic, "partition": partition, "points": _with_pace(_thin(points, most))})
    return series


def _range_of(store: HistoryStore, wanted: Wanted, topic: str) -> tuple[int, int]:
    """Return the times from which and until which the topic has points. The range is empty if it has none."""
    group_id, start, end = wanted.group_id, wanted.from_ms, wanted.to_ms
    last = store.last_change(group_id, topic, _BEFORE_ALL, end)
    while last is not None and not last.data:
        end = last.at_ms - 1
        last = store.last_change(group_id, topic, _BEFORE_ALL, end)
    before = store.last_change(group_id, topic, _BEFORE_ALL, start)
    if before is None or not before.data:
        first = store.first_change(group_id, topic, start, end)
        start = end + 1 if first is None else first.at_ms
    return start, end


def _most_points(series: int) -> int:
    return max(MAX_POINTS // max(series, 1), 2)


class _Reader:
    """Reads the points of about `expected` series."""

    def __init__(self, store: HistoryStore, wanted: Wanted, expected: int) -> None:
        self._store = store
        self._wanted = wanted
        self._most_series = 2 * expected
        self._most_points = _most_points(expected)
        self._ticks: tuple[tuple[int, int], list[int]] = ((0, -1), [])

    def read(self, ranges: dict[str, tuple[int, int]]) -> Steps[dict[tuple[str, int], list[Point]]]:
        """Return the points by topic and partition. Ends early if there are more than twice the expected series."""
        found: dict[tuple[str, int], list[Point]] = {}
        for topic, range_ in ranges.items():
            before = _BEFORE_ALL
            states: list[Standing] = []
            for tick in self._ticks_in(range_):
                yield
                change = self._store.last_change(self._wanted.group_id, topic, before, tick)
                if change is not None:
                    states = from_bytes(change.data, self._wanted.partition)
                before = tick
                for state in states:
                    found.setdefault((topic, state.partition), []).append(_point(state, tick))
                if len(found) > self._most_series:
                    return found
        return found

    def _ticks_in(self, range_: tuple[int, int]) -> list[int]:
        if self._ticks[0] != range_:  # many topics have the same
            self._ticks = range_, self._store.ticks(*range_, self._most_points)
        return self._ticks[1]


def _point(state: Standing, tick: int) -> Point:
    return [
        tick,
        state.committed if state.is_committed else None,
        state.end if state.end >= 0 else None,
        state.lag,
        state.lag_seconds(tick),
        None,
        state.position,
    ]


def _thin(points: list[Point], most: int) -> list[Point]:
    """Return at most `most` evenly spaced points, including the last one."""
    step = -(-len(points) // most)
    return points[::-1][::step][::-1]


def _with_pace(points: list[Point]) -> list[Point]:
    """Store in each point the pace since the point before it."""
    for before, point in pairwise(points):
        passed_ms = point[0] - before[0]
        if passed_ms > 0 and None not in (before[1], point[1]) and point[1] >= before[1]:
            point[5] = round((point[1] - before[1]) * 1000 / passed_ms, 3)
    return points
