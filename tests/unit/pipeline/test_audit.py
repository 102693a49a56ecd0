"""Offsets that a table lacks are explained by the log, or missing."""

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.pipeline.engine.upkeep.audit import Bounds, Gap, audit
from headrace.pipeline.engine.upkeep.presence import Piece, Present, merged


@dataclass
class OneLog:
    """A topic with one partition, and records at some offsets."""

    start: int
    end: int
    records: frozenset[int]
    topic_id: str = "id"

    def bounds(self, topic: str) -> Mapping[int, Bounds]:
        return {0: Bounds(topic_id=self.topic_id, start=self.start, end=self.end)}

    def first_record(self, topic: str, partition: int, offsets: range) -> int | None:
        return next((offset for offset in offsets if offset in self.records), None)


def stored(first: int, last: int, *gaps: range) -> list[Present]:
    rows = last - first + 1 - sum(map(len, gaps))
    return [Present(topic="t", topic_id="id", partition=0, first=first, last=last, rows=rows, duplicates=0, gaps=gaps)]


def log(start: int, end: int, *without: int, topic_id: str = "id") -> OneLog:
    return OneLog(start=start, end=end, records=frozenset(range(start, end)) - {*without}, topic_id=topic_id)


def verdicts(tables: list[Present], log: OneLog, read_to: int) -> list[tuple[int, int, str]]:
    gaps: list[Gap] = audit(tables, log, {("t", 0): read_to})
    return [(gap.first, gap.last, gap.verdict) for gap in gaps]


def test_a_record_that_the_table_lacks_is_missing() -> None:
    assert verdicts(stored(0, 9, range(3, 5)), log(0, 10, 3), 10) == [(3, 4, "missing")]


def test_offsets_without_records_are_explained() -> None:
    assert verdicts(stored(0, 8, range(3, 5)), log(0, 10, 3, 4, 9), 10) == [(3, 4, "explained"), (9, 9, "explained")]


def test_the_end_of_the_log_is_missing_only_if_it_was_read() -> None:
    assert verdicts(stored(0, 5), log(0, 10), 6) == []
    assert verdicts(stored(0, 5), log(0, 10), 8) == [(6, 7, "missing")]
    without_checkpoint = audit(stored(0, 5), log(0, 10), {})
    assert without_checkpoint == []


def test_offsets_before_the_first_are_explained_by_retention_or_missing() -> None:
    assert verdicts(stored(7, 9), log(5, 10), 10) == [(0, 4, "explained"), (5, 6, "missing")]


def test_a_gap_that_retention_has_deleted_is_missing() -> None:
    assert verdicts(stored(0, 9, range(3, 5)), log(5, 10), 10) == [(3, 4, "missing")]


def test_a_partition_without_rows_is_audited() -> None:
    assert verdicts([], log(2, 5), 5) == [(0, 1, "explained"), (2, 4, "missing")]


def test_gaps_in_a_batch_that_is_being_written_are_not_judged() -> None:
    assert verdicts(stored(0, 19, range(8, 18)), log(0, 30), 10) == [(8, 9, "missing")]


def test_pieces_of_a_table_are_put_together_with_gaps_and_duplicates() -> None:
    pieces = [
        Piece(topic_id="id", partition=0, offsets=(range(20, 30), range(40, 50)), rows=20),
        Piece(topic_id="id", partition=0, offsets=(range(10),), rows=10),
        Piece(topic_id="id", partition=0, offsets=(range(5, 12),), rows=8),
        Piece(topic_id="gone", partition=0, offsets=(range(3),), rows=3),
    ]
    of_gone, found = merged(pieces, {"id": "t"})
    assert (of_gone.topic, of_gone.last) == ("gone", 2)
    assert (found.topic, found.first, found.last, found.rows) == ("t", 0, 49, 38)
    assert (found.gaps, found.duplicates) == ((range(12, 20), range(30, 40)), 6)


def test_gaps_of_a_topic_that_was_created_again_are_missing() -> None:
    old = stored(0, 9, range(3, 5))
    assert verdicts(old, log(0, 2, topic_id="new"), 0) == [(3, 4, "missing")]
