"""Where groups stand in the topics they read, and how fast they move: offsets in, lag, pace and forecast out.

Pure. Thousands of groups are kept in packed arrays, one slot a partition; -1 stands for what is not known.
"""

from array import array
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Final, NamedTuple, cast

from headrace.monitoring.groups.standing import UNKNOWN, Row, Standing, Total, summed
from headrace.storage.log.producers.marker_counts import MarkerCounts

_ASSUMED: Final = -2
"""In the file: a position 0 that is not committed; -3 stands for 1, and so on."""
_PARTITION_BYTES: Final = 3 * 8
_HALF_WINDOW_MS: Final = 30_000
_SHORTEST_MS: Final = 500
"""Over less time than that a rate says nothing."""


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

    def was_unknown(self, place: int, now_ms: int) -> bool:
        """Whether there was no value for as long as a rate needs."""
        return any(
            place < len(values) and values[place] < 0 and now_ms - at_ms >= _SHORTEST_MS
            for values, at_ms in ((self._old, self._old_at), (self._young, self._young_at))
        )

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
    """Where the partitions of a topic begin and end; `version` is another one after each change.

    A partition ends at its last stable offset: the records of open transactions are not there yet.
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
        """The number of transaction markers between each position and the end; None if there are none."""
        if not any(self.markers):
            return None
        found = array("q", bytes(8 * max(len(positions), len(self.ends))))
        for partition, (offset, end, markers) in enumerate(zip(positions, self.ends, self.markers, strict=False)):
            if markers and 0 <= offset < end:
                found[partition] = markers.between(max(offset, self.starts[partition]), end)
        return found

    def _present_revisions(self) -> list[int]:
        return [0 if each is None else each.revision for each in self.markers]


class Arrays(NamedTuple):
    """A group in a topic: for each partition the committed offset, the first unread one, the end less the markers
    before it, and the time of the next record; -1 for what is not known.
    """

    group_id: str
    topic: str
    committed: "array[int]"
    positions: "array[int]"
    ends: "array[int]"
    times: "array[int]"


class GroupProgress:
    """What one group has committed in one topic, and how old the next record of each partition is."""

    __slots__ = (
        "_sought",
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
        """Whether the group also reads partitions in which it has committed nothing."""
        self.markers: array[int] | None = None
        """Transaction markers between each position and the end; None without any."""
        self.rates = Rates(committed, now_ms)
        self.times = array("q", [UNKNOWN]) * len(committed)
        self._sought = self.times[:]
        """The offset that each of `times` is of."""
        self.written: int | None = None
        """Hash of what was last written of it."""
        self.seen: list[object] = []
        """What was committed when it was last looked at."""
        self.read: object = None
        """The partitions that members read, as of then."""
        self.topic_version: object = None
        """Of the topic's bounds, as of then."""
        self.has_moved = True
        """Whether anything is not as it was when it was last written."""
        self.total = Total()

    def update(
        self, committed: "array[int]", topic: TopicProgress, positions: "array[int] | None" = None
    ) -> list[tuple[int, int]]:
        """Take in what is committed now; `(partition, offset)` of the records whose time has to be looked up.

        `positions` has the first unread offset of every partition that the group reads: the committed one, or where it
        would start. Without it, the group reads what it has committed.
        """
        grown = len(committed) - len(self.times)
        if grown > 0:
            self.times.extend([UNKNOWN] * grown)
            self._sought.extend([UNKNOWN] * grown)
        self.committed = committed
        self.positions = committed if positions is None else positions
        self.is_partly_committed = self.positions is not committed
        self.has_moved = True
        wanted = []
        self.markers = topic.markers_after(self.positions)
        starts, ends, sought = topic.starts, self._unread_ends(topic), self._sought
        for partition, offset in enumerate(self.positions):
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
        """Bring `total` up to date: as `total_of` its standings, without making them."""
        columns = (self.committed, self.positions, self._unread_ends(topic), self.times)
        rates = self._paces(now_ms), topic.rates.all(topic.ends, now_ms)
        self.total = summed(cast("Iterator[Row]", zip_longest(*columns, *rates, fillvalue=UNKNOWN)))

    def standings(self, topic: TopicProgress, now_ms: int) -> list[Standing]:
        """Of every partition that the group reads."""
        paces = self._paces(now_ms)
        out = []
        for partition, position in enumerate(self.positions):
            if position < 0:
                continue
            known = partition < len(topic.ends)
            end = topic.ends[partition] if known else UNKNOWN
            offset, pace = self.committed[partition], paces[partition]
            out.append(
                Standing(
                    partition,
                    offset,
                    topic.starts[partition] if known else UNKNOWN,
                    end,
                    self.times[partition],
                    None if pace < 0 else pace,
                    topic.rates.of(partition, end, now_ms),
                    UNKNOWN if offset >= 0 else position,
                    self.markers[partition] if self.markers is not None else 0,
                )
            )
        return out

    def _paces(self, now_ms: int) -> list[float]:
        """Of each partition; -1 where it is not known. A member that never commits stands still."""
        paces = self.rates.all(self.committed, now_ms)
        if self.is_partly_committed:
            for partition, offset in enumerate(self.committed):
                if offset < 0 and self.rates.was_unknown(partition, now_ms):
                    paces[partition] = 0.0
        return paces

    def as_bytes(self, topic: TopicProgress) -> bytes:
        """What is written of it: committed offsets, ends less the markers, and times of the oldest unread records.

        A position without a commit is written as -2 less the position, which older brokers pass over.
        """
        count = len(self.committed)
        ends = self._unread_ends(topic)[:count]
        ends.extend([UNKNOWN] * (count - len(ends)))
        offsets = array("q", self._written()) if self.is_partly_committed else self.committed
        return (offsets + ends + self.times[:count]).tobytes()

    def arrays(self, group_id: str, name: str, topic: TopicProgress) -> "Arrays":
        """All of it, for those that go through every partition."""
        return Arrays(group_id, name, self.committed, self.positions, self._unread_ends(topic), self.times)

    def _unread_ends(self, topic: TopicProgress) -> "array[int]":
        """Ends less the markers before them: the distance from a position is the number of records."""
        if self.markers is None:
            return topic.ends
        return array("q", [end - hidden for end, hidden in zip(topic.ends, self.markers, strict=False)])

    def _written(self) -> Iterator[int]:
        for offset, position in zip(self.committed, self.positions, strict=True):
            yield _ASSUMED - position if offset < 0 <= position else offset


def _is_known(sought: int, time_ms: int) -> bool:
    return sought < 0 or time_ms >= 0


def from_bytes(data: bytes) -> list[Standing]:
    """What `as_bytes` wrote, without starts and rates; nothing where a disk has shortened it."""
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
        for partition, offset in enumerate(values[:count])
        if offset != UNKNOWN
    ]
