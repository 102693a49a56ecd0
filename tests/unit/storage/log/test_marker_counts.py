from array import array

from headrace.storage.log.producers import marker_counts
from headrace.storage.log.producers.marker_counts import MAX_MARKERS, MarkerCounts, Range, Scanned


def counts(*markers: int, known_from: int = 0) -> MarkerCounts:
    found = MarkerCounts()
    found.loaded(known_from)
    for marker in markers:
        found.note(marker)
    return found


def test_markers_between_two_offsets_are_counted() -> None:
    assert not counts()
    found = counts(3, 7, 9)
    assert found
    assert [found.between(0, 10), found.between(3, 9), found.between(4, 7), found.between(10, 10)] == [3, 2, 0, 0]


def test_markers_before_the_start_are_unknown_until_scans_find_them_in_parts() -> None:
    found = counts(120, known_from=100)
    assert found.unknown(40) == Range(40, 100)
    before = found.revision
    found.learn(Scanned(40, 70, array("q", [50])))
    assert found.revision != before
    assert found.unknown(45) == Range(70, 100)
    assert found.between(40, 100) == 0
    found.learn(Scanned(70, 100, array("q", [80, 90])))
    assert found.unknown(40) is None
    assert found.between(40, 130) == 4
    assert found.unknown(10) == Range(10, 40)
    found.learn(Scanned(10, 40, array("q", [20])))
    assert found.between(10, 130) == 5


def test_over_the_limit_older_markers_are_estimated() -> None:
    found = counts(*range(10, 10 * MAX_MARKERS * 2, 10))
    end = 10 * MAX_MARKERS * 2
    assert found.unknown(0) is None
    assert abs(found.between(0, end) - 2 * MAX_MARKERS) < 20
    assert found.between(end - 1000, end) == 100


def test_the_number_of_markers_in_memory_is_limited() -> None:
    found = counts(known_from=10 * MAX_MARKERS)
    found.learn(Scanned(0, 10 * MAX_MARKERS, array("q", range(10 * MAX_MARKERS))))
    assert len(found._markers) <= marker_counts.MAX_MARKERS
