"""Snapshots of producer state are written while producers write, and restore deduplication."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from headrace.errors import ErrorCode, KafkaError
from headrace.replication import producer_snapshots, replica
from headrace.replication.producer_recovery import recover_producers
from headrace.replication.producer_snapshots import ProducerSnapshots
from headrace.replication.replica_manager import ReplicaManager
from headrace.slices import run_all
from headrace.storage.dirs.log_dirs import LogDirs
from headrace.storage.files.log_file import LogFile
from headrace.storage.log.config import LogConfig
from headrace.storage.log.producers.producer_snapshot import read_snapshot, snapshots
from headrace.storage.log.segment_files import SNAPSHOT_SUFFIX, segment_file
from headrace.wire.records import RecordData, build_batch
from tests.unit.replication.partition_setup import NOW, TOPIC_ID, TP, Setup
from tests.unit.storage.failing_calls import FailingCall


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[Setup]:
    setup = Setup(tmp_path)
    yield setup
    setup.replicas.close()


@pytest.fixture
def taker(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> ProducerSnapshots:
    monkeypatch.setattr(producer_snapshots, "_WORTH_BYTES", 1000)
    return ProducerSnapshots(setup.replicas.partitions)


def write(setup: Setup, sequence: int, count: int = 1, *, producer_id: int = 7, size: int = 300) -> None:
    for number in range(sequence, sequence + count):
        data = build_batch(
            [RecordData(b"k", bytes(size), NOW)], producer_id=producer_id, producer_epoch=0, base_sequence=number
        )
        setup.partition.append_as_leader(data, now_ms=NOW)


def take_snapshot(taker: ProducerSnapshots) -> bool:
    """Take a snapshot if one is due, and return True if it was."""
    rest = taker.take()
    if rest is not None:
        rest()
    return rest is not None


def offsets(setup: Setup) -> list[int]:
    return list(snapshots(setup.partition.log.directory))


def test_a_grown_log_gets_a_snapshot_that_replaces_the_last(setup: Setup, taker: ProducerSnapshots) -> None:
    write(setup, 0, 2)
    assert not take_snapshot(taker)
    write(setup, 2, 3)
    assert take_snapshot(taker)
    assert offsets(setup) == [5]
    assert not take_snapshot(taker)
    write(setup, 5, 5)
    assert take_snapshot(taker)
    assert offsets(setup) == [10]
    (entry,) = read_snapshot(snapshots(setup.partition.log.directory)[10])
    assert (entry.producer_id, entry.last_sequence, entry.last_offset) == (7, 9, 9)


def test_snapshots_at_segment_starts_are_kept(setup: Setup, taker: ProducerSnapshots) -> None:
    setup.configure(segment_bytes=3000)
    for sequence in range(30):
        write(setup, sequence)
        take_snapshot(taker)
    bases = {segment.base_offset for segment in setup.partition.log.segments.ordered} - {0}
    assert bases <= set(offsets(setup))
    assert len(set(offsets(setup)) - bases) <= 1


def test_a_snapshot_after_a_truncated_end_is_removed(setup: Setup, taker: ProducerSnapshots) -> None:
    write(setup, 0, 10)
    rest = taker.take()
    assert rest is not None
    setup.partition.log.truncate_to(5)
    rest()
    assert offsets(setup) == []


def test_a_snapshot_may_be_written_twice_at_the_same_time(
    setup: Setup, taker: ProducerSnapshots, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(setup, 0, 5)
    rest = taker.take()
    assert rest is not None
    real = os.replace

    def replacing(source: Path, target: Path) -> None:
        monkeypatch.setattr(os, "replace", real)
        setup.partition.write_producer_snapshot(5)
        real(source, target)

    monkeypatch.setattr(os, "replace", replacing)
    rest()
    assert not list(setup.partition.log.directory.glob("*.tmp"))
    assert len(list(read_snapshot(snapshots(setup.partition.log.directory)[5]))) == 1


def test_a_deleted_log_gets_no_snapshot(setup: Setup, taker: ProducerSnapshots) -> None:
    write(setup, 0, 10)
    rest = taker.take()
    assert rest is not None
    setup.replicas.delete_files(setup.replicas.withdraw([setup.partition.topic_partition]))
    rest()
    assert take_snapshot(taker) is False


@pytest.mark.parametrize("size", [10, 20_000])
def test_a_start_from_a_snapshot_restores_the_last_five_batches(setup: Setup, size: int) -> None:
    setup.configure(segment_bytes=50_000, index_interval_bytes=4096)
    write(setup, 0, 40, size=size)
    write(setup, 0, 3, producer_id=8, size=size)
    end = setup.partition.log_end_offset
    setup.reopen()
    assert end in offsets(setup)
    write(setup, 35, 5, size=size)
    write(setup, 0, 3, producer_id=8, size=size)
    assert setup.partition.log_end_offset == end
    with pytest.raises(KafkaError, match="sequence 34"):
        write(setup, 34)
    write(setup, 40)
    assert setup.partition.log_end_offset == end + 1


def test_the_window_is_not_filled_from_an_older_epoch(setup: Setup) -> None:
    write(setup, 0, 4)
    data = build_batch([RecordData(b"k", b"v", NOW)], producer_id=7, producer_epoch=1, base_sequence=0)
    setup.partition.append_as_leader(data, now_ms=NOW)
    setup.config = replace(LogConfig(), segment_bytes=1 << 20)
    setup.reopen()
    assert setup.partition.append_as_leader(data, now_ms=NOW).base_offset == 4
    (state,) = [producer for _, producer in setup.partition.producers.items()]
    assert [batch.first_offset for batch in state.batches] == [4]


def killed(setup: Setup, name: str = "copy") -> Setup:
    """Start a broker with the files that are left if the one of `setup` is killed."""
    copy = setup.directory.parent / name
    shutil.copytree(setup.directory, copy)
    return Setup(copy)


def written(tmp_path: Path) -> Setup:
    """Return a partition with four records, of which the first is in a snapshot."""
    setup = Setup(tmp_path / "data")
    write(setup, 0)
    setup.reopen()
    write(setup, 1, 3)
    return setup


def assert_continues(again: Setup) -> None:
    """Check that the producer must continue with sequence number 4."""
    with pytest.raises(KafkaError) as caught:
        write(again, 7)
    assert caught.value.code is ErrorCode.out_of_order_sequence_number
    write(again, 4)
    assert again.partition.log_end_offset == 5


def expire_all(setup: Setup) -> None:
    log = setup.partition.log
    log.configure(replace(log.config, retention_ms=1000))
    log.apply_retention(NOW + 10**7, log.log_end_offset)


def test_producers_are_known_after_retention_has_deleted_all_their_records(tmp_path: Path) -> None:
    setup = written(tmp_path)
    expire_all(setup)
    assert offsets(setup) == [setup.partition.log_start_offset] == [4]
    again = killed(setup)
    assert_continues(again)


def test_a_snapshot_from_before_the_first_record_is_not_used(tmp_path: Path) -> None:
    setup = written(tmp_path)
    outdated = snapshots(setup.partition.log.directory)[1].read_bytes()
    expire_all(setup)
    again = killed(setup)
    for path in snapshots(again.partition.log.directory).values():
        path.unlink()
    segment_file(again.partition.log.directory, 1, SNAPSHOT_SUFFIX).write_bytes(outdated)
    assert recover_producers(again.partition.log, 4)[0].snapshot() == []


def test_producers_are_known_after_retention_has_deleted_all_records_of_a_log_that_waits_for_a_leader(
    tmp_path: Path,
) -> None:
    setup = written(tmp_path)
    setup.replicas.checkpoint()
    shutil.copytree(setup.directory, setup.directory.parent / "waiting")
    waiting = ReplicaManager(LogDirs.open([setup.directory.parent / "waiting"], broker_id=0), lambda _: LogConfig())
    waiting.open(TP, TOPIC_ID, is_new=False)
    run_all(waiting.apply_retention())
    shutil.copytree(setup.directory.parent / "waiting", setup.directory.parent / "copy")
    again = Setup(setup.directory.parent / "copy")
    assert again.partition.log_start_offset == 4
    assert_continues(again)


def refuse(*_: object, **__: object) -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def knows_last_batch(setup: Setup, sequence: int, producer_id: int = 7) -> bool:
    """Return True if a repeated batch is not appended again."""
    end_offset = setup.partition.log_end_offset
    write(setup, sequence, producer_id=producer_id)
    return setup.partition.log_end_offset == end_offset


def test_a_segment_whose_first_append_fails_begins_with_a_snapshot(tmp_path: Path) -> None:
    setup = Setup(tmp_path / "data")
    setup.configure(segment_bytes=3000, retention_ms=-1)
    write(setup, 0, 2, producer_id=8)
    sequence, log = 0, setup.partition.log
    while len(log.segments.ordered) < 3:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LogFile, "append", refuse)
            with pytest.raises(KafkaError, match="No space left"):
                write(setup, sequence)
        write(setup, sequence)
        sequence += 1
    log.configure(replace(log.config, retention_bytes=0))
    log.apply_retention(NOW, log.segments.active.base_offset)
    assert len(log.segments.ordered) == 1
    assert knows_last_batch(killed(setup), 1, producer_id=8)


def test_retention_keeps_records_until_the_snapshot_of_their_producers_is_written(tmp_path: Path) -> None:
    setup = Setup(tmp_path / "data")
    write(setup, 0, 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replica, "write_snapshot", refuse)
        with pytest.raises(KafkaError, match="No space left"):
            expire_all(setup)
    assert knows_last_batch(killed(setup, "before"), 2)
    expire_all(setup)
    assert setup.partition.log_start_offset == 3
    assert knows_last_batch(killed(setup, "after"), 2)


def test_retention_on_a_disk_that_stays_full_deletes_records_and_writes_the_snapshot_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    setup = Setup(tmp_path / "data")
    write(setup, 0, 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replica, "write_snapshot", refuse)
        with suppress(KafkaError):
            expire_all(setup)
        expire_all(setup)
    assert (setup.partition.log_start_offset, offsets(setup)) == (3, [])
    assert "t-0 has no usable producer snapshot: [Errno 28] No space left" in caplog.text
    write(setup, 3)
    expire_all(setup)
    assert knows_last_batch(killed(setup), 3)
    caplog.clear()
    write(setup, 4)
    expire_all(setup)
    assert not caplog.records


def test_retention_that_fails_at_any_system_call_keeps_producers(tmp_path: Path) -> None:
    for place in range(1, 100):
        setup = Setup(tmp_path / f"{place}")
        write(setup, 0, 3)
        with pytest.MonkeyPatch.context() as patch:
            failing = FailingCall(patch, place)
            with suppress(KafkaError):
                expire_all(setup)
        if failing.left > 0:
            break
        assert knows_last_batch(killed(setup, f"{place} copy"), 2), f"call {place}"
        expire_all(setup)
        assert knows_last_batch(killed(setup, f"{place} later"), 2), f"call {place}"
    assert place > 12


def test_the_snapshot_is_on_disk_before_the_records_are_dropped(tmp_path: Path) -> None:
    setup = Setup(tmp_path / "data")
    write(setup, 0, 3)
    directory = setup.partition.log.directory
    calls: list[Path] = []
    fsync, rename = os.fsync, os.rename

    def syncing(descriptor: int) -> None:
        calls.extend(
            path
            for path in (directory, *directory.iterdir())
            if path.exists() and os.path.samestat(path.stat(), os.fstat(descriptor))
        )
        fsync(descriptor)

    def renaming(source: Path, target: Path) -> None:
        calls.append(target)
        rename(source, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", syncing)
        patch.setattr(os, "rename", renaming)
        expire_all(setup)
    dropped = segment_file(directory, 0, ".log.deleted")
    assert calls[: calls.index(dropped)] == [segment_file(directory, 3, SNAPSHOT_SUFFIX), directory]


def test_retention_does_not_rely_on_a_snapshot_that_a_power_failure_has_emptied(tmp_path: Path) -> None:
    setup = Setup(tmp_path / "data")
    setup.configure(segment_bytes=3000, retention_ms=-1)
    write(setup, 0, 2, producer_id=8)
    while len(setup.partition.log.segments.ordered) < 2:
        write(setup, setup.partition.log_end_offset - 2)
    segment_file(
        setup.partition.log.directory, setup.partition.log.segments.active.base_offset, SNAPSHOT_SUFFIX
    ).write_bytes(b"")
    again = killed(setup)
    log = again.partition.log
    log.configure(replace(log.config, retention_bytes=0))
    log.apply_retention(NOW, log.segments.active.base_offset)
    assert len(log.segments.ordered) == 1
    assert knows_last_batch(killed(again, "again"), 1, producer_id=8)
