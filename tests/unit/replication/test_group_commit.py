"""Appends become visible after an fsync; failed fsyncs."""

import asyncio
import errno
from pathlib import Path
from uuid import UUID

import pytest

from headrace.errors import ErrorCode, KafkaError
from headrace.replication import group_commit
from headrace.replication.partition import Partition
from headrace.replication.purgatory import Completion, Purgatory
from headrace.replication.replica_manager import ReplicaManager
from headrace.storage.dirs.log_dirs import LogDirs
from headrace.storage.log.config import LogConfig
from headrace.types import TopicPartition
from headrace.wire.records import RecordData, build_batch
from tests.support.flush_disk import Disk
from tests.support.waiting import wait_for

NOW = 1_700_000_000_000
A = TopicPartition("a", 0)
B = TopicPartition("b", 0)


class Broker:
    """Two partitions in one log directory."""

    def __init__(self, directory: Path, flush_messages: int = 1) -> None:
        self.directory = directory
        self.offline: list[TopicPartition] = []
        self.config = LogConfig(flush_messages=flush_messages)
        self.purgatory = Purgatory(asyncio.get_running_loop())
        self.purgatory.on_failure = self._failed
        self.replicas = ReplicaManager(LogDirs.open([directory], broker_id=0), lambda _: self.config, self.purgatory)
        self.a, self.b = (self.replicas.become_leader(item, UUID(int=1 + len(item.topic)), 0) for item in (A, B))

    def _failed(self, partition: Partition, error: KafkaError) -> None:
        assert error.code is ErrorCode.kafka_storage_error
        if self.replicas.give_up(partition, str(error)):
            self.offline.append(partition.topic_partition)

    def configure(self, config: LogConfig) -> None:
        self.config = config
        list(self.replicas.reconfigure({"a"}))

    def append(self, partition: Partition, count: int = 1) -> Completion:
        """Append batches of one record, and return a future for their commit."""
        for _ in range(count):
            partition.append_as_leader(build_batch([RecordData(b"k", b"v", NOW)]), now_ms=NOW)
        return self.purgatory.committed(partition, partition.log_end_offset)


async def begun(broker: Broker, disk: Disk, count: int = 1) -> Completion:
    """Append batches to partition a, wait until their flush is blocked, and return a future for their commit."""
    disk.hold(broker.a)
    done = broker.append(broker.a, count)
    assert await asyncio.to_thread(disk.begun.wait, 10)
    return done


@pytest.fixture
async def broker(tmp_path: Path, disk: Disk) -> Broker:
    return Broker(tmp_path)


@pytest.fixture(autouse=True)
async def closed(broker: Broker, disk: Disk) -> object:
    yield
    disk.free.set()
    broker.purgatory.close()
    broker.replicas.close()


async def test_a_batch_is_invisible_until_it_is_flushed(broker: Broker, disk: Disk) -> None:
    seen: list[int] = []
    broker.a.growth.add(lambda *_: seen.append(broker.a.high_watermark))
    done = broker.append(broker.a)
    assert (broker.a.log_end_offset, broker.a.high_watermark, seen) == (1, 0, [])
    assert broker.a.read(0, 1000, read_committed=False, min_one_batch=True) is None
    await done
    assert (broker.a.high_watermark, broker.a.log.flusher.recovery_point, seen, disk.syncs) == (1, 1, [1], 1)


async def test_one_fsync_covers_all_waiting_appends(broker: Broker, disk: Disk) -> None:
    first = await begun(broker, disk)
    rest = [broker.append(broker.a) for _ in range(20)]
    assert not first.done()
    disk.free.set()
    await asyncio.gather(first, *rest)
    assert disk.syncs == 2
    assert broker.a.high_watermark == 21
    assert not broker.purgatory.uncommitted


async def test_a_slow_flush_does_not_delay_other_partitions(broker: Broker, disk: Disk) -> None:
    disk.hold(broker.a)
    slow = broker.append(broker.a)
    await broker.append(broker.b)
    await broker.append(broker.b)
    assert not slow.done()
    disk.free.set()
    await slow


async def test_fewer_records_than_flush_messages_do_not_wait(tmp_path: Path, disk: Disk, broker: Broker) -> None:
    broker.configure(LogConfig(flush_messages=10))
    broker.append(broker.a, 9)
    assert (broker.a.high_watermark, disk.syncs) == (9, 0)
    await broker.append(broker.a)
    assert (broker.a.high_watermark, disk.syncs) == (10, 1)


async def test_raising_flush_messages_ends_waiting_for_the_disk(broker: Broker, disk: Disk) -> None:
    first = await begun(broker, disk)
    second = broker.append(broker.a)
    broker.configure(LogConfig(flush_messages=1000))
    disk.free.set()
    await first
    assert not broker.a.awaits_flush
    broker.append(broker.a)
    assert broker.a.high_watermark == 3
    await second


async def test_records_appended_during_a_flush_become_visible_with_it(broker: Broker, disk: Disk) -> None:
    broker.configure(LogConfig(flush_messages=10))
    first = await begun(broker, disk, 10)
    broker.a.append_as_leader(build_batch([RecordData(b"k", b"v", NOW)]), now_ms=NOW)
    assert broker.a.high_watermark == 9
    disk.free.set()
    await first
    assert (broker.a.high_watermark, broker.a.log.flusher.recovery_point) == (11, 10)
    assert not broker.purgatory.uncommitted


async def test_a_failed_fsync_takes_the_log_offline_without_a_retry(broker: Broker, disk: Disk) -> None:
    disk.error = errno.EIO
    assert "Input/output error" in str(await broker.append(broker.a))
    disk.error = None
    assert broker.offline == [A]
    with pytest.raises(KafkaError, match="a-0 is offline"):
        broker.replicas.get(*A)
    attempts = disk.syncs
    with pytest.raises(KafkaError, match="Input/output error"):
        broker.a.log.flusher.flush()
    assert disk.syncs == attempts
    assert broker.a.high_watermark == 0
    await broker.append(broker.b)


async def test_a_flush_without_a_free_descriptor_is_retried(
    broker: Broker, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "_RETRY_S", 0)
    disk.error = errno.EMFILE
    done = broker.append(broker.a)
    await asyncio.to_thread(wait_for, lambda: disk.syncs > 2, "two more attempts")
    assert (broker.a.high_watermark, done.done()) == (0, False)
    disk.error = None
    await done
    assert (broker.a.high_watermark, broker.offline) == (1, [])


async def test_closing_during_a_flush_cancels_waiting_appends(
    broker: Broker, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    await begun(broker, disk)
    last = broker.append(broker.a)
    disk.free.set()
    broker.purgatory.close()
    await asyncio.to_thread(wait_for, lambda: broker.a.high_watermark == 1, "the end of the flush")
    await asyncio.sleep(0)
    assert last.cancelled()
    assert not caplog.records


async def test_the_start_after_a_failed_fsync_checks_the_logs(
    broker: Broker, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    await broker.append(broker.b, 3)
    disk.error = errno.EIO
    assert await broker.append(broker.a) is not None
    disk.error = None
    broker.replicas.close()
    with caplog.at_level("INFO"):
        again = Broker(broker.directory)
    assert not again.replicas.log_dirs.directories[0].joinpath(".kafka_cleanshutdown").exists()
    assert "checking" in caplog.text
    broker.replicas = again.replicas


async def test_a_failed_background_flush_is_reported(broker: Broker, disk: Disk) -> None:
    broker.configure(LogConfig(flush_ms=0))
    broker.append(broker.a)
    disk.error = errno.ENOSPC
    broker.replicas.flush_due()
    disk.error = None
    assert [(partition.topic_partition, "No space left" in why) for partition, why in broker.replicas.failed()] == [
        (A, True)
    ]


async def test_deleting_a_log_during_a_flush_is_not_a_failure(broker: Broker, disk: Disk) -> None:
    done = await begun(broker, disk)
    broker.replicas.delete_files(broker.replicas.withdraw([A]))
    disk.free.set()
    await asyncio.gather(done, return_exceptions=True)
    assert broker.offline == []
    assert not list(broker.replicas.failed())


async def test_the_next_flush_covers_a_rolled_segment(broker: Broker, disk: Disk) -> None:
    await broker.append(broker.a, 3)
    log = broker.a.log
    assert (log.flusher.recovery_point, log.flusher.recovery_point_to_save) == (3, 2)
    log.roll(NOW)
    assert log.flusher.recovery_point_to_save == 0
    await broker.append(broker.a)
    assert (log.flusher.recovery_point, log.flusher.recovery_point_to_save) == (4, 3)
