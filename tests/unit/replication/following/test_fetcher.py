"""The shell around the state: links, pauses, throttle, failures. The model covers the rest."""

import asyncio
import errno
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest

from headrace import slices
from headrace.client.link import Link, LinkError
from headrace.clock import Clock
from headrace.errors import ErrorCode, KafkaError
from headrace.replication import producer_recovery
from headrace.replication.following import fetcher
from headrace.replication.following.fetcher import Fetcher
from headrace.replication.following.fetcher_settings import FetcherSettings
from headrace.replication.following.fetchers import Fetchers
from headrace.replication.following.partition import FollowedPartition
from headrace.replication.producer_recovery import recover_producers
from headrace.replication.throttle import ReplicationThrottle
from headrace.storage.log.config import LogConfig
from headrace.storage.log.log import Log
from headrace.storage.log.segment import Segment
from headrace.types import TopicPartition
from headrace.wire.apis import ApiKey, schema
from headrace.wire.batch import BatchHeader
from headrace.wire.fetched import FETCH_VERSION, FetchLimits
from headrace.wire.records import RecordData, build_batch
from tests.unit.replication.following.asking import AskingLink
from tests.unit.storage.logs import NOW, batch

LEADER = 2
BACKOFF_S = 0.01
CONFIG = LogConfig()


class Leader(AskingLink):
    """A link whose replies are given, one per request; afterwards it answers nothing.

    If it `is_ready`, as after the first request of a real link, the fetcher does not wait for replies in its task.
    """

    def __init__(self, *, is_ready: bool) -> None:
        self.is_ready = is_ready
        self.replies: list[dict[str, Any] | LinkError] = []
        self.requests: list[Any] = []
        self.is_closed = False
        self.idle = asyncio.Event()

    async def exchange(self, api_key: int, version: int, body: bytearray) -> memoryview:
        self.requests.append(schema(ApiKey.FETCH, FETCH_VERSION).read_request(bytes(body), 0)[0])
        if not self.replies:
            self.idle.set()
            await asyncio.Event().wait()
        reply = self.replies.pop(0)
        if isinstance(reply, LinkError):
            raise reply
        out = bytearray()
        schema(ApiKey.FETCH, FETCH_VERSION).encode_response(out, {"session_id": 1, **reply})
        return memoryview(bytes(out))

    def close(self) -> None:
        self.is_closed = True
        if self.asking is not None:
            self.asking.cancel()


class Broker:
    """A fetcher with its partitions."""

    def __init__(self, directory: Path, *, is_ready: bool) -> None:
        self.directory = directory
        self.leader = Leader(is_ready=is_ready)
        self.throttle = ReplicationThrottle(window_count=11, window_s=1.0)
        self.has_failed_disk = False
        self.failures: list[tuple[TopicPartition, str]] = []
        self.has_failed = asyncio.Event()
        self.fetcher = self.create()

    def create(self, *_: int) -> Fetcher:
        limits = FetchLimits(500, 1, 1 << 20)
        settings = FetcherSettings(limits, 1 << 20, BACKOFF_S, 4, lambda: 99)
        clock = Clock(lambda: NOW, lambda: asyncio.get_running_loop().time())
        return Fetcher(cast(Link, self.leader), settings, self, self.throttle, clock)

    async def flush(self, partitions: list[FollowedPartition]) -> list[tuple[FollowedPartition, str]]:
        return [(partition, "the disk has failed") for partition in partitions if self.has_failed_disk]

    def failed(self, partition: FollowedPartition, reason: str) -> None:
        self.failures.append((partition.topic_partition, reason))
        self.has_failed.set()

    def partition(self, index: int = 0, config: LogConfig = CONFIG, *, leader: int = LEADER) -> FollowedPartition:
        topic_partition = TopicPartition("t", index)
        path = self.directory / str(topic_partition)
        path.mkdir()
        opened = Log.open(
            path, topic_partition, config, recovery_point=0, clean_shutdown=False, log_start_offset=0, now_ms=NOW
        )
        producers, transactions = recover_producers(opened, 0)
        return FollowedPartition(
            opened,
            topic_id=UUID(int=1),
            leader=leader,
            leader_epoch=5,
            high_watermark=0,
            producers=producers,
            transactions=transactions,
        )

    def followed(self, config: LogConfig = CONFIG, *, records: bytes = b"") -> FollowedPartition:
        """Return a partition with these records, which the fetcher follows."""
        partition = self.partition(0, config)
        partition.append_fetched(memoryview(records), NOW)
        self.fetcher.follow([partition])
        return partition

    async def run(self, *replies: dict[str, Any] | LinkError) -> None:
        """Run until all replies are processed."""
        self.leader.replies = list(replies)
        self.fetcher.start()
        async with asyncio.timeout(5):
            await self.leader.idle.wait()
        await self.fetcher.close()


@pytest.fixture
def broker(tmp_path: Path, request: pytest.FixtureRequest) -> Broker:
    return Broker(tmp_path, is_ready=getattr(request, "param", True))


wherever_replies_are_handled = pytest.mark.parametrize(
    "broker", [pytest.param(True, id="at once"), pytest.param(False, id="in its task")], indirect=True
)


def each_iteration(look: Callable[[], None]) -> None:
    """Call a function in every iteration of the event loop."""

    def again() -> None:
        look()
        asyncio.get_running_loop().call_soon(again)

    again()


def reply(*partitions: dict[str, Any]) -> dict[str, Any]:
    return {"responses": [{"topic_id": UUID(int=1), "partitions": partitions}] if partitions else []}


def data(records: bytes, index: int = 0, *, high_watermark: int = 0, error_code: int = 0) -> dict[str, Any]:
    return {
        "partition_index": index,
        "error_code": error_code,
        "high_watermark": high_watermark,
        "log_start_offset": 0,
        "aborted_transactions": None,
        "records": records,
    }


@wherever_replies_are_handled
async def test_records_are_appended_and_acknowledged_by_the_next_request(broker: Broker) -> None:
    partition = broker.followed()

    await broker.run(reply(data(batch(0, 3), high_watermark=2)))

    assert (partition.log_end_offset, partition.high_watermark) == (3, 2)
    (asked,) = broker.leader.requests[1].topics[0].partitions
    assert (asked.fetch_offset, asked.last_fetched_epoch, asked.current_leader_epoch) == (3, 0, 5)


async def test_requests_carry_the_epoch_of_this_broker(broker: Broker) -> None:
    broker.followed()

    await broker.run()

    state = broker.leader.requests[0].replica_state
    assert (state.replica_id, state.replica_epoch) == (4, 99)


@wherever_replies_are_handled
async def test_a_lost_answer_is_asked_for_again(broker: Broker) -> None:
    partition = broker.followed()

    await broker.run(LinkError("away"), reply(data(batch(0))))

    assert partition.log_end_offset == 1


async def test_a_leader_that_refuses_whole_requests_is_asked_again_after_the_back_off(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    partition = broker.followed()
    caplog.set_level(logging.INFO)
    began = asyncio.get_running_loop().time()

    refused = {**reply(), "error_code": ErrorCode.unknown_server_error, "session_id": 0}
    await broker.run(refused, refused, refused, reply(data(batch(0))))

    assert asyncio.get_running_loop().time() - began >= 3 * BACKOFF_S
    line = "Starting a new fetch session with broker 2, which answered unknown_server_error"
    assert [record.getMessage() for record in caplog.records] == [line] * 3
    assert partition.log_end_offset == 1


async def test_a_leader_that_calls_an_offset_in_its_log_out_of_range_is_asked_again_after_the_back_off(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = broker.followed()
    began = asyncio.get_running_loop().time()

    refused = reply(out_of_range(monkeypatch))
    # The empty replies answer the requests that remove the partition from the session.
    await broker.run(refused, reply(), refused, reply(), reply(data(batch(0))))

    assert asyncio.get_running_loop().time() - began >= 2 * BACKOFF_S
    assert partition.log_end_offset == 1


async def test_a_failure_that_lasts_is_logged_once_and_names_the_leader(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.followed()
    away, full = LinkError("away"), data(b"", error_code=ErrorCode.kafka_storage_error)
    await broker.run(away, away, reply(full), reply(full), reply(full), away)
    assert [record.getMessage() for record in caplog.records] == [
        "Fetching from broker 2 failed; trying again every 0.01 s: away",
        "t-0: the leader returned kafka_storage_error; trying again",
        "Fetching from broker 2 failed; trying again every 0.01 s: away",
    ]


@wherever_replies_are_handled
async def test_a_full_disk_is_tried_again_and_logged_again_after_it_had_space(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    partition = broker.followed()
    append = Log.append
    is_full = iter([True, True, True, False, True, False])

    def sometimes(self: Log, *args: Any, **options: Any) -> None:
        if next(is_full):
            raise KafkaError(ErrorCode.kafka_storage_error, "no space left")
        append(self, *args, **options)

    monkeypatch.setattr(Log, "append", sometimes)
    first, second, without = reply(data(batch(0))), reply(data(batch(1))), reply()
    # After a failure, the first request drops the partition from the session.
    await broker.run(first, without, first, without, first, without, first, second, without, second)

    assert partition.log_end_offset == 2
    line = "t-0: appending fetched records failed; trying again: no space left"
    assert [record.getMessage() for record in caplog.records] == [line, line]
    assert broker.failures == []


LARGE = batch(0, value=b"v" * (1 << 10))


@pytest.fixture
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pause after every large batch."""
    assert fetcher._SLICE_BYTES == 1 << 20
    monkeypatch.setattr(fetcher, "_SLICE_BYTES", 1 << 10)


@pytest.mark.usefixtures("small_slices")
async def test_other_work_runs_after_each_megabyte(broker: Broker) -> None:
    partitions = [broker.partition(index) for index in range(4)]
    broker.fetcher.follow(partitions)
    seen: set[int] = set()
    each_iteration(lambda: seen.add(sum(partition.log_end_offset for partition in partitions)))
    await broker.run(reply(*(data(LARGE, index) for index in range(4))))

    assert seen >= {1, 2, 3}


@pytest.mark.usefixtures("small_slices")
async def test_a_partition_that_leaves_during_a_pause_gets_no_more_records(broker: Broker) -> None:
    first, second = broker.partition(0), broker.partition(1)
    broker.fetcher.follow([first, second])

    def leave() -> None:
        if first.log_end_offset:
            broker.fetcher.forget([second.topic_partition])

    each_iteration(leave)
    await broker.run(reply(data(LARGE, 0), data(LARGE, 1)))

    assert second.log_end_offset == 0


@pytest.fixture
def short_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pause after every batch that is read."""
    monkeypatch.setattr(slices, "SLICE_S", 0.0)
    monkeypatch.setattr(producer_recovery, "_ENTRIES_A_STEP", 1)


def diverging(index: int = 0, end_offset: int = 4) -> dict[str, Any]:
    return {**data(b"", index), "diverging_epoch": {"epoch": 0, "end_offset": end_offset}}


def idempotent(count: int) -> bytes:
    records = [RecordData(b"k", b"v", NOW)]
    return b"".join(
        build_batch(records, base_offset=offset, leader_epoch=0, producer_id=7, producer_epoch=0, base_sequence=offset)
        for offset in range(count)
    )


def state_of(partition: FollowedPartition) -> tuple[int, int]:
    """Return the log end offset, and the last sequence number of producer 7."""
    return partition.log_end_offset, dict(partition.producers.items())[7].last_sequence


def out_of_range(monkeypatch: pytest.MonkeyPatch, start: int = 0, end: int = 4) -> dict[str, Any]:
    """Return a reply that resets a partition to one end of the leader's log."""

    async def offset(*_: object, earliest: bool, **__: object) -> int:
        return start if earliest else end

    monkeypatch.setattr(fetcher, "leader_offset", offset)
    return data(b"", error_code=ErrorCode.offset_out_of_range)


async def test_a_log_that_ends_before_the_leaders_starts_again_at_its_beginning(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = broker.followed(records=batch(0))

    await broker.run(reply(out_of_range(monkeypatch, 7, 9)))

    assert (partition.log_start_offset, partition.log_end_offset) == (7, 7)


@pytest.mark.usefixtures("short_slices")
@pytest.mark.parametrize("is_reset", [False, True])
async def test_other_work_runs_while_a_truncation_reads_the_producers(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, is_reset: bool
) -> None:
    partition = broker.followed(records=idempotent(6))
    seen: list[tuple[int, int]] = []
    reading = 0
    headers = Segment.headers

    def counted(self: Segment, position: int) -> Iterator[tuple[int, BatchHeader]]:
        nonlocal reading
        for item in headers(self, position):
            reading = len(seen)
            yield item

    each_iteration(lambda: seen.append(state_of(partition)))
    monkeypatch.setattr(Segment, "headers", counted)
    await broker.run(reply(out_of_range(monkeypatch) if is_reset else diverging()))

    assert set(seen) == {(6, 5), (4, 3)}
    assert reading >= 4


async def test_other_work_runs_after_each_truncation(broker: Broker) -> None:
    partitions = [broker.partition(index) for index in range(4)]
    for partition in partitions:
        partition.append_fetched(memoryview(batch(0) + batch(1)), NOW)
    broker.fetcher.follow(partitions)
    seen: set[int] = set()
    each_iteration(lambda: seen.add(sum(partition.log_end_offset for partition in partitions)))
    await broker.run(reply(*(diverging(index, 1) for index in range(4))))

    assert seen == {8, 7, 6, 5, 4}


@pytest.mark.usefixtures("short_slices")
@pytest.mark.parametrize(
    ("is_reset", "is_followed_again"),
    [(True, False), (False, True)],
    ids=["forgotten before a reset", "followed again before a truncation"],
)
async def test_a_partition_that_changes_while_its_producers_are_read_is_not_truncated(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, is_reset: bool, is_followed_again: bool
) -> None:
    partition, other = broker.partition(), broker.partition(1)
    partition.append_fetched(memoryview(idempotent(6)), NOW)
    broker.fetcher.follow([partition, other])
    loop = asyncio.get_running_loop()
    recover_before = FollowedPartition.recover_before

    def leave() -> None:
        broker.fetcher.forget([partition.topic_partition])
        if is_followed_again:
            partition.leader_epoch += 1
            broker.fetcher.follow([partition])

    def recover(self: FollowedPartition, offset: int) -> Any:
        loop.call_soon(leave)
        return recover_before(self, offset)

    monkeypatch.setattr(FollowedPartition, "recover_before", recover)
    await broker.run(reply(out_of_range(monkeypatch) if is_reset else diverging()))

    assert state_of(partition) == (6, 5)
    assert broker.failures == []


async def test_records_are_appended_before_other_partitions_are_truncated(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition, other = broker.partition(), broker.partition(1)
    partition.append_fetched(memoryview(batch(0) + batch(1)), NOW)
    broker.fetcher.follow([partition, other])
    ends: list[int] = []
    truncate_to = Log.truncate_to

    def truncate(self: Log, offset: int) -> None:
        ends.append(other.log_end_offset)
        truncate_to(self, offset)

    monkeypatch.setattr(Log, "truncate_to", truncate)
    await broker.run(reply(diverging(end_offset=1), data(batch(0), 1)))

    assert ends == [1]


async def test_a_truncation_whose_producers_cannot_be_read_is_repeated(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    partition = broker.followed(records=idempotent(6))

    def fail(*_: object) -> None:
        monkeypatch.undo()
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(producer_recovery, "snapshots", fail)
    await broker.run(reply(diverging()), reply(), reply(diverging()))

    assert state_of(partition) == (4, 3)
    assert broker.failures == []
    assert "Too many open files; trying again" in caplog.text


@pytest.mark.parametrize("stage", ["begins", "deletes"])
async def test_a_truncation_that_fails_before_any_change_is_repeated(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, stage: str
) -> None:
    partition = broker.followed(records=batch(0) + batch(1))
    failing = {"begins": "remove_unfinished_swaps", "deletes": "drop_segments"}[stage]

    def fail(*_: object) -> None:
        monkeypatch.undo()
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(f"headrace.storage.log.log.{failing}", fail)
    diverging = {**data(b""), "diverging_epoch": {"epoch": 0, "end_offset": 1}}

    if stage == "begins":
        await broker.run(reply(diverging), reply(), reply(diverging))
        assert partition.log_end_offset == 1
        assert broker.failures == []
        assert "Too many open files; trying again" in caplog.text
    else:
        await broker.run(reply(diverging))
        assert [failed for failed, _ in broker.failures] == [partition.topic_partition]
        assert broker.fetcher.is_idle


async def test_batches_before_the_end_give_the_partition_up(broker: Broker) -> None:
    partition = broker.partition()
    partition.append_fetched(memoryview(batch(0, 5)), NOW)
    other = broker.partition(1)
    broker.fetcher.follow([partition, other])

    await broker.run(reply(data(batch(3, 5))))

    assert len(broker.failures) == 1
    assert partition.log_end_offset == 5


async def test_a_move_of_the_leader_is_no_error(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    broker.followed()
    await broker.run(reply(data(b"", error_code=ErrorCode.fenced_leader_epoch)))
    assert len(broker.failures) == 1
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


@wherever_replies_are_handled
async def test_records_that_could_not_be_flushed_are_not_acknowledged(broker: Broker) -> None:
    broker.has_failed_disk = True
    partition = broker.followed(LogConfig(flush_messages=1))

    await broker.run(reply(data(batch(0))))

    assert broker.failures == [(partition.topic_partition, "the disk has failed")]
    assert broker.fetcher.is_idle


async def test_a_new_epoch_does_not_acknowledge_records_that_could_not_be_flushed(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = broker.partition(0, LogConfig(flush_messages=1))
    monkeypatch.setattr(partition.log.flusher, "flush_failure", "the disk has failed")

    broker.fetcher.follow([partition])

    assert broker.failures == [(partition.topic_partition, "the disk has failed")]
    assert broker.fetcher.is_idle


async def test_throttled_bytes_are_counted(broker: Broker) -> None:
    broker.throttle.configure("t", "*", 4)
    broker.throttle.rate = 1
    partition, other = broker.partition(0), broker.partition(1)
    broker.fetcher.follow([partition, other])

    await broker.run(
        reply(data(batch(0), high_watermark=500), data(b"", 1)),
        reply(),
    )

    assert broker.throttle.is_exceeded(asyncio.get_running_loop().time())
    (forgotten,) = broker.leader.requests[1].forgotten_topics_data
    assert forgotten.partitions == (0,)


async def test_without_partitions_nothing_is_asked(broker: Broker) -> None:
    broker.fetcher.start()
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    await broker.fetcher.close()

    assert broker.leader.requests == []
    assert broker.leader.is_closed


@pytest.fixture
def fetchers(broker: Broker) -> Fetchers:
    return Fetchers(broker.create, per_leader=4)


async def test_a_leaders_partitions_are_spread_over_its_fetchers(broker: Broker, fetchers: Fetchers) -> None:
    fetchers.follow([broker.partition(index) for index in range(8)])

    assert {leader for leader, _ in fetchers.all} == {LEADER}
    assert len(fetchers.all) == 4
    await fetchers.close()


async def test_a_new_leader_gets_its_own_fetcher_and_an_idle_one_is_closed(broker: Broker, fetchers: Fetchers) -> None:
    partition = broker.partition()
    fetchers.follow([partition])
    partition.leader = LEADER + 1

    fetchers.follow([partition])
    await fetchers.close_idle()

    assert [leader for leader, _ in fetchers.all] == [LEADER + 1]
    await fetchers.close()


@pytest.fixture
async def abandoned(broker: Broker, fetchers: Fetchers) -> FollowedPartition:
    """A partition whose leader has a later epoch; its fetcher is closed."""
    partition = broker.partition()
    broker.leader.replies = [reply(data(b"", error_code=ErrorCode.fenced_leader_epoch))]
    fetchers.follow([partition])
    async with asyncio.timeout(5):
        await broker.has_failed.wait()
    await fetchers.close_idle()
    assert not fetchers.all
    return partition


async def test_a_partition_that_was_given_up_is_copied_from_its_next_leader(
    fetchers: Fetchers, abandoned: FollowedPartition
) -> None:
    abandoned.leader, abandoned.leader_epoch = LEADER + 1, 6

    fetchers.follow([abandoned])

    assert [leader for leader, _ in fetchers.all] == [LEADER + 1]
    await fetchers.close()


async def test_a_partition_that_was_given_up_can_be_stopped(fetchers: Fetchers, abandoned: FollowedPartition) -> None:
    fetchers.forget([abandoned.topic_partition])

    assert not fetchers.all


async def test_a_forgotten_partition_leaves_its_fetcher_idle(broker: Broker, fetchers: Fetchers) -> None:
    partition = broker.partition()
    fetchers.follow([partition])

    fetchers.forget([partition.topic_partition])
    await fetchers.close_idle()

    assert fetchers.all == {}


async def test_an_old_message_format_gives_the_partition_up_with_an_advice(broker: Broker) -> None:
    partition = broker.partition()
    broker.fetcher.follow([partition, broker.partition(1)])
    old = bytearray(batch(0))
    old[16] = 1  # the magic byte

    await broker.run(reply(data(bytes(old))))

    ((failed, reason),) = broker.failures
    assert failed == partition.topic_partition
    assert "message format v1" in reason
    assert "with a client" in reason
