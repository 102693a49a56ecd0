"""Partitions on their way from one log directory to another."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest

from headrace.broker.disks.log_mover import LogMover
from headrace.errors import ErrorCode, KafkaError
from headrace.replication.replica_manager import ReplicaManager
from headrace.storage.dirs.log_dirs import LogDirs
from headrace.storage.log.config import LogConfig
from headrace.types import TopicPartition
from tests.unit.storage.logs import NOW, append, offsets, read_all

TP = TopicPartition("t", 0)


class Broker:
    """A partition of three records in the log directory `a`; `b` is empty."""

    def __init__(self, root: Path) -> None:
        self.a, self.b = root / "a", root / "b"
        log_dirs = LogDirs.open([self.a, self.b], broker_id=0)
        log_dirs.prefer(TP, self.a)
        self.replicas = ReplicaManager(log_dirs, lambda _: LogConfig())
        self.partition = self.replicas.become_leader(TP, UUID(int=1), 0)
        append(self.partition.log, 3)
        self.mover = LogMover(self.replicas, asyncio.get_running_loop(), bytes_per_second=lambda: 1e12)

    def move(self, path: Path) -> None:
        self.mover.move(*TP, path)

    async def finished(self) -> None:
        await asyncio.wait_for(asyncio.gather(*self.mover._tasks), 30)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    broker = Broker(tmp_path)
    yield broker
    await broker.mover.stop()
    broker.replicas.close()


async def test_a_partition_moves_with_what_is_appended_meanwhile(broker: Broker) -> None:
    broker.move(broker.b)
    append(broker.partition.log, 2, now_ms=NOW)
    await broker.finished()
    assert broker.partition.log.directory == broker.b / "t-0"
    assert offsets(read_all(broker.partition.log)) == [0, 1, 2, 3, 4]
    assert not broker.mover.moves


async def test_a_move_to_where_the_partition_is_ends_one_that_is_under_way(broker: Broker) -> None:
    broker.move(broker.b)
    broker.move(broker.a)
    await broker.finished()
    assert broker.partition.log.directory == broker.a / "t-0"
    assert not list(broker.b.glob("t-0*"))


async def test_the_same_move_twice_is_one(broker: Broker) -> None:
    broker.move(broker.b)
    [under_way] = broker.mover.moves.values()
    broker.move(broker.b)
    assert list(broker.mover.moves.values()) == [under_way]


async def test_stopping_leaves_the_partition_where_it_was(broker: Broker) -> None:
    broker.move(broker.b)
    await broker.mover.stop()
    assert broker.partition.log.directory == broker.a / "t-0"
    assert not list(broker.b.glob("t-0*"))


async def test_a_directory_of_no_broker_is_refused(broker: Broker, tmp_path: Path) -> None:
    with pytest.raises(KafkaError, match=r"is not one of this broker's log\.dirs") as raised:
        broker.move(tmp_path / "c")
    assert raised.value.code is ErrorCode.log_dir_not_found


async def test_a_partition_that_does_not_exist_yet_is_created_where_it_was_to_go(broker: Broker) -> None:
    with pytest.raises(KafkaError) as raised:
        broker.mover.move("t", 1, broker.b)
    assert raised.value.code is ErrorCode.unknown_topic_or_partition
    created = broker.replicas.become_leader(TopicPartition("t", 1), UUID(int=1), 0)
    assert created.log.directory == broker.b / "t-1"
