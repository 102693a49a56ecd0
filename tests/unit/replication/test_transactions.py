import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ErrorCode, KafkaError
from headrace.replication.appends import Appended, AppendResult
from headrace.replication.partition import Partition
from headrace.replication.purgatory import Purgatory
from headrace.replication.verification import UNVERIFIED, VerificationGuard
from headrace.storage.log.config import LogConfig
from headrace.wire.batch import TRANSACTIONAL_FLAG
from headrace.wire.records import RecordData, build_batch
from tests.support.flush_disk import Disk
from tests.unit.replication.partition_setup import NOW, Setup

PRODUCER = 4


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[Setup]:
    setup = Setup(tmp_path)
    yield setup
    setup.replicas.close()


@pytest.fixture
def partition(setup: Setup) -> Partition:
    return setup.partition


def batch(sequence: int = 0, *, epoch: int = 0, producer: int = PRODUCER, transactional: bool = True) -> bytes:
    return build_batch(
        [RecordData(b"k", b"v", NOW)],
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        attributes=TRANSACTIONAL_FLAG if transactional else 0,
    )


def begin(
    partition: Partition, sequence: int = 0, *, epoch: int = 0, producer: int = PRODUCER, adds: bool = False
) -> AppendResult:
    """Verify and append the first batch of a transaction."""
    guard = partition.start_verification(producer, epoch, sequence, adds=adds, now_ms=NOW)
    return partition.append_as_leader(batch(sequence, epoch=epoch, producer=producer), now_ms=NOW, guard=guard)


def end(
    partition: Partition,
    *,
    commit: bool = True,
    epoch: int = 0,
    producer: int = PRODUCER,
    coordinator_epoch: int = 0,
    version: int = 0,
) -> int:
    return partition.append_marker(
        producer,
        epoch,
        commit=commit,
        coordinator_epoch=coordinator_epoch,
        now_ms=NOW,
        transaction_version=version,
    )


def refused(call: Callable[..., object], *arguments: Any, **options: Any) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        call(*arguments, **options)
    return caught.value.code


def refusal(partition: Partition, data: bytes, guard: VerificationGuard | None = None) -> ErrorCode:
    return refused(partition.append_as_leader, data, now_ms=NOW, guard=guard)


class TestVerification:
    def test_the_first_batch_needs_a_guard(self, partition: Partition) -> None:
        assert refusal(partition, batch()) is ErrorCode.invalid_txn_state
        assert begin(partition).base_offset == 0
        assert partition.start_verification(PRODUCER, 0, 1) is None
        assert partition.append_as_leader(batch(1), now_ms=NOW).base_offset == 1

    def test_a_marker_invalidates_the_guard_and_another_verification_does_not_revive_it(
        self, partition: Partition
    ) -> None:
        guard = partition.start_verification(PRODUCER, 0, 0)
        end(partition, commit=False)
        assert refusal(partition, batch(), guard) is ErrorCode.invalid_txn_state
        partition.start_verification(PRODUCER, 0, 0)
        assert refusal(partition, batch(), guard) is ErrorCode.invalid_txn_state

    def test_verification_can_be_switched_off(self, partition: Partition) -> None:
        assert partition.append_as_leader(batch(), now_ms=NOW, guard=UNVERIFIED).base_offset == 0

    def test_a_repeated_batch_needs_no_verification(self, partition: Partition) -> None:
        begin(partition)
        assert partition.append_as_leader(batch(), now_ms=NOW).base_offset == 0

    def test_a_batch_of_an_ended_transaction_is_not_repeated(self, partition: Partition) -> None:
        begin(partition)
        end(partition)
        assert refusal(partition, batch()) is ErrorCode.out_of_order_sequence_number
        guard = partition.start_verification(PRODUCER, 0, 0)
        assert refusal(partition, batch(), guard) is ErrorCode.out_of_order_sequence_number

    def test_a_batch_of_an_ended_transaction_is_not_repeated_in_the_next_one(self, partition: Partition) -> None:
        begin(partition)
        end(partition)
        begin(partition, 1)
        assert refusal(partition, batch(0)) is ErrorCode.out_of_order_sequence_number
        assert partition.append_as_leader(batch(1), now_ms=NOW).base_offset == 2

    def test_a_batch_does_not_overtake_an_earlier_one(self, partition: Partition) -> None:
        partition.start_verification(PRODUCER, 0, 0)
        guard = partition.start_verification(PRODUCER, 0, 1)
        assert refusal(partition, batch(1), guard) is ErrorCode.out_of_order_sequence_number
        assert partition.append_as_leader(batch(0), now_ms=NOW, guard=guard).base_offset == 0

    def test_an_unknown_producer_of_version_2_begins_with_sequence_0(self, partition: Partition) -> None:
        guard = partition.start_verification(PRODUCER, 0, 7, adds=True)
        assert refusal(partition, batch(7), guard) is ErrorCode.out_of_order_sequence_number

    def test_an_unknown_producer_of_version_1_begins_with_any_sequence(self, partition: Partition) -> None:
        assert begin(partition, 7).base_offset == 0

    def test_an_old_epoch_is_not_verified(self, partition: Partition) -> None:
        begin(partition, epoch=3)
        assert refused(partition.start_verification, PRODUCER, 2, 0) is ErrorCode.invalid_producer_epoch

    def test_a_raised_epoch_is_verified_before_its_marker(self, partition: Partition) -> None:
        begin(partition)
        assert partition.start_verification(PRODUCER, 1, 0) is not None
        assert refusal(partition, batch(epoch=1)) is ErrorCode.invalid_txn_state

    def test_unused_verifications_expire(self, partition: Partition) -> None:
        guard = partition.start_verification(PRODUCER, 0, 0, now_ms=NOW)
        partition.producers.expire(NOW + 1000, 1000)
        assert refusal(partition, batch(), guard) is ErrorCode.invalid_txn_state


class TestBatches:
    def test_an_open_transaction_refuses_other_batches(self, partition: Partition) -> None:
        begin(partition)
        assert refusal(partition, batch(1, transactional=False)) is ErrorCode.invalid_txn_state

    def test_a_marker_of_version_2_fences_the_ended_epoch_and_restarts_the_sequence(self, partition: Partition) -> None:
        begin(partition)
        end(partition, epoch=1, version=2)
        assert refusal(partition, batch(1), UNVERIFIED) is ErrorCode.invalid_producer_epoch
        assert refusal(partition, batch(1, epoch=1), UNVERIFIED) is ErrorCode.out_of_order_sequence_number
        assert begin(partition, epoch=1, adds=True).base_offset == 2

    def test_a_transactional_batch_needs_a_producer(self, partition: Partition) -> None:
        assert refusal(partition, batch(-1, producer=-1, epoch=-1), UNVERIFIED) is ErrorCode.invalid_record

    def test_batches_appended_together_share_a_transaction(self, partition: Partition) -> None:
        class Sent:
            acks = -1

            def __init__(self, records: bytes) -> None:
                self.records = records
                self.guard = guard

        guard = partition.start_verification(PRODUCER, 0, 0)
        results: list[Appended] = partition.append_all([Sent(batch(number)) for number in range(3)], now_ms=NOW)
        assert [result.base_offset for result in results if isinstance(result, AppendResult)] == [0, 1, 2]
        assert (partition.last_stable_offset, partition.high_watermark) == (0, 3)

    def test_internal_batches_need_a_guard_too(self, partition: Partition) -> None:
        own = batch(-1)
        assert refused(partition.append_own, own, NOW) is ErrorCode.invalid_txn_state
        guard = partition.start_verification(PRODUCER, 0)
        assert partition.append_own(own, NOW, guard) == 0
        assert partition.append_own(own, NOW) == 1
        assert partition.last_stable_offset == 0

    def test_an_internal_batch_of_an_old_epoch_is_refused(self, partition: Partition) -> None:
        partition.append_own(batch(-1, epoch=2), NOW, UNVERIFIED)
        assert refused(partition.append_own, batch(-1, epoch=1), NOW, UNVERIFIED) is ErrorCode.invalid_producer_epoch


class TestMarkers:
    def test_the_last_stable_offset_is_the_start_of_the_oldest_open_transaction(self, partition: Partition) -> None:
        begin(partition)
        begin(partition, producer=9)
        assert (partition.last_stable_offset, partition.high_watermark) == (0, 2)
        assert end(partition) == 3
        assert partition.last_stable_offset == 1
        end(partition, producer=9)
        assert partition.last_stable_offset == partition.high_watermark == 4

    def test_an_aborted_transaction_is_in_the_index(self, partition: Partition) -> None:
        begin(partition)
        end(partition, commit=False)
        part = partition.read(0, 1000, read_committed=True, min_one_batch=True)
        assert part is not None
        [aborted] = partition.log.reader.aborted_transactions(0, part)
        assert aborted == (PRODUCER, 0, 1, 2)

    def test_a_marker_without_a_transaction_fences_older_epochs(self, partition: Partition) -> None:
        end(partition, epoch=5)
        assert refusal(partition, batch(epoch=4), UNVERIFIED) is ErrorCode.invalid_producer_epoch

    def test_a_marker_of_an_old_epoch_is_refused(self, partition: Partition) -> None:
        begin(partition, epoch=1)
        for epoch, version in ((0, 0), (0, 2), (1, 2)):
            assert refused(end, partition, epoch=epoch, version=version) is ErrorCode.invalid_producer_epoch

    def test_a_marker_of_version_2_may_be_repeated(self, partition: Partition) -> None:
        begin(partition)
        end(partition, epoch=1, version=2)
        end(partition, epoch=1, version=2)
        assert partition.last_stable_offset == partition.high_watermark

    def test_a_marker_of_a_replaced_coordinator_is_refused(self, partition: Partition) -> None:
        begin(partition)
        end(partition, coordinator_epoch=3)
        assert refused(end, partition, coordinator_epoch=2) is ErrorCode.transaction_coordinator_fenced

    def test_a_marker_notifies_watchers(self, partition: Partition) -> None:
        begin(partition)
        seen: list[int] = []
        partition.growth.add(lambda _, size: seen.append(size))
        end(partition)
        assert seen == [-1]

    def test_the_last_stable_offset_is_at_least_the_log_start(self, partition: Partition) -> None:
        begin(partition)
        partition.append_as_leader(batch(1), now_ms=NOW)
        partition.delete_records(1)
        assert partition.last_stable_offset == 1


def restarted(setup: Setup, *, with_snapshot: bool) -> Partition:
    setup.replicas.close()
    if not with_snapshot:
        for path in setup.directory.rglob("*.snapshot"):
            path.unlink()
    return setup.open()


class TestRestarts:
    @pytest.mark.parametrize("with_snapshot", [True, False])
    def test_an_open_transaction_continues(self, setup: Setup, *, with_snapshot: bool) -> None:
        begin(setup.partition)
        partition = restarted(setup, with_snapshot=with_snapshot)
        assert partition.last_stable_offset == 0
        assert partition.append_as_leader(batch(1), now_ms=NOW).base_offset == 1
        end(partition)
        assert partition.last_stable_offset == 3

    @pytest.mark.parametrize("with_snapshot", [True, False])
    def test_producers_and_coordinators_stay_fenced(self, setup: Setup, *, with_snapshot: bool) -> None:
        begin(setup.partition)
        end(setup.partition, epoch=1, coordinator_epoch=3, version=2)
        partition = restarted(setup, with_snapshot=with_snapshot)
        assert refusal(partition, batch(1), UNVERIFIED) is ErrorCode.invalid_producer_epoch
        assert refused(end, partition, epoch=2, coordinator_epoch=2) is ErrorCode.transaction_coordinator_fenced

    def test_a_producer_with_an_open_transaction_does_not_expire(self, setup: Setup) -> None:
        begin(setup.partition)
        setup.replicas.expire_producers(1)
        assert refusal(setup.partition, batch(5)) is ErrorCode.out_of_order_sequence_number


@pytest.fixture
async def slow(tmp_path: Path, disk: Disk) -> AsyncIterator[Setup]:
    """A partition with `flush.messages=1` on a blocked disk."""
    purgatory = Purgatory(asyncio.get_running_loop())
    setup = Setup(tmp_path, LogConfig(flush_messages=1), purgatory)
    disk.hold(setup.partition)
    yield setup
    disk.free.set()
    purgatory.close()
    setup.replicas.close()


class TestMarkersOnASlowDisk:
    async def test_the_last_stable_offset_waits_for_the_marker_to_be_committed(self, slow: Setup) -> None:
        partition = slow.partition
        begin(partition)
        partition.flushed_to(1)
        after = end(partition, commit=False)
        assert (partition.high_watermark, partition.last_stable_offset) == (1, 0)
        partition.flushed_to(after)
        assert partition.last_stable_offset == 2

    async def test_a_marker_is_complete_after_a_flush(self, slow: Setup, disk: Disk) -> None:
        begin(slow.partition)
        assert slow.purgatory is not None
        done = slow.purgatory.committed(slow.partition, end(slow.partition))
        assert await asyncio.to_thread(disk.begun.wait, 10)
        assert not done.done()
        disk.free.set()
        assert await done is None
