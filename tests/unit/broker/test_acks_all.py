"""Produce with acks=all and the fetches of two followers, without a turn of the event loop in between."""

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import cast

import pytest

from headrace.broker.apis.fetch import FetchApi
from headrace.broker.apis.produce import ProduceApi
from headrace.broker.apis.produce_transactions import TransactionVerification
from headrace.config import BrokerConfig
from headrace.errors import ErrorCode
from headrace.promise import Promise
from headrace.replication.leading.isr_changes import Answer, IsrChange
from headrace.replication.leading.peers import Peers
from headrace.replication.purgatory import Purgatory
from headrace.replication.replica_manager import ReplicaManager
from headrace.server.dispatch import Dispatcher
from headrace.server.frames import Parts
from headrace.server.loop.turns import Turns
from headrace.server.runs import Executed
from headrace.storage.dirs.log_dirs import LogDirs
from headrace.storage.log.config import LogConfig
from headrace.types import Buffer, PartitionState, TopicPartition
from headrace.wire.apis import ApiKey, request_encoder
from headrace.wire.fetched import ENTRY, FetchLimits, encode_fetch
from headrace.wire.records import RecordData, build_batch
from tests.unit.broker.asking import TOPIC_ID, client_at, produce_fields
from tests.unit.broker.fake_coordinator import Coordinator

NOW = 1_700_000_000_000
CONFIG = LogConfig()
STATE = PartitionState("t", TOPIC_ID, 0, 1, 3, (1, 2, 3), (1, 2, 3), is_new=False)


class Broker:
    """The leader of two partitions, with followers 2 and 3. The event loop does not run."""

    def __init__(self, directory: Path, config: LogConfig = CONFIG) -> None:
        self.calls: list[Callable[[], None]] = []
        self.purgatory = Purgatory(asyncio.get_running_loop())
        self.replicas = ReplicaManager(LogDirs.open([directory], broker_id=1), lambda _: config, self.purgatory)
        peers = Peers(1, lambda _: True, lambda: 10_000, lambda: 1000, self)
        for index in range(2):
            partition = self.replicas.become_leader(TopicPartition("t", index), TOPIC_ID, 3)
            partition.lead(STATE, peers)
        turns = Turns(self.calls.append, clock=lambda: 0)
        fetch = FetchApi(
            self.replicas,
            lambda _: "t",
            loop=asyncio.get_running_loop(),
            max_sessions=10,
            max_bytes=1 << 20,
            turns=turns,
        )
        verification = TransactionVerification(self.replicas, lambda _: "t", Coordinator(), BrokerConfig())
        produce = ProduceApi(self.replicas, lambda _: "t", self.purgatory, verification, turns=turns)
        self.dispatcher = Dispatcher()
        self.dispatcher.add_routes(fetch.routes())
        self.dispatcher.add_produce(produce.produce, produce.produce_run, produce.produce_many)

    def submit(self, change: IsrChange, _: Callable[[Answer], None]) -> None:
        raise AssertionError(f"the in-sync replicas do not change: {change}")

    def handle(self, api_key: ApiKey, version: int, body: Buffer) -> Parts | Awaitable[Parts]:
        head = struct.pack(">hhih", api_key, version, 9, -1) + (b"\0" if version > 8 else b"")
        return self.dispatcher.handle(client_at(), memoryview(head + bytes(body)))

    def ask(self, api_key: ApiKey, version: int, body: Buffer) -> Promise[Parts]:
        answer = self.handle(api_key, version, body)
        answer = answer.reply if isinstance(answer, Executed) else answer
        assert isinstance(answer, Promise)
        return answer

    def fetch(self, follower: int, offset: int) -> Promise[Parts]:
        """Fetch both partitions, the first from `offset` on."""
        entries = {
            (TOPIC_ID.bytes, index): ENTRY.pack(index, 3, offset * (index == 0), -1, 0, 1 << 20, 0)
            for index in range(2)
        }
        limits = FetchLimits(max_wait_ms=60_000, min_bytes=1, max_bytes=1 << 20)
        return self.ask(ApiKey.FETCH, 17, encode_fetch(limits, (0, -1), entries, [], (follower, -1)))

    def produce(self, size: int, *indexes: int) -> Promise[Parts]:
        return self.ask(ApiKey.PRODUCE, 8, self.records(size, *indexes))

    @staticmethod
    def records(size: int, *indexes: int, acks: int = -1) -> Buffer:
        """Return the body of a Produce request."""
        batch = build_batch([RecordData(b"k", bytes(size), NOW)])
        out = bytearray()
        request_encoder(ApiKey.PRODUCE, 8)(out, produce_fields(dict.fromkeys(indexes, batch), acks=acks))
        return out


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    broker = Broker(tmp_path)
    yield broker
    broker.purgatory.close()
    broker.replicas.close()


async def test_a_record_is_sent_to_its_followers_within_the_request_and_answered_within_their_fetches(
    broker: Broker,
) -> None:
    fetches = [broker.fetch(follower, 0) for follower in (2, 3)]
    assert not any(fetch.done() for fetch in fetches)

    produced = broker.produce(10, 0)
    assert all(fetch.done() for fetch in fetches)

    broker.fetch(2, 1)
    assert not produced.done()
    broker.fetch(3, 1)
    assert produced.done()
    assert broker.calls == []


@pytest.mark.parametrize(("size", "indexes"), [(10, (0, 1)), (10_000, (0,))])
async def test_more_records_are_sent_in_the_next_turn_perhaps_with_those_of_other_requests(
    broker: Broker, size: int, indexes: tuple[int, ...]
) -> None:
    fetch = broker.fetch(2, 0)
    for _ in range(2):
        broker.produce(size, *indexes)
    assert not fetch.done()

    [call] = broker.calls
    call()
    assert sum(len(cast(bytes, part)) for part in fetch.result()) > 2 * len(indexes) * size


async def test_a_deleted_partition_ends_the_wait_at_once(broker: Broker) -> None:
    produced = broker.produce(10, 0)
    broker.replicas.withdraw([TopicPartition("t", 0)])
    [reply] = produced.result()
    # size, correlation id, one topic, its name, one partition
    assert ErrorCode(int.from_bytes(cast(bytes, reply)[23:25], "big")) is ErrorCode.unknown_topic_or_partition


async def test_a_client_that_waits_for_a_flush_of_replicated_records_may_send_more_meanwhile(tmp_path: Path) -> None:
    broker = Broker(tmp_path, LogConfig(flush_messages=1))
    answer = broker.handle(ApiKey.PRODUCE, 8, broker.records(10, 0, acks=1))
    assert isinstance(answer, Executed)
    async with asyncio.timeout(5):
        await answer
    broker.purgatory.close()
    broker.replicas.close()
