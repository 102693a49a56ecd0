import errno
import struct
from dataclasses import replace
from itertools import product
from pathlib import Path
from unittest.mock import Mock
from uuid import UUID

import pytest

from headrace.errors import KafkaError
from headrace.storage.dirs.log_dirs import LogDirs
from headrace.storage.log.indexes.txn_index import AbortedTransaction
from headrace.storage.log.log import Log
from headrace.storage.log.producers.open_transactions import OpenTransactions
from headrace.storage.log.producers.producer_snapshot import ProducerEntry, write_snapshot
from headrace.types import TopicPartition
from headrace.wire.control import Marker
from headrace.wire.records import batch_headers
from tests.unit.storage.logs import NOW, SMALL, open_log, put


def history(directory: Path) -> list[AbortedTransaction]:
    """Write three segments with overlapping transactions, and return the expected index entries."""
    log = open_log(directory)
    put(log, 1, count=3)  # 0 to 2
    put(log, 2)  # 3
    log.roll(NOW)
    put(log, 1, marker=Marker.ABORT)  # 4, while the second is open
    put(log, 3)  # 5
    put(log, 2, marker=Marker.COMMIT)  # 6
    log.roll(NOW)
    put(log, 3, marker=Marker.ABORT)  # 7
    put(log, 4)  # 8, and stays open
    log.close()
    return [AbortedTransaction(1, 0, 4, 3), AbortedTransaction(3, 5, 7, 8)]


def closed_history(directory: Path) -> list[AbortedTransaction]:
    """Write the same log, and close it with complete indexes."""
    expected = history(directory)
    open_log(directory).close()
    return expected


def lose_indexes(directory: Path, base_offset: int, other: str = "index") -> None:
    for suffix in ("txnindex", other):
        (directory / f"{base_offset:020}.{suffix}").unlink()


def damage(directory: Path, offset: int, position: int = -1) -> None:
    """Change one byte of the batch at `offset`, by default the last one."""
    paths = sorted(directory.glob("*.log"))
    path = next(path for path in reversed(paths) if int(path.stem) <= offset)
    content = bytearray(path.read_bytes())
    found = next((at, header) for at, header in batch_headers(bytes(content)) if header.base_offset == offset)
    content[found[0] + position % found[1].size] ^= 0x80
    path.write_bytes(content)


def aborted(log: Log) -> list[AbortedTransaction]:
    return [transaction for segment in log.segments.ordered for transaction in segment.txn_index.read()]


def test_recovery_rebuilds_lost_and_wrong_indexes(tmp_path: Path) -> None:
    expected = history(tmp_path)
    (tmp_path / f"{7:020}.txnindex").write_bytes(struct.pack(">hqqqq", 0, 99, 5, 7, 8) * 2)
    log = open_log(tmp_path)
    assert aborted(log) == expected
    assert [len(segment.txn_index.read()) for segment in log.segments.ordered] == [0, 1, 1]


def test_recovery_begins_at_a_snapshot(tmp_path: Path) -> None:
    history(tmp_path)
    write_snapshot(tmp_path, 7, [ProducerEntry(3, 0, 0, 5, 0, NOW, 1, 5).packed()])
    log = open_log(tmp_path, recovery_point=7)
    assert aborted(log) == [AbortedTransaction(3, 5, 7, 8)]


def test_recovery_ignores_a_snapshot_from_before_the_first_segment(tmp_path: Path) -> None:
    history(tmp_path)
    for path in tmp_path.glob(f"{0:020}.*"):
        path.unlink()
    write_snapshot(tmp_path, 3, [ProducerEntry(3, 0, 0, 2, 0, NOW, 1, 2).packed()])
    assert aborted(open_log(tmp_path)) == [AbortedTransaction(3, 5, 7, 8)]


@pytest.mark.parametrize(
    "damage", [b"torn", struct.pack(">hqqqq", 9, 1, 0, 4, 3), struct.pack(">hqqqq", 0, 1, 5, 4, 3)]
)
def test_an_invalid_index_is_rebuilt_even_after_a_clean_shutdown(tmp_path: Path, damage: bytes) -> None:
    expected = closed_history(tmp_path)
    (tmp_path / f"{4:020}.txnindex").write_bytes(damage)
    assert aborted(open_log(tmp_path, clean=True)) == expected


@pytest.mark.parametrize("end", ["clean", "kill", "power failure"])
def test_a_lost_index_is_rebuilt_with_the_segments_other_indexes(
    tmp_path: Path, end: str, caplog: pytest.LogCaptureFixture
) -> None:
    expected = closed_history(tmp_path)
    caplog.clear()
    for (base_offset, other), recovery_point in product([(4, "index"), (7, "timeindex")], [0, 4, 7, 9]):
        lose_indexes(tmp_path, base_offset, other)
        log = open_log(tmp_path, clean=end == "clean", recovery_point=recovery_point, kernel_survived=end == "kill")
        assert aborted(log) == expected, (base_offset, recovery_point)
        log.close()
    assert "may get records of aborted" not in caplog.text


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("damaged", "position", "snapshot"),
    [(0, 8, 2), (4, 8, 0), (0, 2, 0)],
    ids=["after a snapshot", "in the segment", "the offset, without a checksum"],
)
def test_a_lost_index_that_cannot_be_rebuilt_does_not_stop_the_start(
    tmp_path: Path, damaged: int, position: int, snapshot: int, caplog: pytest.LogCaptureFixture
) -> None:
    closed_history(tmp_path)
    write_snapshot(tmp_path, snapshot, [])
    lose_indexes(tmp_path, 4)
    damage(tmp_path, damaged, position)
    caplog.clear()
    log = open_log(tmp_path, clean=True)
    assert log.log_end_offset == 9
    assert caplog.text.count("read_committed consumers may get records of aborted transactions") == 1
    assert aborted(log) == [AbortedTransaction(3, 5, 7, 8)]


def test_a_torn_last_segment_is_restored_without_an_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    expected = closed_history(tmp_path)
    lose_indexes(tmp_path, 7)
    with (tmp_path / f"{7:020}.log").open("ab") as file:
        file.write(bytes(30))
    caplog.clear()
    assert aborted(open_log(tmp_path, clean=True)) == expected
    assert "may get records of aborted" not in caplog.text


def long_history(directory: Path) -> list[AbortedTransaction]:
    """Write four segments, and return their index entries. The second and third begin at the offsets 5 and 9."""
    log = open_log(directory)
    put(log, 1, count=3)  # 0 to 2
    put(log, 2, size=100)  # 3
    put(log, 3)  # 4, as small as a marker
    log.roll(NOW)
    put(log, 1, marker=Marker.ABORT)  # 5
    put(log, 2, marker=Marker.ABORT)  # 6
    put(log, 4)  # 7
    put(log, 4, marker=Marker.ABORT)  # 8
    log.roll(NOW)
    put(log, 3, marker=Marker.ABORT)  # 9
    put(log, 4)  # 10
    put(log, 4, marker=Marker.ABORT)  # 11
    log.roll(NOW)
    put(log, 5)  # 12
    log.close()
    open_log(directory).close()
    return [
        AbortedTransaction(1, 0, 5, 3),
        AbortedTransaction(2, 3, 6, 4),
        AbortedTransaction(4, 7, 8, 4),
        AbortedTransaction(3, 4, 9, 10),
        AbortedTransaction(4, 10, 11, 12),
    ]


def open_without_indexes(directory: Path) -> Log:
    """Open the log of `long_history`, after the indexes of the second and third segment were lost."""
    for base_offset in (5, 9):
        lose_indexes(directory, base_offset)
    return open_log(directory, clean=True)


def test_damaged_records_do_not_hide_the_aborted_transactions_after_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = long_history(tmp_path)
    for offset in (0, 3):
        damage(tmp_path, offset)
    assert aborted(open_without_indexes(tmp_path)) == expected
    assert caplog.text.count("its header shows where the next batch begins") == 2
    assert "may get records of aborted" not in caplog.text


@pytest.mark.parametrize(("damaged", "has_snapshot"), [(4, False), (6, True), (7, False)])
def test_after_a_marker_may_be_lost_only_transactions_that_begin_later_are_certain(
    tmp_path: Path, damaged: int, has_snapshot: bool, caplog: pytest.LogCaptureFixture
) -> None:
    first, _, small, later, last = long_history(tmp_path)
    if has_snapshot:
        write_snapshot(tmp_path, 9, [ProducerEntry(3, 0, 0, 4, 0, NOW, 1, 4).packed()])
    damage(tmp_path, damaged)
    found = aborted(open_without_indexes(tmp_path))
    assert found == [
        *[first][: damaged > 5],
        *[AbortedTransaction(2, 3, 6, 4)][: damaged > 6],
        # a later last stable offset could end a search before the entries of the next segments
        *[small._replace(last_stable_offset=0)][: damaged < 7],
        *[later][:has_snapshot],
        last if has_snapshot else last._replace(last_stable_offset=0),
    ]
    assert caplog.text.count("read_committed consumers may get records of aborted transactions") == 1


@pytest.mark.parametrize("damaged", [3, 4])
def test_damage_before_a_snapshot_does_not_matter(
    tmp_path: Path, damaged: int, caplog: pytest.LogCaptureFixture
) -> None:
    expected = long_history(tmp_path)
    opened = [ProducerEntry(1, 0, 0, 2, 0, NOW, 1, 0), ProducerEntry(2, 0, 0, 3, 0, NOW, 1, 3)]
    write_snapshot(tmp_path, 4, [entry.packed() for entry in opened])
    damage(tmp_path, damaged)
    found = aborted(open_without_indexes(tmp_path))
    assert (found == expected) is (damaged < 4)
    assert ("may get records of aborted" in caplog.text) is (damaged == 4)


def test_an_aborted_transaction_is_found_although_the_offset_of_the_last_batch_is_damaged(tmp_path: Path) -> None:
    first, _ = history(tmp_path)
    log = open_log(tmp_path)
    damage(tmp_path, 3, 0)
    part = log.reader.read(0, 10_000, upto_offset=9)
    assert part is not None
    assert log.reader.aborted_transactions(0, part) == [first]


@pytest.mark.parametrize("position", [0, 1, 7])
def test_a_damaged_base_offset_does_not_stop_the_start(tmp_path: Path, position: int) -> None:
    closed_history(tmp_path)
    (tmp_path / f"{4:020}.index").unlink()
    damage(tmp_path, 4, position)
    log = open_log(tmp_path, clean=True)
    assert log.log_end_offset == 9
    assert log.reader.read(7, 1000, upto_offset=9) is not None


class KilledError(BaseException):
    """The process died here."""


def test_an_interrupted_start_does_not_hide_that_an_index_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = closed_history(tmp_path)
    lose_indexes(tmp_path, 4)
    error: BaseException
    for error in (OSError(errno.ENOSPC, "full"), KilledError()):
        with monkeypatch.context() as patch:
            patch.setattr("headrace.storage.log.indexes.txn_index.replace_file", Mock(side_effect=error))
            with pytest.raises((KafkaError, KilledError)):
                open_log(tmp_path, clean=True)
    assert aborted(open_log(tmp_path, clean=True)) == expected


def test_a_sound_index_is_kept_when_the_segments_other_indexes_are_rebuilt(tmp_path: Path) -> None:
    expected = closed_history(tmp_path)
    (tmp_path / f"{4:020}.index").unlink()
    damage(tmp_path, 0, 8)  # the transactions cannot be read from the log
    assert aborted(open_log(tmp_path, clean=True)) == expected


def test_a_read_includes_its_aborted_transactions(tmp_path: Path) -> None:
    first, second = history(tmp_path)
    log = open_log(tmp_path)

    def aborted_in(offset: int, upto: int, max_bytes: int = 10_000) -> list[AbortedTransaction]:
        part = log.reader.read(offset, max_bytes, upto_offset=upto)
        assert part is not None
        return log.reader.aborted_transactions(offset, part)

    assert aborted_in(0, 8) == [first]
    assert aborted_in(4, 8) == [first, second]
    assert aborted_in(5, 8) == [second]
    assert aborted_in(8, 9) == []
    assert aborted_in(4, 8, max_bytes=1) == [first]


def test_a_read_before_damage_includes_its_aborted_transactions(tmp_path: Path) -> None:
    config = replace(SMALL, segment_bytes=1000, index_interval_bytes=100)
    log, end = open_log(tmp_path, config), 15
    for number in range(end):
        put(log, 1 + number % 2, marker=None if number % 3 else Marker.ABORT)
    log.close()
    log = open_log(tmp_path, config)
    expected = aborted(log)
    assert len(expected) == 4
    assert [segment.index.count > 2 for segment in log.segments.ordered] == [True, False]
    for damaged in range(end):
        segment = log.segments.ordered[log.segments.floor(damaged)]
        content = segment.path.read_bytes()
        damage(tmp_path, damaged, 16)
        for offset in range(damaged):
            for upto in range(offset + 1, end + 1):
                log.segments.forget_positions()
                part = log.reader.read(offset, 10_000, upto_offset=upto)
                assert part is not None
                bound = min(upto, damaged) if log.segments.floor(offset) == log.segments.floor(damaged) else upto
                found = log.reader.aborted_transactions(offset, part)
                needed = [entry for entry in expected if entry.last_offset >= offset and entry.first_offset < bound]
                assert [entry for entry in found if entry.first_offset < bound] == needed, (damaged, offset, upto)
        segment.path.write_bytes(content)


def test_snapshots_contain_open_transactions_of_expired_producers_too() -> None:
    known = ProducerEntry(1, 0, 4, 20, 0, NOW, 1, 17)
    transactions = OpenTransactions([known, ProducerEntry(2, 0, 4, 30, 0, NOW, 1, -1)])
    assert transactions.first_offset == 17
    assert transactions.snapshot_entries({}) == [ProducerEntry(1, 0, -1, -1, 0, NOW, -1, 17).packed()]
    closed = replace(known, current_txn_first_offset=-1)
    assert transactions.snapshot_entries({1: closed.packed()}) == [known.packed()]


def test_a_survey_changes_no_file(tmp_path: Path) -> None:
    dirs = LogDirs.open([tmp_path], broker_id=3)
    put(dirs.create(TopicPartition("t", 0), UUID(int=5), SMALL, now_ms=NOW), 1)
    dirs.close({})
    (tmp_path / ".lock").unlink()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    surveyed = LogDirs.survey([tmp_path], broker_id=3)
    surveyed.found.check_readable()
    assert list(surveyed.partitions()) == [TopicPartition("t", 0)]
    surveyed.close({})

    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
