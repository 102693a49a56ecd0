"""With flush.messages=1, acknowledged and visible records are on disk; only clients of a slow disk wait for it."""

import errno
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from headrace.testing import Broker
from tests.broker.pending_records import PendingRecord, block_disk
from tests.support.broker_process import BrokerProcess
from tests.support.flush_disk import Disk
from tests.support.topics import create_topic, ends
from tests.support.waiting import wait_for

DURABLE = {"log.flush.interval.messages": "1"}


@pytest.fixture
def broker(tmp_path: Path, disk: Disk) -> Iterator[Broker]:
    with Broker(DURABLE, data=tmp_path / "data") as broker:
        for item in ("t", "u"):
            create_topic(broker.bootstrap, item)
        yield broker
        disk.free.set()


def test_an_answer_waits_for_its_fsync_and_does_not_block_others(broker: Broker, disk: Disk) -> None:
    block_disk(broker, disk, "t")
    waiting = [PendingRecord(broker, "t", acks=acks) for acks in (1, "all")]
    assert disk.begun.wait(10)
    other = PendingRecord(broker, "u")
    assert wait_for(other.poll, "an answer for a partition on a fast disk") == "written"
    assert ends(broker.bootstrap, "t") == [0]
    assert [item.poll() for item in waiting] == [None, None]
    disk.free.set()
    for item in waiting:
        assert wait_for(item.poll, "an answer") == "written"


def test_committed_offsets_are_on_disk_before_the_answer(broker: Broker, disk: Disk) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
    offset = [TopicPartition("u", 0, 0)]
    consumer.commit(offsets=offset, asynchronous=False)
    block_disk(broker, disk, "__consumer_offsets")
    disk.begun.clear()
    committed = threading.Thread(target=lambda: consumer.commit(offsets=offset, asynchronous=False))
    committed.start()
    assert disk.begun.wait(10)
    assert committed.is_alive()
    disk.free.set()
    committed.join(10)
    assert not committed.is_alive()
    consumer.close()


def test_a_failed_write_of_committed_offsets_is_answered_with_its_error(tmp_path: Path, disk: Disk) -> None:
    # One of two directories fails: a broker without any would stop, and librdkafka would wait for it to return.
    directories = [str(tmp_path / item) for item in ("a", "b")]
    with Broker({**DURABLE, "log.dirs": directories}) as broker:
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g", "socket.timeout.ms": 2000})
        offset = [TopicPartition("u", 0, 0)]
        create_topic(broker.bootstrap, "u")
        consumer.commit(offsets=offset, asynchronous=False)
        disk.error = errno.EIO
        with pytest.raises(KafkaException) as refused:
            consumer.commit(offsets=offset, asynchronous=False)
        assert refused.value.args[0].code() in (KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.NOT_COORDINATOR)
        disk.error = None
        consumer.close()


def test_a_failed_fsync_is_not_retried(broker: Broker, disk: Disk) -> None:
    assert wait_for(PendingRecord(broker, "t").poll, "an answer") == "written"
    disk.error = errno.EIO
    refused = PendingRecord(broker, "t", **{"message.timeout.ms": 1000})
    assert "written" not in str(wait_for(refused.poll, "the end of the attempts"))
    disk.error = None
    late = PendingRecord(broker, "t", **{"message.timeout.ms": 1000})
    assert "written" not in str(wait_for(late.poll, "the end of the attempts"))


def test_the_durability_mode_is_printed_at_the_start(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", settings=DURABLE) as broker:
        wait_for(lambda: "durability  fsync" in broker.log(), "a line about durability")
