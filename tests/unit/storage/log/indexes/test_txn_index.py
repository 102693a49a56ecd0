"""Transaction indexes on a full disk, and without free file descriptors."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import KafkaError
from headrace.storage.log.indexes.txn_index import AbortedTransaction, TransactionIndex
from tests.unit.storage.log.producers.test_transactions import ABORT, put
from tests.unit.storage.logs import open_log

FIRST = AbortedTransaction(1, 0, 4, 5)
SECOND = AbortedTransaction(2, 3, 7, 8)
THIRD = AbortedTransaction(1, 5, 9, 10)
ENTRY_BYTES = 34


@contextmanager
def without_descriptors() -> Iterator[None]:
    def refused(*_: Any) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", refused)
        yield


@contextmanager
def full_disk(free_bytes: int) -> Iterator[None]:
    real = os.pwrite
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pwrite", lambda file, data, at: real(file, data[:free_bytes], at))
        yield


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


@pytest.mark.parametrize("free_bytes", [0, 10, ENTRY_BYTES, ENTRY_BYTES + 10])
def test_entries_after_a_short_write_are_whole(tmp_path: Path, free_bytes: int) -> None:
    index = TransactionIndex(tmp_path / "x.txnindex")
    index.append(FIRST)
    with without_descriptors():
        append_in_vain(index, SECOND)
    with full_disk(free_bytes):
        append_in_vain(index, THIRD)
    assert index.read() == [FIRST, SECOND, THIRD]

    index.write_tail()

    assert index.read() == TransactionIndex(index.path).read() == [FIRST, SECOND, THIRD]
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


@pytest.mark.parametrize("entries", [[FIRST], []])
def test_replacing_drops_entries_that_are_not_written_yet(tmp_path: Path, entries: list[AbortedTransaction]) -> None:
    index = TransactionIndex(tmp_path / "x.txnindex")
    with without_descriptors():
        append_in_vain(index, SECOND)
    assert not index.contains([])
    index.replace(entries)
    assert index.read() == entries


def test_recovery_reads_a_segment_whose_index_is_not_written(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    put(log, 1)
    put(log, 1, marker=ABORT)
    with full_disk(0):
        log.note_aborted(FIRST)
        log.flusher.flush()
        assert log.flusher.recovery_point == 0
    log.flusher.flush()
    assert log.flusher.recovery_point == 2
    assert TransactionIndex(log.segments.active.txn_index.path).read() == [FIRST]


def test_a_segment_is_not_completed_without_its_index(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    put(log, 1)
    put(log, 1, marker=ABORT)
    with without_descriptors():
        log.note_aborted(FIRST)
        with pytest.raises(KafkaError, match="Too many open files"):
            log.close()
    log.close()
    assert TransactionIndex(tmp_path / f"{0:020d}.txnindex").read() == [FIRST]


def test_a_failed_disk_fails_the_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    log = open_log(tmp_path)
    put(log, 1)
    put(log, 1, marker=ABORT)
    monkeypatch.setattr(os, "pwrite", broken)
    log.note_aborted(FIRST)
    with pytest.raises(KafkaError, match="Input/output error"):
        log.flusher.flush()
