"""Kafka's own fetcher follows partitions that Headrace leads, and Kafka's controller changes their in-sync replicas."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.clock import now_ms
from headrace.errors import ErrorCode
from headrace.wire.records import RecordData, build_batch
from tests.adoption.kafka import NODE_ID, WithZooKeeper, ZooKeeper
from tests.cluster.commanded import BROKER_ID, CommandedBroker


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ZooKeeper(tmp_path_factory.mktemp("zookeeper")) as zookeeper:
        yield zookeeper.address


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory, zookeeper: str) -> Iterator[WithZooKeeper]:
    settings = {
        "replica.fetch.wait.max.ms": "100",
        "replica.lag.time.max.ms": "2000",
        "replica.fetch.backoff.ms": "100",
    }
    with WithZooKeeper(tmp_path_factory.mktemp("kafka"), zookeeper, settings) as kafka:
        yield kafka


@pytest.fixture
async def leader(tmp_path: Path, zookeeper: str, kafka: WithZooKeeper) -> AsyncIterator[CommandedBroker]:
    leader = CommandedBroker(tmp_path / "data", zookeeper, log_config={"min_insync_replicas": 2})
    await leader.join()
    yield leader
    await leader.close()


async def until(condition: Callable[[], bool], what: str, timeout_s: float = 30) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            while not condition():  # noqa: ASYNC110  the condition is about another process
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"not within {timeout_s:g} s: {what}") from None


async def create(kafka: WithZooKeeper, leader: CommandedBroker, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    await until(lambda: NODE_ID in leader.alive, "UpdateMetadata")
    created = admin.create_topics(
        [NewTopic(topic, 1, replica_assignment=[[BROKER_ID, NODE_ID]], config={"min.insync.replicas": "2"})]
    )
    await asyncio.to_thread(created[topic].result, 30)
    await until(lambda: leader.replicas.find(topic, 0) is not None, "the controller makes Headrace the leader")


def log_of(directory: Path, topic: str) -> bytes:
    """Return the bytes of all segments."""
    return b"".join(path.read_bytes() for path in sorted((directory / f"{topic}-0").glob("*.log")))


async def produce(kafka: WithZooKeeper, topic: str, count: int) -> list[int]:
    """Send records with acks=all, and return their offsets."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "acks": "all", "max.in.flight": 1})
    offsets: list[int] = []
    errors: list[object] = []

    def delivered(error: object, message: Message) -> None:
        if error is not None:
            errors.append(error)
        else:
            offsets.append(message.offset() or 0)

    for number in range(count):
        producer.produce(topic, value=b"%d" % number, callback=delivered)
        if number % 100 == 0:
            await asyncio.to_thread(producer.poll, 0.01)
    assert await asyncio.to_thread(producer.flush, 30) == 0
    assert not errors
    return sorted(offsets)


async def test_acks_all_waits_for_kafka_and_its_log_is_equal(kafka: WithZooKeeper, leader: CommandedBroker) -> None:
    await create(kafka, leader, "followed")
    partition = leader.partition("followed")

    assert await produce(kafka, "followed", 3000) == list(range(3000))

    assert partition.high_watermark == partition.log_end_offset == 3000
    assert log_of(kafka.data, "followed") == log_of(leader.directory, "followed")
    assert partition.isr == (BROKER_ID, NODE_ID)


async def test_a_follower_that_stops_leaves_the_isr_and_returns(kafka: WithZooKeeper, leader: CommandedBroker) -> None:
    await create(kafka, leader, "stopped")
    partition = leader.partition("stopped")
    await produce(kafka, "stopped", 10)
    version = partition.partition_epoch

    # The controller is frozen with the follower, so the ISR cannot change, and nothing may be committed.
    with kafka.frozen():
        partition.append_as_leader(build_batch([RecordData(None, b"late", now_ms())]), now_ms=now_ms())
        timed_out = await leader.purgatory.committed(partition, 11, timeout_s=0.2)
        assert timed_out is not None
        assert timed_out.code is ErrorCode.request_timed_out
        await until(lambda: partition.followers is not None and partition.followers.state.pending is not None, "shrink")
        assert (partition.high_watermark, partition.isr) == (10, (BROKER_ID, NODE_ID))

    # Its answers then first remove the follower, and add it again when it has caught up.
    await until(lambda: partition.partition_epoch >= version + 2, "two changes of the ISR")
    await until(lambda: partition.isr == (BROKER_ID, NODE_ID) and partition.high_watermark == 11, "the ISR is complete")
    assert (await leader.state_of("stopped"))["isr"] == [BROKER_ID, NODE_ID]
    await until(lambda: log_of(kafka.data, "stopped") == log_of(leader.directory, "stopped"), "the follower's log")
