"""Waiting for appends to be committed."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headrace.errors import ErrorCode, KafkaError
from headrace.promise import Promise
from headrace.replication.appends import ALL_REPLICAS
from headrace.replication.partition import Partition
from headrace.replication.purgatory import Outcome, Purgatory, all_done
from headrace.storage.log.config import LogConfig
from headrace.wire.records import RecordData, build_batch
from tests.support.flush_disk import Disk
from tests.unit.replication.partition_setup import NOW, TP, Setup

LEADER_ONLY = 1


class Broker(Setup):
    """A partition with `flush.messages=1` on a blocked disk."""

    def __init__(self, directory: Path, disk: Disk) -> None:
        self.waits = Purgatory(asyncio.get_running_loop())
        super().__init__(directory, LogConfig(flush_messages=1), self.waits)
        disk.hold(self.partition)

    def append(self, count: int = 1) -> Partition:
        for _ in range(count):
            self.partition.append_as_leader(build_batch([RecordData(b"k", b"v", NOW)]), now_ms=NOW)
        return self.partition


@pytest.fixture
async def broker(tmp_path: Path, disk: Disk) -> AsyncIterator[Broker]:
    broker = Broker(tmp_path, disk)
    yield broker
    disk.free.set()
    broker.waits.close()
    broker.replicas.close()


async def test_a_committed_append_is_complete_at_once(broker: Broker) -> None:
    broker.append().flushed_to(1)
    assert broker.waits.completion(broker.partition, 1, ALL_REPLICAS, timeout_s=60) is None
    assert broker.waits.committed(broker.partition, 1).done()


async def test_only_a_producer_with_acks_waits_for_the_disk(broker: Broker) -> None:
    partition = broker.append()
    for acks in (LEADER_ONLY, ALL_REPLICAS):
        completion = broker.waits.completion(partition, 1, acks, timeout_s=60)
        assert completion is not None
        assert not completion.done()
    assert broker.waits.completion(partition, 1, 0, timeout_s=60) is None


async def test_a_flush_completes_only_the_appends_it_covers(broker: Broker) -> None:
    partition = broker.append(2)
    first, second = (broker.waits.committed(partition, end) for end in (1, 2))
    partition.flushed_to(1)
    assert await first is None
    assert not second.done()


async def test_a_committed_record_may_still_wait_for_the_disk(broker: Broker, disk: Disk) -> None:
    broker.configure()
    partition = broker.append()
    assert partition.high_watermark == 1
    completion = broker.waits.flushed(partition, 1)
    assert await asyncio.to_thread(disk.begun.wait, 10)
    assert not completion.done()
    disk.free.set()
    assert await completion is None


async def test_waiting_ends_after_the_timeout(broker: Broker) -> None:
    end = await broker.waits.committed(broker.append(), 1, timeout_s=0.001)
    assert isinstance(end, KafkaError)
    assert end.code is ErrorCode.request_timed_out


async def test_deleting_the_partition_ends_the_wait(broker: Broker) -> None:
    completion = broker.waits.committed(broker.append(), 1)
    broker.replicas.withdraw([TP])
    end = await completion
    assert isinstance(end, KafkaError)
    assert end.code is ErrorCode.unknown_topic_or_partition


async def test_an_offline_directory_ends_the_wait(broker: Broker) -> None:
    completion = broker.waits.committed(broker.append(), 1)
    broker.replicas.take_offline(broker.directory, "it is gone")
    end = await completion
    assert isinstance(end, KafkaError)
    assert end.code is ErrorCode.kafka_storage_error


async def test_a_cancelled_wait_does_not_affect_others(broker: Broker) -> None:
    partition = broker.append()
    cancelled, other = (broker.waits.committed(partition, 1, timeout_s=60) for _ in range(2))
    cancelled.cancel()
    partition.flushed_to(1)
    assert await other is None


def test_many_are_done_with_the_last_and_cancelled_together() -> None:
    promises = [Promise[Outcome]() for _ in range(3)]
    done = all_done(promises)
    promises[2].set_result(None)
    promises[0].cancel()
    assert not done.done()
    promises[1].set_exception(ValueError())
    assert done.result() is None

    promises = [Promise[Outcome]() for _ in range(2)]
    all_done(promises).cancel()
    assert all(promise.cancelled() for promise in promises)
