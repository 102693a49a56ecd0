"""Transaction indexes on a full disk, and without free file descriptors."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import KafkaError
from headrace.storage.log.flusher import LogFlusher
from headrace.storage.log.indexes import txn_index
from headrace.storage.log.indexes.txn_index import AbortedTransaction, TransactionIndex
from headrace.storage.log.log import Log
from headrace.storage.log.segment import Segment
from headrace.wire.control import Marker
from tests.support.examples import examples
from tests.unit.storage.failing_calls import full_disk, without_descriptors
from tests.unit.storage.logs import NOW, append, open_log, put

FIRST = AbortedTransaction(1, 0, 4, 5)
SECOND = AbortedTransaction(2, 3, 7, 8)
THIRD = AbortedTransaction(1, 5, 9, 10)
ENTRY_BYTES = 34


def append_in_vain(index: TransactionIndex, transaction: AbortedTransaction) -> None:
    with pytest.raises(OSError):
        index.append(transaction)


def test_an_entry_that_cannot_be_written_counts_and_is_written_later(tmp_path: Path) -> None:
    index = TransactionIndex(tmp_path / "x.txnindex")
    with without_descriptors():
        append_in_vain(index, FIRST)
        append_in_vain(index, SECOND)
    assert index.exists
    assert index.read() == [FIRST, SECOND]
    assert index.aborted_between(5, 9) == ([SECOND], False)
    assert TransactionIndex(index.path).read() == []

    index.append(THIRD)

    assert index.read() == TransactionIndex(index.path).read() == [FIRST, SECOND, THIRD]


def test_entries_after_a_short_write_are_whole(tmp_path: Path) -> None:
    for free_bytes in (0, 10, ENTRY_BYTES, ENTRY_BYTES + 10):
        index = TransactionIndex(tmp_path / f"{free_bytes}.txnindex")
        index.append(FIRST)
        with without_descriptors():
            append_in_vain(index, SECOND)
        with full_disk(free_bytes):
            append_in_vain(index, THIRD)
        assert index.read() == [FIRST, SECOND, THIRD], free_bytes

        index.write_tail()

        assert index.read() == TransactionIndex(index.path).read() == [FIRST, SECOND, THIRD], free_bytes
        assert index.path.stat().st_size == 3 * ENTRY_BYTES


def test_truncating_drops_entries_that_are_not_written_yet(tmp_path: Path) -> None:
    index = TransactionIndex(tmp_path / "x.txnindex")
    index.append(FIRST)
    with without_descriptors():
        append_in_vain(index, SECOND)
        append_in_vain(index, THIRD)
    index.truncate(9)
    assert index.read() == [FIRST, SECOND]
    index.truncate(7)
    index.write_tail()
    assert index.read() == TransactionIndex(index.path).read() == [FIRST]


def test_replacing_drops_entries_that_are_not_written_yet(tmp_path: Path) -> None:
    index = TransactionIndex(tmp_path / "x.txnindex")
    for entries in ([FIRST], []):
        with without_descriptors():
            append_in_vain(index, SECOND)
        assert not index.contains(entries)
        index.replace(entries)
        assert index.read() == entries


def with_aborted_transaction(directory: Path) -> Log:
    log = open_log(directory)
    put(log, 1)
    put(log, 1, marker=Marker.ABORT)
    return log


def flushed_with_unwritten_entry(directory: Path) -> Log:
    log = with_aborted_transaction(directory)
    with full_disk(0):
        log.note_aborted(AbortedTransaction(1, 0, 1, 2))
        log.flusher.flush()
    return log


@pytest.mark.parametrize("kernel_survived", [False, True])
def test_a_flush_succeeds_without_an_entry_that_recovery_restores(tmp_path: Path, *, kernel_survived: bool) -> None:
    log = flushed_with_unwritten_entry(tmp_path)
    assert log.flusher.recovery_point == log.log_end_offset == 2
    saved = log.flusher.recovery_point_to_save

    again = open_log(tmp_path, recovery_point=saved, kernel_survived=kernel_survived)

    assert again.segments.active.txn_index.read() == [AbortedTransaction(1, 0, 1, 2)]


@pytest.mark.parametrize("complete", [Log.close, lambda log: log.roll(NOW) and log.flusher.flush()])
def test_an_entry_that_is_written_after_the_flush_is_on_disk_before_recovery_skips_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, complete: Callable[[Log], None]
) -> None:
    log = flushed_with_unwritten_entry(tmp_path)
    index = log.segments.active.txn_index.path
    sizes: dict[int, int] = {}
    real = os.fsync

    def noted(descriptor: int) -> None:
        real(descriptor)
        status = os.fstat(descriptor)
        sizes[status.st_ino] = status.st_size

    monkeypatch.setattr(os, "fsync", noted)
    complete(log)
    assert log.flusher.recovery_point_to_save == 2
    assert sizes[index.stat().st_ino] == ENTRY_BYTES


def test_recovery_reads_a_segment_that_is_rolled_during_a_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path)
    put(log, 1)
    real = LogFlusher._sync_transactions

    def rolls(flusher: LogFlusher, segment: Segment) -> None:
        monkeypatch.undo()
        put(log, 1, marker=Marker.ABORT)
        log.note_aborted(FIRST)
        log.roll(NOW)
        real(flusher, segment)

    monkeypatch.setattr(LogFlusher, "_sync_transactions", rolls)
    log.flusher.flush()
    assert log.flusher.recovery_point_to_save == 0
    log.flusher.flush()
    assert log.flusher.recovery_point_to_save == 2


def test_a_segment_is_not_completed_without_its_index(tmp_path: Path) -> None:
    log = with_aborted_transaction(tmp_path)
    with without_descriptors():
        log.note_aborted(FIRST)
        with pytest.raises(KafkaError, match="Too many open files"):
            log.close()
    log.close()
    assert TransactionIndex(tmp_path / f"{0:020d}.txnindex").read() == [FIRST]


def test_a_restart_restores_an_entry_that_could_not_be_written(tmp_path: Path) -> None:
    log = with_aborted_transaction(tmp_path)
    with without_descriptors():
        log.note_aborted(FIRST)
    while log.segments.active.index.count < 2:
        append(log)
    with without_descriptors(".txnindex"), pytest.raises(KafkaError, match="Too many open files"):
        log.close()

    again = open_log(tmp_path, kernel_survived=True)

    assert again.segments.active.txn_index.read() == [AbortedTransaction(1, 0, 1, 2)]


def test_a_failed_disk_fails_the_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    log = with_aborted_transaction(tmp_path)
    monkeypatch.setattr(os, "pwrite", broken)
    log.note_aborted(FIRST)
    with pytest.raises(KafkaError, match="Input/output error"):
        log.flusher.flush()


@st.composite
def aborted_transactions(draw: st.DrawFn) -> list[AbortedTransaction]:
    """Entries in the order of their markers; the last stable offset never decreases."""
    entries = []
    last, stable = draw(st.integers(0, 1000)), 0
    for step in draw(st.lists(st.integers(1, 4), max_size=40)):
        last += step
        stable = draw(st.integers(stable, last + 1) | st.just(last + 1))
        entries.append(
            AbortedTransaction(draw(st.integers(0, 3)), max(0, last - draw(st.integers(0, 50))), last, stable)
        )
    return entries


def overlapping(
    entries: list[AbortedTransaction], fetch_offset: int, upper_bound: int
) -> tuple[list[AbortedTransaction], bool]:
    """Like `aborted_between`, from all entries."""
    found = []
    for entry in entries:
        if entry.last_offset >= fetch_offset and entry.first_offset < upper_bound:
            found.append(entry)
        if entry.last_stable_offset >= upper_bound:
            return found, True
    return found, False


@given(
    entries=aborted_transactions(),
    unwritten=st.integers(0, 3),
    block=st.sampled_from([1, 2, 7]),
    incomplete=st.integers(0, ENTRY_BYTES - 1),
    data=st.data(),
)
@settings(max_examples=examples(100), deadline=None)
def test_a_search_finds_the_same_entries_as_reading_all_of_them(
    tmp_path_factory: pytest.TempPathFactory,
    entries: list[AbortedTransaction],
    unwritten: int,
    block: int,
    incomplete: int,
    data: st.DataObject,
) -> None:
    index = TransactionIndex(tmp_path_factory.mktemp("index", numbered=True) / "x.txnindex")
    written = entries[: max(0, len(entries) - unwritten)]
    index.replace(written)
    if written:
        with index.path.open("ab") as file:
            file.write(bytes(incomplete))
    with without_descriptors():
        for entry in entries[len(written) :]:
            append_in_vain(index, entry)
    newest = entries[-1].last_offset if entries else 0
    fetch_offset = data.draw(st.integers(0, newest + 5))
    upper_bound = data.draw(st.integers(fetch_offset + 1, newest + 10))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(txn_index, "_BLOCK_ENTRIES", block)
        assert index.aborted_between(fetch_offset, upper_bound) == overlapping(entries, fetch_offset, upper_bound)


def test_a_search_reads_little_of_a_large_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [AbortedTransaction(7, 2 * number, 2 * number + 1, 2 * number + 2) for number in range(20_000)]
    index = TransactionIndex(tmp_path / "x.txnindex")
    index.replace(entries)
    bytes_read = 0

    def counted(real: Callable[..., bytes]) -> Callable[..., bytes]:
        def read(*arguments: Any) -> bytes:
            nonlocal bytes_read
            data = real(*arguments)
            bytes_read += len(data)
            return data

        return read

    monkeypatch.setattr(os, "pread", counted(os.pread))
    monkeypatch.setattr(os, "read", counted(os.read))
    for number in (0, 1, 9_999, 19_999):
        assert index.aborted_between(2 * number, 2 * number + 2) == ([entries[number]], True)
    assert index.aborted_between(40_000, 40_001) == ([], False)
    assert bytes_read < 5 * 100 * ENTRY_BYTES


def test_an_entry_that_a_flush_writes_during_a_search_is_found_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = TransactionIndex(tmp_path / "x.txnindex")
    index.append(FIRST)
    with without_descriptors():
        append_in_vain(index, SECOND)
    real = os.open

    def written_before(*arguments: Any) -> int:
        monkeypatch.setattr(os, "open", real)
        index.write_tail()
        return real(*arguments)

    monkeypatch.setattr(os, "open", written_before)
    assert index.aborted_between(0, 20) == ([FIRST, SECOND], False)


def test_a_search_of_a_file_that_is_truncated_meanwhile_ends_at_its_new_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [AbortedTransaction(7, number, number, 0) for number in range(1000)]
    index = TransactionIndex(tmp_path / "x.txnindex")
    index.replace(entries)
    real = os.pread

    def truncated_before(*arguments: Any) -> bytes:
        monkeypatch.setattr(os, "pread", real)
        index.truncate(300)
        return real(*arguments)

    monkeypatch.setattr(os, "pread", truncated_before)
    assert index.aborted_between(200, 2000) == (entries[200:300], False)


def test_a_search_reads_no_fifo(tmp_path: Path) -> None:
    index = TransactionIndex(tmp_path / "x.txnindex")
    os.mkfifo(index.path)
    with pytest.raises(OSError, match="is not a regular file"):
        index.aborted_between(0, 10)
