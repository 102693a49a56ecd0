"""Produce to topics with `flush.messages=1`."""

import asyncio
import time
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from headrace.broker.apis.produce import ProduceApi
from headrace.broker.apis.produce_transactions import TransactionVerification
from headrace.broker.current_leader import CurrentLeader
from headrace.broker.large_batches import MAX_AT_ONCE
from headrace.config import BrokerConfig
from headrace.errors import ErrorCode
from headrace.promise import Promise
from headrace.replication.purgatory import Purgatory
from headrace.replication.replica_manager import ReplicaManager
from headrace.storage.dirs.log_dirs import LogDirs
from headrace.storage.log.config import LogConfig
from headrace.types import TopicPartition
from headrace.wire.apis import ApiKey
from headrace.wire.records import RecordData, build_batch
from tests.support.flush_disk import Disk
from tests.unit.broker.asking import ask, produce_fields
from tests.unit.broker.fake_coordinator import Coordinator

T = TopicPartition("t", 0)
NOW = 1_700_000_000_000
CONFIG = LogConfig(flush_messages=1, max_message_bytes=MAX_AT_ONCE + 10_000)


class Broker:
    """A partition on a blocked disk."""

    def __init__(self, directory: Path, disk: Disk) -> None:
        self.purgatory = Purgatory(asyncio.get_running_loop())
        self.replicas = ReplicaManager(LogDirs.open([directory], broker_id=0), lambda _: CONFIG, self.purgatory)
        disk.hold(self.replicas.become_leader(T, UUID(int=5), 0))
        verification = TransactionVerification(self.replicas, lambda _: "t", Coordinator(), BrokerConfig())
        self.api = ProduceApi(self.replicas, lambda _: "t", self.purgatory, verification)

    def produce(self, acks: int, timeout_ms: int = 60_000) -> asyncio.Task[ErrorCode]:
        return asyncio.ensure_future(self._produce(acks, timeout_ms))

    async def _produce(self, acks: int, timeout_ms: int) -> ErrorCode:
        records = build_batch([RecordData(b"k", b"v", NOW)])
        fields = produce_fields({0: records}, acks=acks, timeout_ms=timeout_ms)
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


SECOND_NS = 1_000_000_000


@pytest.mark.parametrize("slow", ["disk", "follower"])
async def test_only_a_slow_flush_prolongs_the_wait_for_the_disk(
    broker: Broker, disk: Disk, monkeypatch: pytest.MonkeyPatch, slow: str
) -> None:
    now_ns = [NOW * 1_000_000]
    monkeypatch.setattr(time, "time_ns", lambda: now_ns[0])
    replicated: Promise[None] = Promise()
    monkeypatch.setattr(broker.purgatory, "completion", lambda *_, **__: replicated)
    slow_disk = broker.purgatory.slow_disk
    slow_disk.stalled(now_ns[0], SECOND_NS)
    first_end_ns = slow_disk.until_ns

    response = broker.produce(-1)
    assert await asyncio.to_thread(disk.begun.wait, 10)
    partition = broker.replicas.get("t", 0)
    if slow == "disk":
        replicated.set_result(None)
        now_ns[0] += SECOND_NS
        disk.free.set()
    else:
        flushed = broker.purgatory.flushed(partition, 1)
        disk.free.set()
        await flushed
        now_ns[0] += SECOND_NS
        replicated.set_result(None)
    assert await response is ErrorCode.none
    assert slow_disk.until_ns - first_end_ns == (SECOND_NS if slow == "disk" else 0)


async def test_a_large_batch_uses_its_topics_config_though_another_partition_is_led_elsewhere(
    broker: Broker, disk: Disk
) -> None:
    disk.free.set()
    records = build_batch([RecordData(b"k", b"v" * MAX_AT_ONCE, NOW)])
    fields = produce_fields({3: records, 0: records}, acks=1)
    response: Any = await ask({ApiKey.PRODUCE: broker.api.produce}, ApiKey.PRODUCE, 9, fields)
    codes = {part.index: part.error_code for part in response.responses[0].partition_responses}
    assert codes == {3: ErrorCode.unknown_topic_or_partition, 0: ErrorCode.none}


async def test_a_refusal_names_the_current_leader(broker: Broker) -> None:
    broker.replicas.exists = lambda _: True
    broker.api._leader_of = lambda topic, index, listener: CurrentLeader(7, 9, f"{topic}-{index}", 9092, None)
    fields = produce_fields({3: b""}, acks=1)
    response: Any = await ask({ApiKey.PRODUCE: broker.api.produce}, ApiKey.PRODUCE, 10, fields)
    [partition] = response.responses[0].partition_responses
    assert partition.error_code is ErrorCode.not_leader_or_follower
    assert (partition.current_leader.leader_id, partition.current_leader.leader_epoch) == (7, 9)
    [node] = response.node_endpoints
    assert (node.node_id, node.host, node.port, node.rack) == (7, "t-3", 9092, None)
