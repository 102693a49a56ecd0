"""Produce to topics with `flush.messages=1`."""

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from headrace.broker.apis.produce import ProduceApi
from headrace.broker.apis.produce_transactions import TransactionVerification
from headrace.broker.current_leader import CurrentLeader
from headrace.config import BrokerConfig
from headrace.errors import ErrorCode
from headrace.replication.purgatory import Purgatory
from headrace.replication.replica_manager import ReplicaManager
from headrace.storage.dirs.log_dirs import LogDirs
from headrace.storage.log.config import LogConfig
from headrace.types import TopicPartition
from headrace.wire.apis import ApiKey
from headrace.wire.records import RecordData, build_batch
from tests.support.flush_disk import Disk
from tests.unit.broker.asking import ask
from tests.unit.broker.test_produce_transactions import Coordinator

T = TopicPartition("t", 0)
NOW = 1_700_000_000_000


class Broker:
    """A partition on a blocked disk."""

    def __init__(self, directory: Path, disk: Disk) -> None:
        self.purgatory = Purgatory(asyncio.get_running_loop())
        self.replicas = ReplicaManager(
            LogDirs.open([directory], broker_id=0), lambda _: LogConfig(flush_messages=1), self.purgatory
        )
        disk.hold(self.replicas.become_leader(T, UUID(int=5), 0))
        verification = TransactionVerification(self.replicas, lambda _: "t", Coordinator(), BrokerConfig())
        self.api = ProduceApi(self.replicas, lambda _: "t", self.purgatory, verification)

    def produce(self, acks: int, timeout_ms: int = 60_000) -> asyncio.Task[ErrorCode]:
        return asyncio.ensure_future(self._produce(acks, timeout_ms))

    async def _produce(self, acks: int, timeout_ms: int) -> ErrorCode:
        records = build_batch([RecordData(b"k", b"v", NOW)])
        fields = {
            "transactional_id": None,
            "acks": acks,
            "timeout": timeout_ms,
            "topic_data": [{"name": "t", "partition_data": [{"index": 0, "records": records}]}],
        }
        response: Any = await ask({ApiKey.PRODUCE: self.api.produce}, ApiKey.PRODUCE, 9, fields)
        return ErrorCode(response.responses[0].partition_responses[0].error_code)


@pytest.fixture
async def broker(tmp_path: Path, disk: Disk) -> Broker:
    return Broker(tmp_path, disk)


@pytest.fixture(autouse=True)
async def closed(broker: Broker, disk: Disk) -> object:
    yield
    disk.free.set()
    broker.purgatory.close()
    broker.replicas.close()


@pytest.mark.parametrize("acks", [1, -1])
async def test_the_response_follows_the_flush(broker: Broker, disk: Disk, acks: int) -> None:
    response = broker.produce(acks)
    assert await asyncio.to_thread(disk.begun.wait, 10)
    assert not response.done()
    disk.free.set()
    assert await response is ErrorCode.none


async def test_acks_all_ends_after_the_timeout(broker: Broker) -> None:
    assert await broker.produce(-1, timeout_ms=1) is ErrorCode.request_timed_out


async def test_deleting_the_partition_ends_the_wait(broker: Broker, disk: Disk) -> None:
    response = broker.produce(-1)
    assert await asyncio.to_thread(disk.begun.wait, 10)
    broker.replicas.withdraw([T])
    assert await response is ErrorCode.unknown_topic_or_partition


async def test_a_refusal_names_the_current_leader(broker: Broker) -> None:
    broker.replicas.exists = lambda _: True
    broker.api._leader_of = lambda topic, index, listener: CurrentLeader(7, 9, f"{topic}-{index}", 9092, None)
    fields = {
        "transactional_id": None,
        "acks": 1,
        "timeout": 1000,
        "topic_data": [{"name": "t", "partition_data": [{"index": 3, "records": b""}]}],
    }
    response: Any = await ask({ApiKey.PRODUCE: broker.api.produce}, ApiKey.PRODUCE, 10, fields)
    [partition] = response.responses[0].partition_responses
    assert partition.error_code is ErrorCode.not_leader_or_follower
    assert (partition.current_leader.leader_id, partition.current_leader.leader_epoch) == (7, 9)
    [node] = response.node_endpoints
    assert (node.node_id, node.host, node.port, node.rack) == (7, "t-3", 9092, None)
