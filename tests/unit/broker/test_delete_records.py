"""DeleteRecords waits until all live replicas have deleted the records."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.apis.partition_offsets import PartitionOffsetsApi
from headrace.errors import ErrorCode, KafkaError
from headrace.replication.leading.isr_changes import IsrChange
from headrace.replication.leading.peers import Peers
from headrace.replication.replica_manager import ReplicaManager
from headrace.storage.dirs.log_dirs import LogDirs
from headrace.storage.log.config import LogConfig
from headrace.types import PartitionState, TopicPartition
from headrace.wire.apis import ApiKey
from headrace.wire.records import RecordData, build_batch
from tests.unit.broker.asking import TOPIC_ID, ask

NOW = 1_700_000_000_000
TP = TopicPartition("t", 0)
RECORD = build_batch([RecordData(None, b"v", NOW)])
STATE = PartitionState("t", TOPIC_ID, 0, 1, 0, (1, 2, 3), (1, 2), is_new=False)
LONG_MS, SHORT_MS = 60_000, 1


class Leader:
    """Broker 1 leads ten committed records; 2 and 3 follow."""

    def __init__(self, directory: Path) -> None:
        self.alive = {1, 2, 3}
        self.replicas = ReplicaManager(LogDirs.open([directory], broker_id=1), lambda _: LogConfig())
        self.partition = self.replicas.become_leader(TP, TOPIC_ID, 0)
        self.peers = Peers(1, lambda broker: broker in self.alive, lambda: 100, lambda: 1000, self)
        self.partition.lead(STATE, self.peers)
        for _ in range(10):
            self.partition.append_as_leader(RECORD, now_ms=NOW)
        self.fetch(2, 0)
        self.fetch(3, 0)
        assert self.partition.high_watermark == 10
        self.routes = PartitionOffsetsApi(self.replicas, lambda _: False).routes()

    def submit(self, change: IsrChange, done: object) -> None:
        """The controller does not answer."""

    def fetch(self, follower: int, log_start_offset: int) -> None:
        self.partition.fetched_by(follower, 10, log_start_offset, -1)

    async def delete(self, offset: int, *, timeout_ms: int = LONG_MS) -> tuple[ErrorCode, int]:
        topics = [{"name": "t", "partitions": [{"partition_index": 0, "offset": offset}]}]
        reply: Any = await ask(self.routes, ApiKey.DELETE_RECORDS, 2, {"topics": topics, "timeout": timeout_ms})
        (result,) = reply.topics[0].partitions
        return ErrorCode(result.error_code), result.low_watermark

    async def waiting(self, offset: int) -> "asyncio.Task[tuple[ErrorCode, int]]":
        """Return a request that waits for the followers."""
        task = asyncio.create_task(self.delete(offset))
        async with asyncio.timeout(5):
            while self.partition.followers is None or self.partition.followers.deletions is None:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        return task


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[Leader]:
    leader = Leader(tmp_path)
    yield leader
    leader.replicas.close()


async def test_the_reply_also_waits_for_followers_outside_the_isr(leader: Leader) -> None:
    task = await leader.waiting(5)
    leader.fetch(2, 5)
    await asyncio.sleep(0)
    assert not task.done()
    leader.fetch(3, 7)
    assert await task == (ErrorCode.none, 5)
    assert await leader.delete(4) == (ErrorCode.none, 5)


async def test_the_high_watermark_at_the_request_is_the_goal(leader: Leader) -> None:
    task = await leader.waiting(-1)
    leader.fetch(2, 10)
    leader.fetch(3, 10)
    assert await task == (ErrorCode.none, 10)


async def test_a_follower_that_is_too_slow_lets_the_request_time_out(leader: Leader) -> None:
    leader.fetch(2, 5)
    assert await leader.delete(5, timeout_ms=SHORT_MS) == (ErrorCode.request_timed_out, 0)
    assert leader.partition.log_start_offset == 5


async def test_a_follower_that_dies_during_the_wait_does_not_count(leader: Leader) -> None:
    task = await leader.waiting(5)
    leader.fetch(2, 5)
    leader.alive.discard(3)
    assert leader.partition.followers is not None
    leader.partition.followers.check()
    assert await task == (ErrorCode.none, 5)


async def test_a_leader_that_resigns_ends_the_wait(leader: Leader) -> None:
    task = await leader.waiting(5)
    leader.partition.fail_waits(KafkaError(ErrorCode.not_leader_or_follower, "test"))
    assert await task == (ErrorCode.not_leader_or_follower, -1)


async def test_a_partition_that_loses_its_followers_needs_no_wait(leader: Leader) -> None:
    task = await leader.waiting(5)
    leader.partition.lead(STATE._replace(partition_epoch=1, replicas=(1,), isr=(1,)), leader.peers)
    assert await task == (ErrorCode.none, 5)


async def test_followers_without_a_fetch_hold_the_reply_back(leader: Leader) -> None:
    leader.partition.lead(STATE._replace(partition_epoch=1, replicas=(1, 2, 3, 4)), leader.peers)
    leader.alive.add(4)
    leader.fetch(2, 5)
    leader.fetch(3, 5)
    assert await leader.delete(5, timeout_ms=SHORT_MS) == (ErrorCode.request_timed_out, -1)
