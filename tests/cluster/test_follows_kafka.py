"""The fetcher copies partitions that Kafka 3.9 leads, byte for byte: as a consumer, up to the high watermark."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as Position
from confluent_kafka.admin import AdminClient

from headrace.client.link import Link
from headrace.clock import SYSTEM
from headrace.replication.following.fetcher import Fetcher
from headrace.replication.following.fetcher_settings import FetcherSettings
from headrace.replication.following.fetchers import Fetchers
from headrace.replication.following.partition import FollowedPartition
from headrace.replication.producer_recovery import recover_producers
from headrace.replication.producer_state import ProducerState
from headrace.replication.throttle import ReplicationThrottle
from headrace.storage.log.config import LogConfig
from headrace.storage.log.log import Log
from headrace.types import TopicPartition
from headrace.wire.apis import ApiKey
from headrace.wire.batch import parse_header
from headrace.wire.fetched import FetchLimits
from tests.adoption.history import TOPICS as WRITTEN
from tests.adoption.history import create_topics, write_plain, write_transactions
from tests.adoption.kafka import NODE_ID, WithZooKeeper, ZooKeeper
from tests.support.waiting import wait_for
from tests.support.wire_client import WireClient

AS_CONSUMER: Final = -1
SETTINGS: Final = {"log.cleaner.backoff.ms": "100", "zookeeper.session.timeout.ms": "6000"}
SMALL: Final = LogConfig(segment_bytes=100_000)


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WithZooKeeper]:
    base = tmp_path_factory.mktemp("follows")
    with (
        ZooKeeper(base / "zookeeper") as zookeeper,
        WithZooKeeper(base / "kafka", zookeeper.address, SETTINGS) as kafka,
    ):
        wait_for(lambda: has_controller(kafka), "the controller", timeout_s=60)
        create_topics(kafka.bootstrap)
        write_plain(kafka.bootstrap)
        write_transactions(kafka.bootstrap)
        yield kafka


class Follower:
    """Logs, and the fetcher that copies into them."""

    def __init__(self, kafka: WithZooKeeper, directory: Path) -> None:
        self.kafka = kafka
        self.directory = directory
        directory.mkdir(exist_ok=True)
        self.partitions: dict[TopicPartition, FollowedPartition] = {}
        self.failures: dict[TopicPartition, str] = {}
        self.fetchers = Fetchers(self._fetcher, per_leader=2)

    def _fetcher(self, leader: int, number: int) -> Fetcher:
        host, _, port = self.kafka.bootstrap.rpartition(":")
        link = Link(
            lambda: (host, int(port)),
            client_id=f"follower-{number}",
            loop=asyncio.get_running_loop(),
            api_versions=False,
        )
        limits = FetchLimits(max_wait_ms=100, min_bytes=1, max_bytes=10_485_760)
        settings = FetcherSettings(limits, 1_048_576, 0.1, AS_CONSUMER, lambda: -1)
        return Fetcher(link, settings, self, ReplicationThrottle(window_count=11, window_s=1.0), SYSTEM)

    async def flush(self, partitions: list[FollowedPartition]) -> list[tuple[FollowedPartition, str]]:
        for partition in partitions:
            partition.log.flusher.flush()
        return []

    def failed(self, partition: FollowedPartition, reason: str) -> None:
        self.failures[partition.topic_partition] = reason

    def follow(self, topics: Sequence[str]) -> None:
        """Follow all partitions of these topics under their leader epochs in Kafka."""
        followed = []
        for topic, topic_id, partition, epoch in described(self.kafka, topics):
            topic_partition = TopicPartition(topic, partition)
            known = self.partitions.get(topic_partition)
            if known is None:
                known = self.partitions[topic_partition] = self._open(topic_partition, topic_id)
            known.leader_epoch = epoch
            followed.append(known)
        self.fetchers.follow(followed)

    def _open(self, topic_partition: TopicPartition, topic_id: UUID) -> FollowedPartition:
        path = self.directory / str(topic_partition)
        path.mkdir(exist_ok=True)
        opened = Log.open(
            path, topic_partition, SMALL, recovery_point=0, clean_shutdown=False, log_start_offset=0, now_ms=0
        )
        producers, transactions = recover_producers(opened, 0)
        return FollowedPartition(
            opened,
            topic_id=topic_id,
            leader=NODE_ID,
            leader_epoch=-1,
            high_watermark=0,
            producers=producers,
            transactions=transactions,
        )

    async def caught_up(self, topics: Sequence[str]) -> None:
        """Wait until the logs end where Kafka's do."""
        ends = end_offsets(self.kafka, topics)
        await until(
            lambda: all(self.partitions[each].high_watermark == end for each, end in ends.items()),
            lambda: f"{ends}, but {[(each, part.log_end_offset) for each, part in self.partitions.items()]}",
        )
        assert self.failures == {}

    def batches(self, topic: str, partition: int = 0) -> dict[int, bytes]:
        return contents(self.partitions[TopicPartition(topic, partition)].log)


async def until(condition: Callable[[], bool], description: Callable[[], str], timeout_s: float = 30) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            while not condition():  # noqa: ASYNC110  the condition is about another process
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"not within {timeout_s:g} s: {description()}") from None


def described(kafka: WithZooKeeper, topics: Sequence[str]) -> list[tuple[str, UUID, int, int]]:
    """Return topic, id, partition and leader epoch."""
    answer = metadata(kafka, topics)
    return [
        (topic["name"], topic["topic_id"], partition["partition_index"], partition["leader_epoch"])
        for topic in answer["topics"]
        for partition in topic["partitions"]
    ]


def has_controller(kafka: WithZooKeeper) -> bool:
    controller: int = metadata(kafka, [])["controller_id"]
    return controller == NODE_ID


def metadata(kafka: WithZooKeeper, topics: Sequence[str]) -> dict[str, Any]:
    request = {
        "topics": [{"name": topic, "topic_id": UUID(int=0)} for topic in topics],
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
    }
    with WireClient(kafka.bootstrap) as client:
        return client.ask(ApiKey.METADATA, 12, request)


def end_offsets(kafka: WithZooKeeper, topics: Sequence[str]) -> dict[TopicPartition, int]:
    ends = {}
    with WireClient(kafka.bootstrap) as client:
        for topic, _, partition, _ in described(kafka, topics):
            asked = {"partition_index": partition, "current_leader_epoch": -1, "timestamp": -1}
            message = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": topic, "partitions": [asked]}]}
            answer = client.ask(ApiKey.LIST_OFFSETS, 7, message)
            ends[TopicPartition(topic, partition)] = answer["topics"][0]["partitions"][0]["offset"]
    return ends


def contents(log: Log) -> dict[int, bytes]:
    """Return the batches from the log start on, by base offset."""
    found: dict[int, bytes] = {}
    for segment, position, header in log.segments.batches(log.log_start_offset):
        found[header.base_offset] = segment.file.pread(header.size, position)
    return found


def kafkas(kafka: WithZooKeeper, topic: str, partition: int, log_start_offset: int) -> dict[int, bytes]:
    """Return the batches in Kafka's files, by base offset."""
    found: dict[int, bytes] = {}
    for path in sorted((kafka.data / f"{topic}-{partition}").glob("*.log")):
        data = path.read_bytes()
        position = 0
        while position < len(data):
            header = parse_header(data, position)
            if header.next_offset > log_start_offset:
                found[header.base_offset] = data[position : position + header.size]
            position += header.size
    return found


@pytest.fixture
async def follower(kafka: WithZooKeeper, tmp_path: Path) -> AsyncIterator[Follower]:
    follower = Follower(kafka, tmp_path / "data")
    yield follower
    await follower.fetchers.close()


def wait_for_compaction(kafka: WithZooKeeper) -> None:
    """Wait until Kafka has removed the first records of `latest`."""
    wait_for(lambda: min(kafkas(kafka, "latest", 0, 0)) > 0, "Kafka's cleaner", timeout_s=60)


async def test_all_batches_are_byte_equal(kafka: WithZooKeeper, follower: Follower) -> None:
    wait_for_compaction(kafka)

    follower.follow(list(WRITTEN))
    await follower.caught_up(list(WRITTEN))

    for topic_partition, partition in follower.partitions.items():
        theirs = kafkas(kafka, *topic_partition, partition.log_start_offset)
        assert follower.batches(*topic_partition) == theirs, f"{topic_partition} differs"
        assert theirs or topic_partition.topic == "orders"


async def test_compaction_left_gaps_that_are_copied(kafka: WithZooKeeper, follower: Follower) -> None:
    wait_for_compaction(kafka)
    follower.follow(["latest"])
    await follower.caught_up(["latest"])

    bases = sorted(follower.batches("latest"))

    assert bases[0] > 0
    assert follower.partitions[TopicPartition("latest", 0)].log_end_offset == 200


async def test_the_log_start_offset_follows_the_leader(kafka: WithZooKeeper, follower: Follower) -> None:
    follower.follow(["long"])
    await follower.caught_up(["long"])
    partition = follower.partitions[TopicPartition("long", 0)]
    assert partition.log_start_offset == 1234
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})

    await asyncio.to_thread(admin.delete_records([Position("long", 0, 2000)])[Position("long", 0)].result, 20)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    producer.produce("long", b"one more")
    await asyncio.to_thread(producer.flush, 20)

    await until(lambda: partition.log_start_offset == 2000, lambda: f"it is {partition.log_start_offset}")


async def test_transactions_are_in_the_state_that_a_leader_needs(kafka: WithZooKeeper, follower: Follower) -> None:
    follower.follow(["payments"])
    await follower.caught_up(["payments"])
    partition = follower.partitions[TopicPartition("payments", 0)]

    with WireClient(kafka.bootstrap) as client:
        message = {"topics": [{"name": "payments", "partition_indexes": [0]}]}
        answer = client.ask(ApiKey.DESCRIBE_PRODUCERS, 0, message)
    theirs = answer["topics"][0]["partitions"][0]["active_producers"]
    mine = dict(partition.producers.items())

    assert {item["producer_id"] for item in theirs} == mine.keys()
    for item in theirs:
        producer = mine[item["producer_id"]]
        begin = partition.transactions.begin_of(item["producer_id"], producer.epoch)
        assert (producer.epoch, producer.last_sequence) == (item["producer_epoch"], item["last_sequence"])
        assert (-1 if begin is None else begin) == item["current_txn_start_offset"]
    aborted = [entry for segment in partition.log.segments.ordered for entry in segment.txn_index.read()]
    assert len(aborted) == 1


async def test_following_continues_after_the_leader_was_killed(kafka: WithZooKeeper, follower: Follower) -> None:
    follower.follow(["orders"])
    await follower.caught_up(["orders"])

    await asyncio.to_thread(kafka.restart_after_a_kill)
    await asyncio.to_thread(wait_for, lambda: len(described(kafka, ["orders"])) == 3, "the leaders", timeout_s=60)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for number in range(100):
        producer.produce("orders", b"again %d" % number, b"%d" % number)
    await asyncio.to_thread(producer.flush, 30)
    follower.follow(["orders"])
    await follower.caught_up(["orders"])

    for topic_partition in follower.partitions:
        assert follower.batches(*topic_partition) == kafkas(kafka, *topic_partition, 0)


async def test_a_copy_that_was_closed_is_continued(kafka: WithZooKeeper, tmp_path: Path) -> None:
    first = Follower(kafka, tmp_path / "data")
    first.follow(["payments", "codec-zstd"])
    await first.caught_up(["payments", "codec-zstd"])
    await first.fetchers.close()

    second = Follower(kafka, tmp_path / "data")
    second.follow(["payments", "codec-zstd"])
    await second.caught_up(["payments", "codec-zstd"])
    await second.fetchers.close()

    payments = TopicPartition("payments", 0)
    assert producers_of(second.partitions[payments].producers) == producers_of(first.partitions[payments].producers)
    assert second.batches("codec-zstd") == kafkas(kafka, "codec-zstd", 0, 0)


def producers_of(state: ProducerState) -> dict[int, Any]:
    return {each: (item.epoch, item.last_sequence) for each, item in state.items()}
