"""Compaction keeps only the transaction data that READ_COMMITTED consumers need."""

from pathlib import Path

import pytest

from headrace.storage.cleaner.log_cleaner import RETRY_MS
from headrace.storage.log.indexes.txn_index import AbortedTransaction
from headrace.storage.log.producers.producer_snapshot import ProducerEntry
from headrace.wire.batch import CONTROL_FLAG, DELETE_HORIZON_FLAG, TRANSACTIONAL_FLAG
from headrace.wire.control import Marker, encode_marker
from headrace.wire.records import RecordData, build_batch
from tests.unit.storage.cleaner.compaction import DAY, TP, Table
from tests.unit.storage.failing_calls import full_disk
from tests.unit.storage.logs import NOW

ABORT, COMMIT = 0, 1
FIRST, SECOND = 100, 200
"""Producer ids."""


class Transactional(Table):
    """A log with transactions; abort markers update the transaction index, as in a broker."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._first_offsets: dict[int, int] = {}

    def write(self, producer_id: int, *records: tuple[str, str | None]) -> None:
        self._first_offsets.setdefault(producer_id, self.log.log_end_offset)
        self.put(*records, producer_id=producer_id, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL_FLAG)

    def end(self, producer_id: int, kind: int) -> None:
        offset = self.log.log_end_offset
        self.append(
            build_batch(
                [RecordData(*encode_marker(Marker(kind), 5), NOW)],
                base_offset=offset,
                leader_epoch=0,
                producer_id=producer_id,
                producer_epoch=0,
                attributes=TRANSACTIONAL_FLAG | CONTROL_FLAG,
            )
        )
        first = self._first_offsets.pop(producer_id)
        if kind == ABORT:
            self.log.note_aborted(AbortedTransaction(producer_id, first, offset, offset + 1))

    def committed(self) -> dict[bytes | None, bytes | None]:
        """Return the last committed value of every key, by the transaction index and the markers."""
        aborted = self.aborted()
        values = {}
        ongoing: set[int] = set()
        for segment in self.log.segments.ordered:
            for position, header in segment.headers():
                ongoing |= {item.producer_id for item in aborted if item.first_offset <= header.last_offset}
                aborted = [item for item in aborted if item.first_offset > header.last_offset]
                if header.is_control:
                    ongoing.discard(header.producer_id)
                elif not (header.is_transactional and header.producer_id in ongoing):
                    for record in self.records_at(segment, position, header):
                        values[record.key] = record.value
        return values

    def aborted(self) -> list[AbortedTransaction]:
        return [item for segment in self.log.segments.ordered for item in segment.txn_index.read()]

    def markers(self) -> list[int]:
        return [header.base_offset for header in self.headers() if header.is_control]

    def compact_and_check(self) -> None:
        before = self.committed()
        self.compact(from_start=True)
        assert self.committed() == before


@pytest.fixture
def table(tmp_path: Path) -> Transactional:
    return Transactional(tmp_path / "data")


def test_aborted_records_are_removed_and_supersede_nothing(table: Transactional) -> None:
    table.put(("a", "kept"), ("b", "old"))
    table.write(FIRST, ("a", "aborted"))
    table.write(SECOND, ("b", "committed"))
    table.end(FIRST, ABORT)
    table.end(SECOND, COMMIT)
    table.put(("z", "1"))
    table.log.roll(NOW)
    table.compact_and_check()
    assert [pair for pair in table.pairs() if pair[0] not in table.markers()] == [
        (0, b"a", b"kept"),
        (3, b"b", b"committed"),
        (6, b"z", b"1"),
    ]


def test_a_marker_is_removed_after_its_records_and_the_delete_horizon(table: Transactional) -> None:
    table.write(FIRST, ("a", "1"))
    table.end(FIRST, COMMIT)
    table.write(SECOND, ("b", "aborted"))
    table.end(SECOND, ABORT)
    table.put(("c", "1"))
    table.log.roll(NOW)
    table.compact_and_check()
    assert table.markers() == [1, 3]
    assert [item.producer_id for item in table.aborted()] == [SECOND]

    # all records of the aborted transaction are removed: its marker is due in a day
    table.compact_and_check()
    assert table.markers() == [1, 3]
    marker = next(header for header in table.headers() if header.base_offset == 3)
    assert marker.attributes & DELETE_HORIZON_FLAG
    assert marker.base_timestamp == table.now + DAY
    assert table.aborted() == []

    table.now += DAY
    table.compact_and_check()
    assert table.markers() == [1]

    table.put(("a", "2"))
    table.log.roll(NOW)
    table.compact_and_check()
    table.compact_and_check()
    assert table.markers() == [1]
    table.now += DAY
    table.compact_and_check()
    assert table.markers() == []
    assert table.committed() == {b"a": b"2", b"c": b"1"}


def test_a_transaction_may_span_segments_and_passes(table: Transactional) -> None:
    table.put(("a", "old"))
    table.write(FIRST, ("a", "aborted"), ("x", "aborted"))
    table.log.roll(NOW)
    table.last_stable_offset = 1
    table.compact()
    table.put(("b", "1"))
    table.write(FIRST, ("b", "aborted"))
    table.end(FIRST, ABORT)
    table.write(FIRST, ("a", "new"))
    table.end(FIRST, COMMIT)
    table.put(("z", "1"))
    table.log.roll(NOW)
    table.last_stable_offset = None
    table.compact_and_check()
    assert table.committed() == {b"a": b"new", b"b": b"1", b"z": b"1"}
    assert len([pair for pair in table.pairs() if pair[0] not in table.markers()]) == 3


def test_an_aborted_transaction_in_the_clean_part_does_not_affect_later_ones(table: Transactional) -> None:
    table.write(FIRST, ("a", "aborted"))
    table.end(FIRST, ABORT)
    table.put(("y", "1"))
    table.log.roll(NOW)
    table.compact()
    table.put(("b", "old"))
    table.write(FIRST, ("b", "new"))
    table.end(FIRST, COMMIT)
    table.put(("z", "1"))
    table.log.roll(NOW)
    table.compact()
    assert table.committed() == {b"y": b"1", b"b": b"new", b"z": b"1"}


def test_the_last_marker_of_a_producer_without_data_stays(table: Transactional) -> None:
    table.write(FIRST, ("a", "1"))
    table.end(FIRST, COMMIT)
    table.put(("a", "2"))
    table.log.roll(NOW)
    table.producers = [ProducerEntry(FIRST, 0, -1, -1, 0, NOW, 5, -1)]
    for _ in range(3):
        table.compact_and_check()
        table.now += DAY
    marker = next(header for header in table.headers() if header.is_control)
    assert (marker.producer_id, marker.record_count) == (FIRST, 0)


def test_aborted_records_supersede_nothing_although_their_index_entry_was_unwritten(table: Transactional) -> None:
    table.put(("a", "committed"))
    table.write(FIRST, ("a", "aborted"))
    table.log.roll(NOW)
    with full_disk(0):
        table.end(FIRST, ABORT)
    assert table.compact()
    assert table.committed() == {b"a": b"committed"}
    assert [value for _, _, value in table.pairs()][:-1] == [b"committed"]


def test_compaction_waits_until_the_transaction_index_is_written(table: Transactional) -> None:
    table.put(("a", "1"))
    table.put(("a", "2"))
    table.write(FIRST, ("b", "aborted"))
    table.log.roll(NOW)
    with full_disk(0):
        table.end(FIRST, ABORT)
        assert not table.compact()
    assert table.cleaner.failing == {
        TP: f"[Errno 28] No space left on device: '{table.log.segments.active.txn_index.path}'"
    }

    table.now += RETRY_MS
    assert table.compact()

    assert not table.cleaner.failing
    assert table.committed() == {b"a": b"2"}
