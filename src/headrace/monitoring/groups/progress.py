"""Progress of groups: from committed offsets to lag, rates and forecasts.

Pure. To save memory, values are in packed arrays with one element per partition; -1 means unknown.
"""

from array import array
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Final, NamedTuple, cast

from headrace.monitoring.groups.standing import UNKNOWN, Row, Standing, Total, summed
from headrace.storage.log.producers.marker_counts import MarkerCounts

_ASSUMED: Final = -2
"""In the file, -2 means position 0 without a committed offset, -3 means position 1, and so on."""
_PARTITION_BYTES: Final = 3 * 8
_HALF_WINDOW_MS: Final = 30_000
_SHORTEST_MS: Final = 500
"""Minimum time for a meaningful rate."""


class Rates:
    """Growth rates of the numbers in a list, over the last 30 to 60 seconds; at first, over a shorter time."""

    __slots__ = ("_old", "_old_at", "_young", "_young_at")

    def __init__(self, values: "array[int]", now_ms: int) -> None:
        self._old = self._young = values
        self._old_at = self._young_at = now_ms

    def note(self, values: "array[int]", now_ms: int) -> None:
        """Record the current values; `values` must not change afterwards."""
        if now_ms - self._young_at >= _HALF_WINDOW_MS:
            self._old, self._old_at = self._young, self._young_at
            self._young, self._young_at = values, now_ms

    def of(self, place: int, value: int, now_ms: int) -> float | None:
        """Return the growth per second of the number at `place`; None if it is unknown or has decreased."""
        for values, at_ms in ((self._old, self._old_at), (self._young, self._young_at)):
            if place < len(values) and 0 <= values[place] <= value and now_ms - at_ms >= _SHORTEST_MS:
                # Rounded as in `all`, so that a partition has the same trend in both.
                return (value - values[place]) * (1000 / (now_ms - at_ms))
        return None

    def was_unknown(self, place: int, now_ms: int) -> bool:
        """Return True if the value was unknown at least `_SHORTEST_MS` ago."""
        return any(
            place < len(values) and values[place] < 0 and now_ms - at_ms >= _SHORTEST_MS
            for values, at_ms in ((self._old, self._old_at), (self._young, self._young_at))
        )

    def all(self, values: "array[int]", now_ms: int) -> list[float]:
        """Return all rates; -1 for unknown."""
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
    """Start and end offsets of a topic's partitions. `version` changes with the offsets and the known markers.

    A partition ends at its last stable offset, because records of open transactions are not readable yet.
    """

    __slots__ = ("_revisions", "ends", "markers", "rates", "starts", "version")

    def __init__(
        self, starts: Sequence[int], ends: Sequence[int], now_ms: int, markers: Sequence[MarkerCounts | None] = ()
    ) -> None:
        self.starts, self.ends = array("q", starts), array("q", ends)
        self.markers = markers
        """None for a partition that this broker does not lead."""
        self._revisions = self._present_revisions()
        self.rates = Rates(self.ends, now_ms)
        self.version = object()

    def update(
        self, starts: Sequence[int], ends: Sequence[int], now_ms: int, markers: Sequence[MarkerCounts | None] = ()
    ) -> None:
        before = self.starts, self.ends, self._revisions
        self.starts, self.ends = array("q", starts), array("q", ends)
        self.markers = markers
        self._revisions = self._present_revisions()
        if before != (self.starts, self.ends, self._revisions):
            self.version = object()
        self.rates.note(self.ends, now_ms)

    def markers_after(self, positions: "array[int]") -> "array[int] | None":
        """Return the number of transaction markers after each position, or None if the topic has none."""
        if not any(self.markers):
            return None
        found = array("q", bytes(8 * max(len(positions), len(self.ends))))
        for partition, (offset, end, markers) in enumerate(zip(positions, self.ends, self.markers, strict=False)):
            if markers and 0 <= offset < end:
                found[partition] = markers.between(max(offset, self.starts[partition]), end)
        return found

    def _present_revisions(self) -> list[int]:
        return [0 if marker is None else marker.revision for marker in self.markers]


class Arrays(NamedTuple):
    """A group's values for every partition of a topic: committed offset, first unread offset, end minus the number of
    unread transaction markers, and time of the next record (ms); -1 for unknown values.
    """

    group_id: str
    topic: str
    committed: "array[int]"
    positions: "array[int]"
    ends: "array[int]"
    times: "array[int]"


class GroupProgress:
    """Committed offsets of one group in one topic, and the times of the oldest unread records."""

    __slots__ = (
        "_time_offsets",
        "committed",
        "has_moved",
        "is_partly_committed",
        "markers",
        "positions",
        "rates",
        "read",
        "seen",
        "times",
        "topic_version",
        "total",
        "written",
    )

    def __init__(self, committed: "array[int]", now_ms: int) -> None:
        self.committed = self.positions = committed
        self.is_partly_committed = False
        """True if some partitions that the group reads have no committed offset."""
        self.markers: array[int] | None = None
        """Transaction markers between every position and the end; None if there are none."""
        self.rates = Rates(committed, now_ms)
        self.times = array("q", [UNKNOWN]) * len(committed)
        self._time_offsets = self.times[:]
        """The offsets of the records whose times are in `times`."""
        self.written: int | None = None
        """Hash of the data written last."""
        self.seen: list[object] = []
        """The committed offsets at the last update."""
        self.read: object = None
        """The partitions that members read, at the last update."""
        self.topic_version: object = None
        """Version of the topic's offsets, at the last update."""
        self.has_moved = True
        """True if it has changed since the last write."""
        self.total = Total()

    def update(
        self, committed: "array[int]", topic: TopicProgress, positions: "array[int] | None" = None
    ) -> list[tuple[int, int]]:
        """Store new committed offsets. Return `(partition, offset)` of the records whose time must be looked up.

        `positions` has the first unread offset of every partition that the group reads: the committed offset, or the
        offset where the group would start. None means that every partition has a committed offset.
        """
        grown = len(committed) - len(self.times)
        if grown > 0:
            self.times.extend([UNKNOWN] * grown)
            self._time_offsets.extend([UNKNOWN] * grown)
        self.committed = committed
        self.positions = committed if positions is None else positions
        self.is_partly_committed = self.positions is not committed
        self.has_moved = True
        wanted = []
        self.markers = topic.markers_after(self.positions)
        starts, ends, offsets = topic.starts, self._unread_ends(topic), self._time_offsets
        for partition, offset in enumerate(self.positions):
            if offset < 0 or partition >= len(ends) or offset >= ends[partition]:
                offsets[partition] = self.times[partition] = UNKNOWN
                continue
            offset = max(offset, starts[partition])
            if offset != offsets[partition] or self.times[partition] == UNKNOWN:
                offsets[partition] = offset
                self.times[partition] = UNKNOWN
                wanted.append((partition, offset))
        return wanted

    def set_time(self, partition: int, offset: int, time_ms: int) -> None:
        """Set the time of the record at `offset`, if it is still the oldest unread one."""
        if partition < len(self._time_offsets) and self._time_offsets[partition] == offset:
            self.times[partition] = time_ms
            self.has_moved = True

    @property
    def is_dated(self) -> bool:
        """True if the time of the oldest unread record is known in every partition."""
        return all(map(_is_known, self._time_offsets, self.times))

    def sum_up(self, topic: TopicProgress, now_ms: int) -> None:
        """Update `total`. Same result as `total_of(standings(...))`, but faster."""
        columns = (self.committed, self.positions, self._unread_ends(topic), self.times)
        rates = self._paces(now_ms), topic.rates.all(topic.ends, now_ms)
        self.total = summed(cast("Iterator[Row]", zip_longest(*columns, *rates, fillvalue=UNKNOWN)))

    def standings(self, topic: TopicProgress, now_ms: int) -> Iterator[Standing]:
        """Yield the group's progress in every partition that it reads, as of the first one."""
        committed, positions, markers, times = self.committed, self.positions, self.markers, self.times
        starts, ends, paces = topic.starts, topic.ends, self._paces(now_ms)
        for partition, position in enumerate(positions):
            if position < 0:
                continue
            known = partition < len(ends)
            end = ends[partition] if known else UNKNOWN
            offset, pace = committed[partition], paces[partition]
            yield Standing(
                partition,
                offset,
                starts[partition] if known else UNKNOWN,
                end,
                times[partition],
                None if pace < 0 else pace,
                topic.rates.of(partition, end, now_ms),
                UNKNOWN if offset >= 0 else position,
                markers[partition] if markers is not None else 0,
            )

    def _paces(self, now_ms: int) -> list[float]:
        """Return the rate of each partition's committed offset: -1 if unknown, 0 if nothing has been committed."""
        paces = self.rates.all(self.committed, now_ms)
        if self.is_partly_committed:
            for partition, offset in enumerate(self.committed):
                if offset < 0 and self.rates.was_unknown(partition, now_ms):
                    paces[partition] = 0.0
        return paces

    def as_bytes(self, topic: TopicProgress) -> bytes:
        """Return the data to store: committed offsets, ends minus markers, and times of the oldest unread records.

        A position without a commit is stored as -2 minus the position, which older brokers ignore.
        """
        count = len(self.committed)
        ends = self._unread_ends(topic)[:count]
        ends.extend([UNKNOWN] * (count - len(ends)))
        offsets = array("q", self._written()) if self.is_partly_committed else self.committed
        return (offsets + ends + self.times[:count]).tobytes()

    def arrays(self, group_id: str, name: str, topic: TopicProgress) -> "Arrays":
        """Return the values of all partitions."""
        return Arrays(group_id, name, self.committed, self.positions, self._unread_ends(topic), self.times)

    def _unread_ends(self, topic: TopicProgress) -> "array[int]":
        """Return the log ends minus their markers, so that the distance from a position is a number of records."""
        if self.markers is None:
            return topic.ends
        return array("q", [end - hidden for end, hidden in zip(topic.ends, self.markers, strict=False)])

    def _written(self) -> Iterator[int]:
        for offset, position in zip(self.committed, self.positions, strict=True):
            yield _ASSUMED - position if offset < 0 <= position else offset


def _is_known(offset: int, time_ms: int) -> bool:
    return offset < 0 or time_ms >= 0


def from_bytes(data: bytes, only: int | None = None) -> list[Standing]:
    """Parse the data of `as_bytes`, of all partitions or one. It has neither starts nor rates.

    Return [] if it is truncated.
    """
    if len(data) % _PARTITION_BYTES:
        return []
    values = array("q")
    values.frombytes(data)
    count = len(values) // 3
    return [
        Standing(
            partition,
            max(offset, UNKNOWN),
            UNKNOWN,
            values[count + partition],
            values[2 * count + partition],
            None,
            None,
            _ASSUMED - offset if offset <= _ASSUMED else UNKNOWN,
        )
        for partition in (range(count) if only is None else range(count)[only : only + 1])
        if (offset := values[partition]) != UNKNOWN
    ]
