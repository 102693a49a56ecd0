"""Count the transaction markers in a range of a log: offsets that hold no record of a client.

Markers are noted as they are appended. Those from before the broker's start are counted from batch headers, on demand
and in parts (`marker_scan`). Memory is bounded: of a log with very many markers the older ones are forgotten, and
estimated by how dense the known ones are. Pure.
"""

from array import array
from bisect import bisect_left
from typing import Final, NamedTuple

MAX_MARKERS: Final = 16_384
"""Offsets that are kept of one log: 128 KiB."""


class Range(NamedTuple):
    """Offsets from `start` up to but not with `end`."""

    start: int
    end: int


class Scanned(NamedTuple):
    """The markers of a range, of which `end` is as far as the scan came."""

    start: int
    end: int
    markers: "array[int]"


class MarkerCounts:
    """The markers of one log from `known_from` on."""

    __slots__ = ("_is_full", "_markers", "_part", "known_from", "revision")

    def __init__(self) -> None:
        self.known_from = -1
        """-1 as long as the log is being loaded."""
        self.revision = 0
        """Another number after each change of what is known about older offsets."""
        self._markers = array("q")
        self._is_full = False
        self._part: Scanned | None = None

    def __bool__(self) -> bool:
        """Return True if there are markers to leave out."""
        return bool(self._markers)

    def loaded(self, end_offset: int) -> None:
        """The log is loaded, up to `end_offset`: markers are noted from there on, if none was noted while it was."""
        if self.known_from < 0:
            self.known_from = end_offset

    def note(self, offset: int) -> None:
        """A marker is at `offset`, after all that are known."""
        if self.known_from < 0:
            self.known_from = offset
        self._markers.append(offset)
        if len(self._markers) > MAX_MARKERS:
            self._forget(MAX_MARKERS // 2)

    def between(self, start: int, end: int) -> int:
        """The number of markers from `start` up to but not with `end`; 0 in a range that is still to be scanned."""
        markers = self._markers
        if not markers or start >= end:
            return 0
        count = bisect_left(markers, end) - bisect_left(markers, start)
        if start < self.known_from and self._is_full:
            known = markers[-1] + 1 - self.known_from
            count += (min(self.known_from, end) - start) * len(markers) // known
        return count

    def unknown(self, start: int) -> Range | None:
        """What is to be scanned next, to know the markers from `start` on."""
        if self._is_full or not 0 <= start < self.known_from:
            return None
        part = self._part
        return Range(part.end if part is not None and part.start <= start < part.end else start, self.known_from)

    def learn(self, found: Scanned) -> None:
        """Take in a scan of what `unknown` gave."""
        part = self._part
        if part is not None and part.end == found.start:
            found = Scanned(part.start, found.end, part.markers + found.markers)
        if len(found.markers) > MAX_MARKERS:
            found = Scanned(found.markers[-MAX_MARKERS], found.end, found.markers[-MAX_MARKERS:])
        self.revision += 1
        if found.end < self.known_from:
            self._part = found
            return
        self._part = None
        older = found.markers[: bisect_left(found.markers, self.known_from)]
        self._markers = older + self._markers
        self.known_from = min(found.start, self.known_from)
        if len(self._markers) > MAX_MARKERS:
            self._forget(len(self._markers) - MAX_MARKERS)

    def _forget(self, count: int) -> None:
        self.known_from = self._markers[count - 1] + 1
        del self._markers[:count]
        self._is_full = True
        self._part = None
        self.revision += 1
