"""Fetches of followers through the API: reads, reported offsets and waits."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.apis.fetch import FetchApi
from headrace.broker.apis.partition_offsets import LATEST, PartitionOffsetsApi, find_bound
from headrace.broker.current_leader import CurrentLeader
from headrace.errors import ErrorCode
from headrace.replication.leading.isr_changes import Answer, IsrChange
from headrace.replication.leading.peers import Peers
from headrace.replication.partition import Partition
from headrace.replication.replica_manager import ReplicaManager
from headrace.replication.throttle import ReplicationThrottle
from headrace.replication.verification import UNVERIFIED
from headrace.storage.dirs.log_dirs import LogDirs
from headrace.storage.files.log_file import FileSlice
from headrace.storage.log.config import LogConfig
from headrace.types import PartitionState, TopicPartition
from headrace.wire.apis import ApiKey
from headrace.wire.batch import TRANSACTIONAL_FLAG
from headrace.wire.records import RecordData, build_batch
from tests.unit.broker.asking import TOPIC_ID, ask, client_at, fetch_fields, raises_code, send

NOW = 1_700_000_000_000
RECORD = build_batch([RecordData(b"k", bytes(1000), NOW)])
VERSION = 17
STATE = PartitionState("t", TOPIC_ID, 0, 1, 3, (1, 2, 3), (1, 2), is_new=False)


class Broker:
    """Broker 1 leads three partitions; 2 follows in the ISR, 3 outside of it."""

    def __init__(self, directory: Path) -> None:
        self.now_ms = 1000
        self.sent: list[IsrChange] = []
        self.racks: dict[int, str] = {}
        self.throttle = ReplicationThrottle(window_count=11, window_s=1)
        self.replicas = ReplicaManager(LogDirs.open([directory], broker_id=1), lambda _: LogConfig())
        peers = Peers(1, lambda _: True, lambda: 100, lambda: self.now_ms, self)
        self.partitions = []
        for index in range(3):
            partition = self.replicas.become_leader(TopicPartition("t", index), TOPIC_ID, 3)
            partition.lead(STATE, peers)
            self.partitions.append(partition)
        self.peers = peers
        self.api = FetchApi(
            self.replicas,
            lambda topic_id: "t" if topic_id == TOPIC_ID else None,
            loop=asyncio.get_running_loop(),
            max_sessions=10,
            max_bytes=50 << 20,
            throttle=self.throttle,
            rack_of=self.racks.get,
            leader_of=lambda topic, index, listener: CurrentLeader(7, 9, f"{listener}-{topic}-{index}", 9092, "r"),
        )
        self.client = client_at()

    def submit(self, change: IsrChange, _: Callable[[Answer], None]) -> None:
        self.sent.append(change)

    def append(self, index: int) -> Partition:
        self.partitions[index].append_as_leader(RECORD, now_ms=NOW)
        return self.partitions[index]

    async def list_offset(self, version: int, timestamp: int) -> Any:
        """Ask for an offset of the first partition as a consumer, and return the partition's response."""
        partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
        fields = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": "t", "partitions": [partition]}]}
        routes = PartitionOffsetsApi(self.replicas, lambda _: False).routes()
        response = await ask(routes, ApiKey.LIST_OFFSETS, version, fields)
        return response.topics[0].partitions[0]

    def fetch(self, offsets: dict[int, int], *, replica: int = 2, epoch: int = 3, **fields: Any) -> asyncio.Task[Any]:
        """Send a Fetch, and return a task for its response."""
        request = fetch_fields(offsets, replica=replica, epoch=epoch, **fields)
        return send({ApiKey.FETCH: self.api.fetch}, ApiKey.FETCH, VERSION, request, self.client)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    broker = Broker(tmp_path)
    yield broker
    broker.replicas.close()


def only(response: Any) -> Any:
    [topic] = response.responses
    [partition] = topic.partitions
    return partition


def named(response: Any) -> list[int]:
    return [partition.partition_index for topic in response.responses for partition in topic.partitions]


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_follower_reads_uncommitted_records_and_commits_them_with_its_next_fetch(broker: Broker) -> None:
    broker.append(0)
    assert len(only(await broker.fetch({0: 0})).records) == len(RECORD)
    assert not only(await broker.fetch({0: 0}, replica=-1)).records
    answer = only(await broker.fetch({0: 1}))
    assert (answer.high_watermark, answer.log_start_offset) == (1, 0)


async def test_the_second_read_of_a_request_moves_nothing(broker: Broker) -> None:
    waiting = broker.fetch({0: 0}, wait_ms=60_000)
    broker.append(0)
    assert len(only(await waiting).records) == len(RECORD)
    assert broker.partitions[0].high_watermark == 0


async def test_records_of_open_transactions_count_for_followers_of_any_isolation_level(broker: Broker) -> None:
    data = build_batch(
        [RecordData(b"k", b"v", NOW)], producer_id=4, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL_FLAG
    )
    broker.partitions[0].append_as_leader(data, now_ms=NOW, guard=UNVERIFIED)
    waiting = broker.fetch({0: 1}, min_bytes=3 * len(RECORD), wait_ms=60_000, read_committed=True)
    await turns()
    broker.append(0)
    broker.append(0)
    await turns()
    assert not waiting.done()
    broker.append(0)
    assert len(only(await asyncio.wait_for(waiting, 10)).records) == 3 * len(RECORD)


async def test_a_follower_is_woken_by_the_append(broker: Broker) -> None:
    waiting = broker.fetch({0: 0, 1: 0}, wait_ms=60_000)
    await turns()
    assert not waiting.done()
    broker.append(1)
    assert only_records(await waiting) == {1: len(RECORD)}


def only_records(response: Any) -> dict[int, int]:
    return {
        partition.partition_index: len(partition.records)
        for topic in response.responses
        for partition in topic.partitions
        if partition.records
    }


async def test_a_refused_fetch_moves_nothing(broker: Broker) -> None:
    expected = {
        "no replica": ((9, 3, 0), ErrorCode.unknown_leader_epoch),
        "old epoch": ((2, 2, 0), ErrorCode.fenced_leader_epoch),
        "new epoch": ((2, 4, 0), ErrorCode.unknown_leader_epoch),
        "beyond the end": ((2, 3, 7), ErrorCode.offset_out_of_range),
    }
    followers = broker.partitions[0].followers
    assert followers is not None
    for name, ((replica, epoch, offset), error) in expected.items():
        assert only(await broker.fetch({0: offset}, replica=replica, epoch=epoch)).error_code is error, name
        assert followers.state.followers[2].end_offset == -1, name


async def test_a_refusal_names_the_current_leader(broker: Broker) -> None:
    broker.replicas.exists = lambda _: True
    response = await broker.fetch({0: 0, 1: 0, 8: 0}, replica=-1, epoch=-1)
    [topic] = response.responses
    found = {
        partition.partition_index: (partition.error_code, partition.current_leader.leader_id)
        for partition in topic.partitions
    }
    assert found == {0: (ErrorCode.none, -1), 1: (ErrorCode.none, -1), 8: (ErrorCode.not_leader_or_follower, 7)}
    [node] = response.node_endpoints
    assert (node.node_id, node.host, node.port, node.rack) == (7, "PLAINTEXT-t-8", 9092, "r")
    fenced = await broker.fetch({0: 0}, replica=-1, epoch=2)
    assert only(fenced).current_leader.leader_epoch == 9


async def test_a_diverging_follower_learns_where_to_truncate(broker: Broker) -> None:
    broker.append(0)
    broker.partitions[0].lead(STATE._replace(leader_epoch=5, partition_epoch=1), broker.peers)
    answer = only(await broker.fetch({0: 4}, epoch=5, last_epoch=4))
    assert (answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset) == (3, 1)
    assert broker.partitions[0].high_watermark == 0


async def test_a_follower_that_has_truncated_gets_the_high_watermark(broker: Broker) -> None:
    broker.append(0)
    await broker.fetch({0: 1})
    broker.partitions[0].lead(STATE._replace(leader_epoch=5, partition_epoch=1), broker.peers)
    first = await broker.fetch({0: 4}, epoch=5, last_epoch=4, session=(0, 0))
    second = await broker.fetch({0: 1}, epoch=5, last_epoch=3, session=(first.session_id, 1))
    assert only(second).high_watermark == 1


async def test_a_fetch_under_the_previous_leader_epoch_ends_with_it(broker: Broker) -> None:
    waiting = broker.fetch({0: 0}, wait_ms=60_000)
    broker.partitions[0].lead(STATE._replace(leader_epoch=4, partition_epoch=1), broker.peers)
    assert only(await waiting).error_code is ErrorCode.fenced_leader_epoch


async def test_a_session_reports_high_watermarks_without_waking_for_them(broker: Broker) -> None:
    first = await broker.fetch(dict.fromkeys(range(3), 0), session=(0, 0))
    await broker.fetch({}, session=(first.session_id, 1))
    waiting = broker.fetch({}, session=(first.session_id, 2), wait_ms=60_000)
    broker.append(2)
    assert only_records(await waiting) == {2: len(RECORD)}
    waiting = broker.fetch({2: 1}, session=(first.session_id, 3), wait_ms=60_000)
    await turns()
    assert not waiting.done()
    assert broker.partitions[2].high_watermark == 1
    broker.append(0)
    response = await waiting
    assert sorted(named(response)) == [0, 2]


async def test_a_session_without_news_keeps_its_follower_in_sync(broker: Broker) -> None:
    first = await broker.fetch({0: 0}, session=(0, 0))
    session = broker.api._sessions._sessions[first.session_id]
    session.last_used_ms = broker.now_ms = 50_000
    partition = broker.append(0)
    followers = partition.followers
    assert followers is not None
    assert followers.state.followers[2].caught_up_ms == 50_000
    followers.check()
    assert not broker.sent


async def test_followers_in_sync_share_one_read(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.partitions[0].lead(STATE._replace(partition_epoch=1, isr=(1, 2, 3)), broker.peers)
    broker.append(0)
    read = FileSlice.read
    reads: list[int] = []

    def counted(part: FileSlice) -> bytes:
        reads.append(part.size)
        return read(part)

    monkeypatch.setattr(FileSlice, "read", counted)
    first = only(await broker.fetch({0: 0}, replica=2)).records
    no_replica = only(await broker.fetch({0: 0}, replica=9))
    assert (no_replica.error_code, no_replica.records) == (ErrorCode.unknown_leader_epoch, b"")
    second = only(await broker.fetch({0: 0}, replica=3)).records
    assert bytes(first) == bytes(second) != b""
    assert reads == [len(RECORD)]


async def test_a_shared_read_is_not_used_for_other_records(broker: Broker) -> None:
    broker.partitions[0].lead(STATE._replace(partition_epoch=1, isr=(1, 2, 3)), broker.peers)
    broker.append(0)
    assert len(only(await broker.fetch({0: 0}, replica=2)).records) == len(RECORD)
    broker.append(0)
    assert len(only(await broker.fetch({0: 0}, replica=3)).records) == 2 * len(RECORD)


async def test_a_session_with_little_room_serves_its_partitions_in_turn(broker: Broker) -> None:
    for index in range(3):
        broker.append(index)
    room = len(RECORD)
    first = await broker.fetch({0: 0, 1: 0, 2: 0}, session=(0, 0), max_bytes=room)
    served = [index for index in named(first) if records_of(first, index)]
    for epoch in (1, 2):
        reply = await broker.fetch({}, session=(first.session_id, epoch), max_bytes=room)
        served += [index for index in named(reply) if records_of(reply, index)]
    assert served == [0, 1, 2]


def records_of(response: Any, index: int) -> bytes:
    partitions = [item for topic in response.responses for item in topic.partitions if item.partition_index == index]
    return bytes(partitions[0].records or b"")


async def test_a_fetch_of_a_follower_marks_its_connection(broker: Broker) -> None:
    await broker.fetch({0: 0}, replica=-1)
    assert not broker.client.is_broker
    await broker.fetch({0: 0}, replica=2)
    assert broker.client.is_broker


async def test_a_throttled_follower_outside_the_isr_waits(broker: Broker) -> None:
    broker.append(0)
    broker.throttle.configure("t", "0:1", 1)
    broker.throttle.rate = 10
    assert only(await broker.fetch({0: 0}, replica=3)).records  # the first bytes exceed the rate
    assert not only(await broker.fetch({0: 0}, replica=3)).records
    assert only(await broker.fetch({0: 0}, replica=2)).records
    waiting = broker.fetch({0: 0}, replica=3, wait_ms=60_000)
    broker.append(0)
    await turns()
    assert not waiting.done()
    waiting.cancel()


async def test_a_consumer_is_sent_to_a_follower_in_its_rack(broker: Broker) -> None:
    broker.append(0)
    broker.racks = {1: "a", 2: "b", 3: "b"}
    broker.api._rack_of = broker.racks.get
    await broker.fetch({0: 0}, replica=2)
    await broker.fetch({0: 1}, replica=2)
    answer = only(await broker.fetch({0: 0}, replica=-1, rack="b", wait_ms=60_000))
    assert (answer.preferred_read_replica, answer.records, answer.high_watermark) == (2, b"", 1)


async def test_consumers_without_a_follower_in_their_rack_read_from_the_leader(broker: Broker) -> None:
    broker.append(0)
    broker.racks = {1: "a", 2: "b", 3: "b"}
    broker.api._rack_of = broker.racks.get
    await broker.fetch({0: 1}, replica=2)
    for rack in ("a", "c", ""):  # the leader's, nobody's, none
        answer = only(await broker.fetch({0: 0}, replica=-1, rack=rack))
        assert (answer.preferred_read_replica, len(answer.records)) == (-1, len(RECORD)), rack


async def test_the_latest_offset_is_unknown_until_the_followers_have_fetched_from_a_new_leader(broker: Broker) -> None:
    partition = broker.append(0)
    partition.lead(STATE._replace(leader_epoch=4, partition_epoch=1), broker.peers)
    with raises_code(ErrorCode.offset_not_available):
        find_bound(partition, LATEST, read_committed=False)
    assert find_bound(partition, LATEST, read_committed=False, is_follower=True) == (-1, 1, 4)
    await broker.fetch({0: 1}, epoch=4)
    assert find_bound(partition, LATEST, read_committed=False) == (-1, 1, 4)


async def test_clients_retry_while_the_latest_offset_is_unknown(broker: Broker) -> None:
    broker.append(0).lead(STATE._replace(leader_epoch=4, partition_epoch=1), broker.peers)
    for version, code in ((4, ErrorCode.leader_not_available), (5, ErrorCode.offset_not_available)):
        for timestamp in (LATEST, NOW + 1):
            answer = await broker.list_offset(version, timestamp)
            assert (answer.error_code, answer.offset) == (code, -1), (version, timestamp)


class Followed:
    """Partition 5, which broker 2 leads and this one follows, with one record of three committed."""

    def __init__(self, broker: Broker) -> None:
        self.state = PartitionState("t", TOPIC_ID, 5, 2, 3, (2, 1), (2, 1), is_new=True)
        broker.replicas.open(TopicPartition("t", 5), TOPIC_ID, is_new=True)
        self.partition = broker.replicas.follow(self.state)
        records = b"".join(build_batch([RecordData(b"k", bytes(1000), NOW)], base_offset=offset) for offset in range(3))
        self.partition.append_fetched(memoryview(records), NOW)
        self.partition.learn(1, 0)


async def test_only_a_consumer_reads_from_a_follower_and_only_what_is_committed(broker: Broker) -> None:
    followed = Followed(broker)
    answer = only(await broker.fetch({5: 0}, replica=-1))
    assert (answer.error_code, answer.high_watermark, len(answer.records)) == (ErrorCode.none, 1, len(RECORD))
    assert only(await broker.fetch({5: 0}, replica=3)).error_code is ErrorCode.not_leader_or_follower

    waiting = broker.fetch({5: 1}, replica=-1, wait_ms=60_000)
    await turns()
    assert not waiting.done()
    followed.partition.learn(2, 0)
    assert len(only(await waiting).records) == len(RECORD)


async def test_a_consumer_of_a_follower_in_a_session_learns_of_news(broker: Broker) -> None:
    followed = Followed(broker)
    first = await broker.fetch({5: 1}, replica=-1, session=(0, 0))
    waiting = broker.fetch({}, replica=-1, session=(first.session_id, 1), wait_ms=60_000)
    await turns()
    followed.partition.learn(3, 0)
    assert len(only(await waiting).records) == 2 * len(RECORD)


async def test_a_consumer_of_a_follower_notices_that_it_leads(broker: Broker) -> None:
    followed = Followed(broker)
    waiting = broker.fetch({5: 1}, replica=-1, wait_ms=60_000)
    await turns()
    broker.replicas.peers = broker.peers
    broker.replicas.lead(followed.state._replace(leader=1, leader_epoch=4))
    assert only(await waiting).error_code is ErrorCode.fenced_leader_epoch
