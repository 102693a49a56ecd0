import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest

from headrace.broker.apis.log_dirs import LogDirsApi
from headrace.broker.disks.log_mover import LogMover
from headrace.errors import ErrorCode, KafkaError
from headrace.replication.replica_manager import ReplicaManager
from headrace.storage.dirs.log_dirs import LogDirs
from headrace.storage.log.config import LogConfig
from headrace.types import PartitionState, TopicPartition
from headrace.wire.apis import ApiKey
from tests.unit.broker.asking import ask, raises_code
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


async def test_records_appended_during_a_move_are_moved_too(broker: Broker) -> None:
    broker.move(broker.b)
    append(broker.partition.log, 2, now_ms=NOW)
    await broker.finished()
    assert broker.partition.log.directory == broker.b / "t-0"
    assert offsets(read_all(broker.partition.log)) == [0, 1, 2, 3, 4]
    assert not broker.mover.moves


async def test_a_move_to_the_current_directory_cancels_a_move(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    broker.move(broker.b)
    broker.move(broker.a)
    await broker.finished()
    assert broker.partition.log.directory == broker.a / "t-0"
    assert not list(broker.b.glob("t-0*"))
    assert f"Stopped moving t-0 from {broker.a} to {broker.b}: a move to {broker.a} was requested" in caplog.text


async def test_repeating_a_move_changes_nothing(broker: Broker) -> None:
    broker.move(broker.b)
    [move] = broker.mover.moves.values()
    broker.move(broker.b)
    assert list(broker.mover.moves.values()) == [move]


async def test_stopping_leaves_the_partition_in_place(broker: Broker) -> None:
    broker.move(broker.b)
    await broker.mover.stop()
    assert broker.partition.log.directory == broker.a / "t-0"
    assert not list(broker.b.glob("t-0*"))


async def test_a_failed_move_says_where_the_partition_is_and_what_to_do(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.move(broker.b)
    [move] = broker.mover.moves.values()
    move.future.write_text("a file in the place of the copy")
    await broker.finished()
    assert broker.partition.log.directory == broker.a / "t-0"
    assert f"Moving t-0 from {broker.a} to {broker.b} failed: " in caplog.text
    assert "It stays in the old directory: correct the cause, then request the move again" in caplog.text


async def test_an_unknown_directory_is_refused(broker: Broker, tmp_path: Path) -> None:
    with pytest.raises(KafkaError, match=r"is not one of this broker's log\.dirs") as raised:
        broker.move(tmp_path / "c")
    assert raised.value.code is ErrorCode.log_dir_not_found


async def test_a_followed_partition_is_moved_and_truncated_meanwhile(broker: Broker) -> None:
    followed = broker.replicas.follow(PartitionState("t", UUID(int=1), 0, 2, 1, (0, 2), (2,), is_new=False))
    broker.move(broker.b)
    followed.truncate_to(1)
    append(followed.log, 1, now_ms=NOW)
    await broker.finished()
    assert followed.log.directory == broker.b / "t-0"
    assert offsets(read_all(followed.log)) == [0]  # the batch of three was truncated


async def test_a_partition_that_is_not_here_yet_is_created_in_the_requested_directory(broker: Broker) -> None:
    broker.replicas.exists = lambda topic_partition: topic_partition.partition == 1
    for index, code in ((1, ErrorCode.replica_not_available), (2, ErrorCode.unknown_topic_or_partition)):
        with raises_code(code):
            broker.mover.move("t", index, broker.b)
        created = broker.replicas.become_leader(TopicPartition("t", index), UUID(int=1), 0)
        assert created.log.directory == broker.b / f"t-{index}"


async def test_followed_partitions_are_described(broker: Broker) -> None:
    broker.replicas.follow(PartitionState("t", UUID(int=1), 0, 2, 1, (0, 2), (2,), is_new=False))
    reply = await ask(LogDirsApi(broker.replicas, broker.mover).routes(), ApiKey.DESCRIBE_LOG_DIRS, 4, {"topics": None})
    described = {result.log_dir: [topic.name for topic in result.topics] for result in reply.results}
    assert described == {str(broker.a): ["t"], str(broker.b): []}
