import errno
import os
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from headrace.errors import ErrorCode, KafkaError
from headrace.replication.following.fetched_batches import UnexpectedOffsetError
from headrace.replication.following.partition import FollowedPartition
from headrace.replication.growth import UNKNOWN_SIZE
from headrace.replication.producer_recovery import recover_producers
from headrace.slices import run_all
from headrace.storage.files.disk_failures import is_disk_failure
from headrace.storage.files.log_file import LogFile
from headrace.storage.log.config import LogConfig
from headrace.storage.log.log import Log
from headrace.storage.log.producers import producer_snapshot
from headrace.storage.log.producers.producer_snapshot import ProducerEntry, snapshots, write_snapshot
from headrace.wire.batch import HEADER_SIZE, TRANSACTIONAL_FLAG, seal
from headrace.wire.control import Marker, marker_batch
from headrace.wire.records import RecordData, build_batch
from tests.unit.storage.logs import NOW, batch, open_log, read_all

EPOCH = 50
LARGE = LogConfig(index_interval_bytes=200)


def follow(log: Log, high_watermark: int = 0) -> FollowedPartition:
    producers, transactions = recover_producers(log, high_watermark)
    return FollowedPartition(
        log,
        topic_id=UUID(int=1),
        leader=2,
        leader_epoch=EPOCH,
        high_watermark=high_watermark,
        producers=producers,
        transactions=transactions,
    )


@pytest.fixture
def partition(tmp_path: Path) -> Iterator[FollowedPartition]:
    partition = follow(open_log(tmp_path / "p", LARGE))
    yield partition
    partition.log.segments.replace([])


def fetch(partition: FollowedPartition, *batches: bytes) -> int:
    """Append batches, and return the number of those written."""
    return partition.append_fetched(memoryview(b"".join(batches)), NOW).batches


def written(partition: FollowedPartition) -> list[tuple[int, int]]:
    """Return base offset and epoch of all batches."""
    log = partition.log
    return [(header.base_offset, header.partition_leader_epoch) for header in log.segments.headers(0)]


def idempotent(base_offset: int, sequence: int, *, attributes: int = 0, producer_epoch: int = 0) -> bytes:
    return build_batch(
        [RecordData(b"k", b"v", NOW)],
        base_offset=base_offset,
        leader_epoch=0,
        producer_id=7,
        producer_epoch=producer_epoch,
        base_sequence=sequence,
        attributes=attributes,
    )


def transactional(base_offset: int, sequence: int) -> bytes:
    return idempotent(base_offset, sequence, attributes=TRANSACTIONAL_FLAG)


def marker(base_offset: int, kind: Marker) -> bytes:
    data = bytearray(marker_batch(kind, 3, 7, 0, NOW))
    data[:8] = base_offset.to_bytes(8, "big")
    data[12:16] = bytes(4)
    return bytes(data)


def test_offsets_and_epochs_of_the_leader_are_kept(partition: FollowedPartition) -> None:
    fetch(partition, batch(0, 2, epoch=3), batch(2, 3, epoch=4), batch(9, epoch=4))

    assert written(partition) == [(0, 3), (2, 4), (9, 4)]
    assert partition.log_end_offset == 10
    assert [tuple(entry) for entry in partition.log.leader_epochs.entries] == [(3, 0), (4, 2)]


def test_batches_of_one_epoch_are_one_write(partition: FollowedPartition, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch(partition, batch(0))
    writes: list[int] = []
    append = LogFile.append

    def counted(self: LogFile, buffers: list[memoryview], size: int, position: int) -> None:
        writes.append(size)
        append(self, buffers, size, position)

    monkeypatch.setattr(LogFile, "append", counted)
    sent = [batch(offset, epoch=0 if offset < 6 else 1) for offset in range(1, 10)]

    fetch(partition, *sent)

    assert writes == [sum(map(len, sent[:5])), sum(map(len, sent[5:]))]


def test_a_run_that_does_not_fit_is_spread_over_segments_with_snapshots(tmp_path: Path) -> None:
    partition = follow(open_log(tmp_path / "p"))

    fetch(partition, *(idempotent(offset, offset) for offset in range(60)))

    segments = partition.log.segments.ordered
    assert len(segments) > 1
    assert all(segment.size <= partition.log.config.segment_bytes for segment in segments)
    assert set(snapshots(partition.log.directory)) == {segment.base_offset for segment in segments[1:]}
    assert len(read_all(partition.log)) == 60


def test_a_gap_between_segments_is_not_taken_for_lost_records(tmp_path: Path) -> None:
    partition = follow(open_log(tmp_path / "p"))
    for offset in range(0, 3000, 100):
        fetch(partition, batch(offset))
    assert len(partition.log.segments.ordered) > 1

    again = open_log(tmp_path / "p", gapless=True)

    assert again.log_end_offset == 2901
    assert len(read_all(again)) == 30


def test_sequences_are_known_without_being_checked(partition: FollowedPartition) -> None:
    fetch(partition, idempotent(0, 0), idempotent(10, 5))

    (producer,) = [producer for _, producer in partition.producers.items()]
    assert producer.last_sequence == 5


def test_a_marker_ends_the_transaction_once_it_is_committed(partition: FollowedPartition) -> None:
    fetch(partition, transactional(0, 0), marker(1, Marker.COMMIT))
    assert partition.transactions.producer_ids() == []
    assert partition.transactions.first_offset == 0

    partition.learn(2, 0)

    assert partition.transactions.first_offset is None


def test_a_marker_makes_the_bytes_of_its_transaction_count_for_waiting_fetches(partition: FollowedPartition) -> None:
    fetch(partition, transactional(0, 0))
    partition.learn(1, 0)
    added: list[int] = []
    partition.growth.add(lambda _, size: added.append(size))
    fetch(partition, marker(1, Marker.COMMIT))
    partition.learn(2, 0)
    assert added == [UNKNOWN_SIZE]


def test_an_aborted_transaction_is_in_the_index(partition: FollowedPartition) -> None:
    fetch(partition, transactional(0, 0), marker(1, Marker.ABORT))

    assert [tuple(entry) for entry in partition.log.segments.active.txn_index.read()] == [(7, 0, 1, 2)]


def test_a_marker_without_records_from_compaction_is_accepted(partition: FollowedPartition) -> None:
    empty = bytearray(marker(0, Marker.ABORT)[:HEADER_SIZE])
    empty[8:12] = (HEADER_SIZE - 12).to_bytes(4, "big")
    empty[57:61] = bytes(4)
    seal(empty)

    assert fetch(partition, bytes(empty)) == 1


def test_a_failed_write_changes_nothing(partition: FollowedPartition, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch(partition, idempotent(0, 0))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(LogFile, "append", full)
        with pytest.raises(KafkaError) as caught:
            fetch(partition, idempotent(1, 1), transactional(2, 2))

    assert caught.value.code is ErrorCode.kafka_storage_error
    assert partition.log_end_offset == 1
    assert dict(partition.producers.items())[7].last_sequence == 0
    assert fetch(partition, idempotent(1, 1)) == 1


def test_a_log_that_begins_within_a_batch_takes_the_whole_batch(partition: FollowedPartition) -> None:
    partition.truncate_fully_and_start_at(12)

    fetch(partition, batch(10, 5))
    partition.learn(15, 12)

    assert written(partition) == [(10, 0)]
    assert (partition.log_start_offset, partition.log_end_offset) == (12, 15)


def test_a_log_whose_records_are_all_deleted_takes_a_batch_with_other_boundaries(partition: FollowedPartition) -> None:
    """The leader's log starts at 5, within a batch of a later epoch: it no longer knows where the logs diverge."""
    fetch(partition, batch(0, 5, epoch=0))
    newer = memoryview(batch(3, 4, epoch=1))
    with pytest.raises(UnexpectedOffsetError):
        partition.append_fetched(newer, NOW, leader_start=4)

    partition.append_fetched(newer, NOW, leader_start=5)
    partition.learn(7, 5)

    assert written(partition) == [(3, 1)]
    assert (partition.log.log_start_offset, partition.log_end_offset) == (5, 7)


def test_the_high_watermark_is_the_leaders_as_far_as_the_log_reaches(partition: FollowedPartition) -> None:
    fetch(partition, batch(0, 5))
    partition.learn(3, 0)
    assert partition.high_watermark == 3
    partition.learn(9, 0)
    assert partition.high_watermark == 5


def test_the_log_start_is_at_most_the_high_watermark(partition: FollowedPartition) -> None:
    fetch(partition, batch(0, 5))

    partition.learn(3, 4)

    assert partition.log_start_offset == 3


def test_a_diverging_log_is_cut_where_the_leaders_epoch_ends(partition: FollowedPartition) -> None:
    fetch(partition, *(batch(offset, epoch=1) for offset in range(5)), *(batch(offset, epoch=3) for offset in (5, 6)))

    assert partition.truncate_where_diverging(1, 4) == 4

    assert partition.log_end_offset == 4
    assert partition.log.leader_epochs.latest == 1


def test_an_epoch_without_batches_is_forgotten(partition: FollowedPartition) -> None:
    fetch(partition, batch(0, epoch=1))
    partition.log.leader_epochs.assign(2, 1)

    partition.truncate_where_diverging(1, 1)

    assert partition.log.leader_epochs.latest == 1


def test_a_truncation_takes_back_the_state_of_producers_and_its_snapshots(partition: FollowedPartition) -> None:
    fetch(partition, transactional(0, 0), marker(1, Marker.ABORT), transactional(2, 1))
    partition.write_producer_snapshot(3)
    partition.learn(1, 0)

    partition.truncate_to(1)

    assert dict(partition.producers.items())[7].last_sequence == 0
    assert partition.transactions.begin_of(7, 0) == 0
    assert partition.log.segments.active.txn_index.read() == []
    assert snapshots(partition.log.directory) == {}


def too_many_files(partition: FollowedPartition, patch: pytest.MonkeyPatch, function: str) -> list[OSError]:
    """Make a function fail for lack of descriptors. Return the list of disk errors, still empty."""
    failures: list[OSError] = []
    partition.log.state.on_disk_error = lambda _, error: failures.append(error)

    def fail(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    patch.setattr(function, fail)
    return failures


@pytest.mark.parametrize("fully", [False, True])
def test_a_truncation_that_cannot_reload_the_producers_takes_the_directory_offline(
    partition: FollowedPartition, monkeypatch: pytest.MonkeyPatch, fully: bool
) -> None:
    fetch(partition, idempotent(0, 0), idempotent(1, 1))
    failures = too_many_files(partition, monkeypatch, "headrace.replication.following.partition.recover_producers")
    truncate = partition.truncate_fully_and_start_at if fully else partition.truncate_to
    with pytest.raises(KafkaError, match="truncated only in part: Too many open files"):
        truncate(1)
    assert [is_disk_failure(failure) for failure in failures] == [True]


def truncated(directory: Path, offset: int, snapshot: int | None, *, reads_before: bool) -> object:
    """Return the state after a truncation that reads the producers before it, or afterwards."""
    partition = follow(open_log(directory, LARGE))
    fetch(partition, transactional(0, 0))
    for appended in (marker(1, Marker.ABORT), transactional(2, 1), idempotent(3, 2), transactional(4, 3)):
        if partition.log_end_offset == snapshot:
            partition.write_producer_snapshot(snapshot)
        fetch(partition, appended)
    if snapshot == 5:
        partition.write_producer_snapshot(snapshot)
    with pytest.MonkeyPatch.context() as patch:
        recovered = None
        if reads_before:
            recovered = run_all(partition.recover_before(offset))
            patch.delattr("headrace.replication.following.partition.recover_producers")
        partition.truncate_to(offset, recovered)
    partition.log.segments.replace([])
    transactions = partition.transactions
    return (
        partition.log_end_offset,
        partition.producers.items(),
        transactions.begin_of(7, 0),
        transactions.first_offset,
        sorted(snapshots(directory)),
    )


def test_a_truncation_uses_the_producers_that_were_read_before_it(tmp_path: Path) -> None:
    for offset, snapshot in ((0, None), (1, None), (1, 1), (2, 1), (3, 3), (3, 5), (4, 3), (5, 5)):
        before, after = (
            truncated(tmp_path / f"{offset} {snapshot} {reads_before}", offset, snapshot, reads_before=reads_before)
            for reads_before in (True, False)
        )
        assert before == after, f"truncated to {offset}, snapshot at {snapshot}"


def test_a_large_snapshot_is_read_in_small_steps(partition: FollowedPartition, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch(partition, idempotent(0, 0), idempotent(1, 1))
    entries = [ProducerEntry(number, 0, 0, 0, 0, NOW, -1, 0 if number == 800 else -1) for number in range(1000)]
    write_snapshot(partition.log.directory, 1, [entry.packed() for entry in entries])
    read = 0

    def reading(*fields: int) -> ProducerEntry:
        nonlocal read
        read += 1
        return ProducerEntry(*fields)

    monkeypatch.setattr(producer_snapshot, "ProducerEntry", reading)
    steps, largest = partition.recover_before(1), 0
    try:
        while True:
            before = read
            next(steps)
            largest = max(largest, read - before)
    except StopIteration as end:
        recovered = end.value
    assert (read, largest) == (1000, 100)
    assert len(recovered.producers) == 1000
    assert recovered.transactions.producer_ids() == [800]


def test_producers_that_were_read_for_another_offset_are_not_used(partition: FollowedPartition) -> None:
    fetch(partition, idempotent(0, 0), idempotent(1, 1), idempotent(2, 2))

    partition.truncate_to(1, run_all(partition.recover_before(2)))

    assert dict(partition.producers.items())[7].last_sequence == 0


def test_a_truncation_whose_producers_cannot_be_read_changes_nothing(
    partition: FollowedPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch(partition, idempotent(0, 0), idempotent(1, 1))
    failures = too_many_files(partition, monkeypatch, "headrace.replication.producer_recovery.snapshots")
    with pytest.raises(KafkaError, match=r"cannot truncate .* Too many open files"):
        run_all(partition.recover_before(1))
    assert [is_disk_failure(failure) for failure in failures] == [False]
    assert partition.log_end_offset == 2


def test_a_truncation_below_the_high_watermark_lowers_it(partition: FollowedPartition) -> None:
    fetch(partition, batch(0), batch(1))
    partition.learn(2, 0)

    partition.truncate_to(1)

    assert partition.high_watermark == 1


def test_timestamps_are_found_after_a_truncation(partition: FollowedPartition) -> None:
    fetch(partition, *(batch(offset, timestamp=NOW + offset) for offset in range(20)))
    partition.truncate_to(10)
    fetch(partition, *(batch(offset, timestamp=NOW + 100 + offset) for offset in range(10, 20)))

    found = partition.log.reader.offset_for_timestamp(NOW + 15)

    assert found is not None
    assert found[1] == 10


def test_emptying_starts_elsewhere_without_producers(partition: FollowedPartition) -> None:
    fetch(partition, idempotent(0, 0))
    partition.write_producer_snapshot(1)

    partition.truncate_fully_and_start_at(40)

    assert len(partition.producers) == 0
    assert (partition.log_start_offset, partition.high_watermark, partition.log_end_offset) == (40, 40, 40)


def test_flush_messages_asks_for_a_flush_after_the_append(tmp_path: Path) -> None:
    partition = follow(open_log(tmp_path / "p", LogConfig(flush_messages=2)))
    fetch(partition, batch(0))
    before = partition.needs_flush
    fetch(partition, batch(1))
    due = partition.needs_flush
    partition.log.flusher.flush()

    assert (before, due, partition.needs_flush) == (False, True, False)
