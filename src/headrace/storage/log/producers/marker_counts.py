"""Counts the transaction markers in a range of a log: they take up offsets, but are not records of clients.

Markers are recorded when they are appended. Those from before the broker's start are counted from batch headers, on
demand and in parts (`marker_scan`). Memory is bounded: in a log with very many markers, the older ones are dropped, and
their number is estimated from the density of the known ones. Pure.
"""

from array import array
from bisect import bisect_left
from typing import Final, NamedTuple

MAX_MARKERS: Final = 16_384
"""Maximum number of offsets per log: 128 KiB."""


class Range(NamedTuple):
    """Offsets from `start` to `end`, exclusive."""

    start: int
    end: int


class Scanned(NamedTuple):
    """The markers of a range; `end` is the offset that the scan reached."""

    start: int
    end: int
    markers: "array[int]"


class MarkerCounts:
    """The markers of one log from `known_from` on."""

    __slots__ = ("_is_full", "_markers", "_part", "known_from", "revision")

    def __init__(self) -> None:
        self.known_from = -1
        """-1 while the log is being loaded."""
        self.revision = 0
        """Incremented when a scan has found older markers, and when older markers are dropped."""
        self._markers = array("q")
        self._is_full = False
        self._part: Scanned | None = None

    def __bool__(self) -> bool:
        """Return True if any marker is known."""
        return bool(self._markers)

    def loaded(self, end_offset: int) -> None:
        """Finish loading a log that ends at `end_offset`: if it had no marker, all markers from there on are known."""
        if self.known_from < 0:
            self.known_from = end_offset

    def note(self, offset: int) -> None:
        """Record a marker at `offset`, after all known ones."""
        if self.known_from < 0:
            self.known_from = offset
        self._markers.append(offset)
        if len(self._markers) > MAX_MARKERS:
            self._forget(MAX_MARKERS // 2)

    def between(self, start: int, end: int) -> int:
        """Count the markers from `start` to `end`, exclusive; ranges that are still to be scanned count 0."""
        markers = self._markers
        if not markers or start >= end:
            return 0
        count = bisect_left(markers, end) - bisect_left(markers, start)
        if start < self.known_from and self._is_full:
            known = markers[-1] + 1 - self.known_from
            count += (min(self.known_from, end) - start) * len(markers) // known
        return count

    def unknown(self, start: int) -> Range | None:
        """Return the next range to scan for markers from `start` on; None if all are known or any were dropped."""
        if self._is_full or not 0 <= start < self.known_from:
            return None
        part = self._part
        return Range(part.end if part is not None and part.start <= start < part.end else start, self.known_from)

    def learn(self, found: Scanned) -> None:
        """Add the result of scanning the range from `unknown`."""
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
