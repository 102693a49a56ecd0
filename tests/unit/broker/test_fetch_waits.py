"""Fetches that wait for data: cost per append, completion, and contents."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.apis import fetch as fetch_module
from headrace.broker.apis import fetch_waits
from headrace.broker.apis.fetch import FetchApi
from headrace.broker.apis.fetch_news import SessionNews
from headrace.errors import ErrorCode
from headrace.replication.partition import Partition
from headrace.replication.replica_manager import ReplicaManager
from headrace.replication.verification import UNVERIFIED
from headrace.server.large_requests import WaitingPartitions
from headrace.storage.dirs.log_dirs import LogDirs
from headrace.storage.files.log_file import FileSlice
from headrace.storage.log.config import LogConfig
from headrace.storage.log.indexes.txn_index import AbortedTransaction
from headrace.storage.log.reader import LogReader
from headrace.types import TopicPartition
from headrace.wire.apis import ApiKey
from headrace.wire.batch import TRANSACTIONAL_FLAG
from headrace.wire.control import Marker
from headrace.wire.records import RecordData, build_batch
from tests.unit.broker.asking import TOPIC_ID, client_at, fetch_fields, send

NOW = 1_700_000_000_000
FOREVER_MS = 0x7FFFFFFF
RECORD = build_batch([RecordData(b"k", bytes(1000), NOW)])
SIZE = len(RECORD)


class Broker:
    """A broker with one topic of three partitions."""

    def __init__(self, directory: Path) -> None:
        self.config = LogConfig()
        self.replicas = ReplicaManager(LogDirs.open([directory], broker_id=0), lambda _: self.config)
        self.partitions = [self.replicas.become_leader(TopicPartition("t", index), TOPIC_ID, 0) for index in range(3)]
        self.api = FetchApi(
            self.replicas,
            lambda _: "t",
            loop=asyncio.get_running_loop(),
            max_sessions=10,
            max_bytes=50 << 20,
        )
        self.client = client_at()

    def append(self, index: int, count: int = 1) -> Partition:
        partition = self.partitions[index]
        for _ in range(count):
            partition.append_as_leader(RECORD, now_ms=NOW)
        return partition

    def fetch(
        self, *, offsets: dict[int, int] | None = None, wait_ms: int = FOREVER_MS, **fields: Any
    ) -> asyncio.Task[Any]:
        """Send a Fetch of all partitions from offset 0 on, or of `offsets`; return a task for its response."""
        wanted = dict.fromkeys(range(len(self.partitions)), 0) if offsets is None else offsets
        request = fetch_fields(wanted, wait_ms=wait_ms, **fields)
        return send({ApiKey.FETCH: self.api.fetch}, ApiKey.FETCH, 11, request, self.client)

    @property
    def watchers(self) -> int:
        return sum(len(partition.growth.watchers) for partition in self.partitions)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    broker = Broker(tmp_path)
    yield broker
    broker.replicas.close()


@pytest.fixture
def reads(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The indexes of partitions that fetches have read."""
    read_partitions: list[int] = []
    original = broker.api.read

    def read(wanted: Any, *arguments: Any, **more: Any) -> Any:
        read_partitions.append(wanted.index)
        return original(wanted, *arguments, **more)

    monkeypatch.setattr(broker.api, "read", read)
    return read_partitions


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def sizes(response: Any) -> dict[int, int]:
    (topic,) = response.responses
    return {partition.partition_index: len(partition.records or b"") for partition in topic.partitions}


async def test_nothing_is_read_until_all_partitions_together_have_min_bytes(broker: Broker, reads: list[int]) -> None:
    waiting = broker.fetch(min_bytes=3 * SIZE)
    reads.clear()
    broker.append(0)
    broker.append(2)
    await turns()
    assert (waiting.done(), reads) == (False, [])
    broker.append(2)

    assert sizes(await waiting) == {0: SIZE, 1: 0, 2: 2 * SIZE}
    assert broker.watchers == 0
    assert broker.client.give_up is None


async def test_bytes_over_the_limit_of_a_partition_do_not_count(broker: Broker, reads: list[int]) -> None:
    waiting = broker.fetch(min_bytes=3 * SIZE, partition_bytes=SIZE)
    reads.clear()
    broker.append(0, 10)
    broker.append(1)
    await turns()
    assert (waiting.done(), reads) == (False, [])
    broker.append(2)

    assert sizes(await waiting) == {0: SIZE, 1: SIZE, 2: SIZE}


async def test_a_fetch_waits_for_no_more_than_max_bytes(broker: Broker) -> None:
    waiting = broker.fetch(min_bytes=1 << 30, max_bytes=2 * SIZE)
    broker.append(0, 2)

    assert sizes(await waiting)[0] == 2 * SIZE


async def test_earlier_records_count(broker: Broker) -> None:
    broker.append(1, 2)
    waiting = broker.fetch(min_bytes=3 * SIZE)
    await turns()
    assert not waiting.done()
    broker.append(1)

    assert sizes(await waiting)[1] == 3 * SIZE


async def test_the_rest_of_an_older_segment_is_returned_at_once(broker: Broker) -> None:
    broker.append(0)
    waiting = broker.fetch(min_bytes=100 * SIZE)
    broker.partitions[0].log.roll(NOW)
    broker.append(0)

    assert sizes(await waiting)[0] == SIZE


async def test_bytes_of_a_new_segment_count_if_the_older_one_was_read(broker: Broker) -> None:
    broker.append(0)
    waiting = broker.fetch(min_bytes=2 * SIZE, offsets={0: 1})
    broker.partitions[0].log.roll(NOW)
    broker.append(0)
    await turns()
    assert not waiting.done()
    broker.append(0)

    assert sizes(await waiting) == {0: 2 * SIZE}


async def test_an_append_survives_a_session_changed_by_another_request(broker: Broker) -> None:
    first = await broker.fetch(session=(0, 0), wait_ms=0)
    waiting = broker.fetch(session=(first.session_id, 1), offsets={})
    session = next(iter(broker.api._sessions._sessions.values()))
    session.partitions.clear()
    broker.append(2)
    await turns()

    assert not waiting.done()
    waiting.cancel()
    await turns()
    assert isinstance(session.news, SessionNews)
    assert not session.news.listeners


async def test_a_fetch_ends_after_its_maximum_wait(broker: Broker) -> None:
    waiting = broker.fetch(min_bytes=2 * SIZE, wait_ms=1)
    broker.append(0)

    assert sizes(await waiting)[0] == SIZE
    assert broker.watchers == 0


async def test_a_fetch_ends_when_its_client_disconnects(broker: Broker) -> None:
    waiting = broker.fetch()
    await turns()
    assert broker.watchers == 3
    assert broker.client.give_up is not None
    broker.client.give_up()

    assert sum(sizes(await waiting).values()) == 0
    assert broker.watchers == 0


async def test_deleting_the_topic_ends_a_fetch_with_an_error(broker: Broker) -> None:
    waiting = broker.fetch()
    await turns()
    broker.replicas.withdraw([partition.topic_partition for partition in broker.replicas.partitions()])

    response = await waiting
    assert {partition.error_code for partition in response.responses[0].partitions} != {0}


async def test_a_session_reads_only_partitions_with_news(broker: Broker, reads: list[int]) -> None:
    first = await broker.fetch(session=(0, 0), wait_ms=0)
    reads.clear()
    waiting = broker.fetch(session=(first.session_id, 1), offsets={})
    await turns()
    assert not waiting.done()
    assert not reads

    broker.append(2)
    assert sizes(await waiting) == {2: SIZE}
    assert reads == [2]

    # It has not read its records, so they are sent again.
    reads.clear()
    again = await broker.fetch(session=(first.session_id, 2), offsets={}, wait_ms=0)
    assert list(sizes(again)) == [2]
    assert reads == [2]

    reads.clear()
    assert not (await broker.fetch(session=(first.session_id, 3), offsets={2: 1}, wait_ms=0)).responses
    assert not (await broker.fetch(session=(first.session_id, 4), offsets={}, wait_ms=0)).responses
    assert reads == [2]


async def test_a_session_learns_of_appends_between_its_requests(broker: Broker) -> None:
    first = await broker.fetch(session=(0, 0), wait_ms=0)
    broker.append(0)
    broker.append(2)
    assert list(sizes(await broker.fetch(session=(first.session_id, 1), offsets={}))) == [0, 2]


async def test_a_session_watches_a_partition_until_it_grows_or_the_session_ends(broker: Broker) -> None:
    first = await broker.fetch(session=(0, 0), wait_ms=0)
    assert broker.watchers == 3
    broker.append(2)
    assert broker.watchers == 2
    await broker.fetch(session=(first.session_id, -1), wait_ms=0, offsets={0: 0})
    assert broker.watchers == 0


async def test_a_session_reports_a_deleted_partition(broker: Broker) -> None:
    first = await broker.fetch(session=(0, 0), wait_ms=0)
    waiting = broker.fetch(session=(first.session_id, 1), offsets={})
    await turns()
    broker.replicas.withdraw([TopicPartition("t", 2)])
    [topic] = (await waiting).responses
    assert [(item.partition_index, item.error_code) for item in topic.partitions] == [
        (2, ErrorCode.unknown_topic_or_partition)
    ]


async def test_another_isolation_level_reads_the_whole_session(broker: Broker, reads: list[int]) -> None:
    first = await broker.fetch(session=(0, 0), wait_ms=0)
    reads.clear()
    await broker.fetch(session=(first.session_id, 1), offsets={}, wait_ms=0, read_committed=True)
    assert sorted(reads) == [0, 1, 2]


@pytest.fixture
def in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Handle all fetches as large ones, with a pause after every partition."""
    monkeypatch.setattr("headrace.broker.apis.fetch.AT_ONCE", 1)
    monkeypatch.setattr("headrace.broker.apis.fetch.OFTEN", 1)
    monkeypatch.setattr("headrace.broker.apis.fetch_waits.OFTEN", 1)
    monkeypatch.setattr("headrace.broker.apis.fetch_waits.AT_ONCE", 1)
    monkeypatch.setattr("headrace.slices.SLICE_S", 0)


@pytest.mark.usefixtures("in_steps")
async def test_a_large_fetch_has_the_same_response_as_a_small_one(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.append(1, 2)
    broker.append(2)
    in_steps = await broker.fetch(wait_ms=0)
    monkeypatch.undo()
    assert in_steps == await broker.fetch(wait_ms=0)


@pytest.mark.usefixtures("in_steps")
async def test_a_large_fetch_waits_for_appends(broker: Broker) -> None:
    fetch = broker.fetch(min_bytes=2 * SIZE)
    await turns(20)
    assert broker.watchers == 3
    broker.append(1)
    await turns(20)
    assert not fetch.done()
    broker.append(2)
    assert {index for index, size in sizes(await fetch).items() if size} == {1, 2}
    assert broker.watchers == 0


@pytest.mark.usefixtures("in_steps")
async def test_an_append_while_a_large_fetch_is_collected_is_noticed(broker: Broker) -> None:
    fetch = broker.fetch()
    await turns(6)
    assert 0 < broker.watchers < 3
    broker.append(0)
    assert sizes(await asyncio.wait_for(fetch, 10))[0] == SIZE
    assert broker.watchers == 0


@pytest.mark.usefixtures("in_steps")
async def test_a_large_fetch_ends_when_its_client_disconnects(broker: Broker) -> None:
    for moment in (0, 2, 6, 20):
        broker.client.has_hung_up = False
        fetch = broker.fetch()
        await turns(moment)
        broker.client.has_hung_up = True
        if broker.client.give_up is not None:
            broker.client.give_up()
        await asyncio.wait_for(fetch, 10)
        assert broker.watchers == 0, moment


@pytest.mark.usefixtures("in_steps")
async def test_a_cancelled_large_fetch_leaves_no_watchers(broker: Broker) -> None:
    for moment in (6, 20):
        fetch = broker.fetch()
        await turns(moment)
        assert broker.watchers
        fetch.cancel()
        await turns()
        assert broker.watchers == 0


@pytest.mark.usefixtures("in_steps")
async def test_large_fetches_have_sessions(broker: Broker) -> None:
    first = await broker.fetch(session=(0, 0), wait_ms=0)
    assert first.session_id
    second = broker.fetch(session=(first.session_id, 1), offsets={})
    await turns(20)
    assert not second.done()
    broker.append(2)
    assert sizes(await asyncio.wait_for(second, 10)) == {2: SIZE}


@pytest.mark.parametrize("mode", ["at once", "in steps"])
async def test_over_the_limit_of_waiting_partitions_a_fetch_returns_at_once(
    broker: Broker, mode: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fetch_waits, "_MANY_PARTITIONS", 1)
    if mode == "in steps":
        monkeypatch.setattr(fetch_module, "AT_ONCE", 1)
    broker.api.waiting = WaitingPartitions(limit=5)
    first, small = broker.fetch(), broker.fetch(offsets={0: 0})
    await turns(20)
    refused = await asyncio.wait_for(broker.fetch(), 10)
    assert sizes(refused) == dict.fromkeys(range(3), 0)
    assert "A fetch of 3 partitions was answered without waiting" in caplog.text
    assert not first.done()
    assert not small.done()

    broker.append(0)
    await asyncio.wait_for(first, 10)
    await asyncio.wait_for(small, 10)
    assert broker.api.waiting.count == 0


def append_in_transaction(partition: Partition, producer_id: int = 4, size: int = 1000, sequence: int = 0) -> int:
    """Append a record in a transaction, which stays open, and return the size of the batch."""
    data = build_batch(
        [RecordData(b"k", bytes(size), NOW)],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        attributes=TRANSACTIONAL_FLAG,
    )
    partition.append_as_leader(data, now_ms=NOW, guard=UNVERIFIED)
    return len(data)


def end_transaction(partition: Partition, producer_id: int = 4, *, commit: bool = True) -> None:
    partition.append_marker(producer_id, 0, commit=commit, coordinator_epoch=0, now_ms=NOW)


async def test_a_marker_makes_the_bytes_of_its_transaction_count(broker: Broker) -> None:
    partition = broker.partitions[0]
    waiting = broker.fetch(min_bytes=1000, read_committed=True)
    await asyncio.sleep(0)
    append_in_transaction(partition)
    await asyncio.sleep(0)
    assert not waiting.done()
    end_transaction(partition)
    response = await asyncio.wait_for(waiting, 10)
    assert response.responses[0].partitions[0].last_stable_offset == 2


@pytest.fixture
def lookups(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The offsets for which aborted transactions have been looked up."""
    offsets: list[int] = []
    original = LogReader.aborted_transactions

    def aborted_transactions(reader: LogReader, offset: int, part: FileSlice) -> list[AbortedTransaction]:
        offsets.append(offset)
        return original(reader, offset, part)

    monkeypatch.setattr(LogReader, "aborted_transactions", aborted_transactions)
    return offsets


@pytest.mark.parametrize("earlier", [0, 2])
async def test_appends_after_an_open_transaction_are_not_read(
    broker: Broker, reads: list[int], lookups: list[int], earlier: int
) -> None:
    abort_transaction(broker.partitions[0])
    broker.append(0, earlier)
    append_in_transaction(broker.partitions[0], 5)
    waiting = broker.fetch(min_bytes=100 * SIZE, read_committed=True, offsets={0: 2})
    await turns()
    reads.clear()
    lookups.clear()
    broker.append(0, 50)
    await turns()
    assert not waiting.done()
    assert (reads, lookups) == ([0], [])


async def test_bytes_count_once_they_are_before_the_last_stable_offset(broker: Broker, reads: list[int]) -> None:
    partition = broker.partitions[0]
    waiting = broker.fetch(min_bytes=8 * SIZE, read_committed=True, offsets={0: 0})
    await turns()
    append_in_transaction(partition, 4)
    broker.append(0)
    append_in_transaction(partition, 5)
    broker.append(0)
    end_transaction(partition, 4)  # the first two count
    broker.append(0)
    end_transaction(partition, 5)  # the next three count
    broker.append(0)
    append_in_transaction(partition, 6)
    broker.append(0)
    await turns()
    assert not waiting.done()
    reads.clear()
    broker.append(0, 5)
    await turns()
    assert not waiting.done()
    assert reads == []
    end_transaction(partition, 6)
    assert sizes(await asyncio.wait_for(waiting, 10)) == {0: partition.log.segments.active.size}


async def test_bytes_count_if_the_last_stable_offset_moves_without_a_report_of_the_marker(broker: Broker) -> None:
    partition = broker.partitions[0]
    size = append_in_transaction(partition, 4)
    append_in_transaction(partition, 5)
    waiting = broker.fetch(min_bytes=size, read_committed=True, offsets={0: 0})
    await turns()
    broker.append(0)
    assert not waiting.done()
    # As in the replica of a follower, from which consumers may read.
    partition.transactions.end_at(4, 2, Marker.COMMIT)
    partition.transactions.committed_to(3)
    broker.append(0)
    assert sizes(await asyncio.wait_for(waiting, 10)) == {0: size}


async def test_the_rest_of_an_older_segment_is_returned_even_if_later_bytes_were_counted(broker: Broker) -> None:
    partition = broker.append(0)
    partition.log.roll(NOW)
    broker.append(0)
    waiting = broker.fetch(min_bytes=100 * SIZE, read_committed=True, offsets={0: 0})
    await turns()
    broker.append(0)
    append_in_transaction(partition)
    assert sizes(await asyncio.wait_for(waiting, 10)) == {0: SIZE}


async def test_a_fetch_that_has_waited_returns_the_aborted_transactions(broker: Broker) -> None:
    partition = broker.partitions[0]
    append_in_transaction(partition, 5)
    waiting = broker.fetch(min_bytes=2 * SIZE, read_committed=True, offsets={0: 0})
    await turns()
    append_in_transaction(partition, 6)
    broker.append(0, 5)
    end_transaction(partition, 5, commit=False)
    await turns()
    assert not waiting.done()
    end_transaction(partition, 6, commit=False)
    [answer] = (await asyncio.wait_for(waiting, 10)).responses[0].partitions
    assert [(one.producer_id, one.first_offset) for one in answer.aborted_transactions] == [(5, 0), (6, 1)]
    assert len(answer.records) == partition.log.segments.active.size


async def test_deleting_unread_records_before_an_open_transaction_ends_a_fetch(broker: Broker) -> None:
    broker.append(0, 3)
    append_in_transaction(broker.partitions[0])
    waiting = broker.fetch(min_bytes=100 * SIZE, read_committed=True, offsets={0: 0})
    await turns()
    broker.append(0)
    assert not waiting.done()
    broker.partitions[0].delete_records(2)
    [answer] = (await asyncio.wait_for(waiting, 10)).responses[0].partitions
    assert answer.error_code == ErrorCode.offset_out_of_range


def abort_transaction(partition: Partition) -> None:
    append_in_transaction(partition, size=1)
    end_transaction(partition, commit=False)


@pytest.mark.parametrize("mode", ["at once", "in steps"])
async def test_an_unreadable_transaction_index_fails_only_its_partition(
    broker: Broker, mode: str, request: pytest.FixtureRequest
) -> None:
    if mode == "in steps":
        request.getfixturevalue("in_steps")
    for partition in broker.partitions[:2]:
        abort_transaction(partition)
    path = broker.partitions[0].log.segments.active.txn_index.path
    path.unlink()
    path.mkdir()

    for _ in range(2):
        response = await broker.fetch(read_committed=True, offsets={0: 0, 1: 0}, wait_ms=0)
        damaged, healthy = response.responses[0].partitions
        assert (damaged.error_code, damaged.records) == (ErrorCode.kafka_storage_error, b"")
        assert (healthy.error_code, len(healthy.aborted_transactions)) == (ErrorCode.none, 1)
        assert healthy.records
    damaged = (await broker.fetch(offsets={0: 0}, wait_ms=0)).responses[0].partitions[0]
    assert damaged.error_code == ErrorCode.none


@pytest.mark.parametrize("has_open_transaction", [False, True])
async def test_records_before_a_damaged_batch_are_read_with_their_aborted_transactions(
    broker: Broker, has_open_transaction: bool, caplog: pytest.LogCaptureFixture
) -> None:
    partition = broker.partitions[0]
    abort_transaction(partition)
    broker.append(0, 3)
    path = partition.log.segments.active.path
    size = path.stat().st_size
    if has_open_transaction:
        broker.append(0)  # the last stable offset is after the damage
        append_in_transaction(partition, sequence=1)
    with path.open("r+b") as file:
        file.seek(size - SIZE + 16)
        file.write(b"\x09")  # the version of the batch at offset 4
    partition.log.segments.forget_positions()

    response = await broker.fetch(read_committed=True, offsets={0: 0}, wait_ms=0)
    read = response.responses[0].partitions[0]
    assert (read.error_code, len(read.aborted_transactions)) == (ErrorCode.none, 1)
    assert read.records.startswith(path.read_bytes()[: size - SIZE])
    assert "the file is damaged" not in caplog.text
    damaged = (await broker.fetch(read_committed=True, offsets={0: 4}, wait_ms=0)).responses[0].partitions[0]
    assert (damaged.error_code, damaged.records) == (ErrorCode.corrupt_message, b"")
    assert caplog.text.count("the file is damaged") == 1
