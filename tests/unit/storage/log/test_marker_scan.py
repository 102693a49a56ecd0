"""Incremental scans for markers in batch headers."""

from pathlib import Path

import pytest

from headrace.storage.log import marker_scan
from headrace.storage.log.log import Log
from headrace.storage.log.marker_scan import scan_markers
from headrace.storage.log.producers.marker_counts import MarkerCounts, Range
from headrace.wire.control import Marker
from tests.unit.storage.logs import append, open_log, put


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """A log with 30 transactions of three records and a marker, in several segments."""
    log = open_log(tmp_path)
    for _ in range(30):
        append(log, 3)
        put(log, 1, marker=Marker.COMMIT)
    assert len(log.segments.ordered) > 2
    return log


def test_the_markers_of_a_range_are_found(log: Log) -> None:
    assert scan_markers(log.segments.ordered, Range(0, 120)).markers.tolist() == list(range(3, 120, 4))
    assert scan_markers(log.segments.ordered, Range(7, 15)).markers.tolist() == [7, 11]


def test_partial_scans_find_the_same_markers(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marker_scan, "MAX_HEADERS", 7)
    counts = MarkerCounts()
    counts.loaded(log.log_end_offset)
    scans = 0
    while (wanted := counts.unknown(5)) is not None:
        counts.learn(scan_markers(log.segments.ordered, wanted))
        scans += 1
    assert scans > 3
    assert counts.between(5, 120) == len(range(7, 120, 4))
