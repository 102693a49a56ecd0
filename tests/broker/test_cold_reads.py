"""Only readers of records that are no longer in memory wait for the disk."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from headrace.server import cold_reads
from headrace.storage.files.log_file import FileSlice, LogFile
from headrace.testing import Broker
from tests.support.waiting import wait_for

RECORDS = 300
VALUE = bytes(10_000)


class Disk:
    """A disk whose reads block until released; a slice is cold on its first read."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.free = threading.Event()
        self.is_cold = True
        self.reads = 0

    def looks_cold(self, _: FileSlice) -> bool:
        return self.is_cold

    def load_part(self, _: FileSlice) -> None:
        self.reads += 1
        self.asked.set()
        assert self.free.wait(20)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk()
    monkeypatch.setattr(cold_reads, "is_cold", disk.looks_cold)
    monkeypatch.setattr(cold_reads, "load_part", disk.load_part)
    yield disk
    disk.free.set()


@pytest.fixture
def broker(tmp_path: Path, disk: Disk) -> Iterator[Broker]:
    with Broker(data=tmp_path / "data") as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 20})
        for _ in range(RECORDS):
            producer.produce("t", VALUE, partition=0)
        assert producer.flush(20) == 0
        yield broker
        disk.free.set()


def consumer(broker: Broker) -> Consumer:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition("t", 0, 0)])
    return consumer


def next_record(reader: Consumer) -> "Message[bytes, bytes]":
    record = wait_for(lambda: reader.poll(0.05), "a record")
    assert record is not None
    return record


def test_a_reader_of_cold_records_does_not_block_others(broker: Broker, disk: Disk) -> None:
    reader = consumer(broker)
    wait_for(lambda: reader.poll(0.01) is None and disk.asked.is_set(), "a read from the disk")
    assert "t" in AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=10).topics
    assert reader.poll(0.05) is None
    disk.free.set()
    records = [next_record(reader) for _ in range(RECORDS)]
    assert [record.offset() for record in records] == list(range(RECORDS))
    assert all(record.value() == VALUE for record in records)
    assert disk.reads > 1
    reader.close()


def test_a_client_that_disconnects_during_a_disk_read_leaks_nothing(broker: Broker, disk: Disk) -> None:
    reader = consumer(broker)
    wait_for(lambda: reader.poll(0.01) is None and disk.asked.is_set(), "a read from the disk")
    reader.close()
    disk.free.set()
    disk.is_cold = False
    reader = consumer(broker)
    assert next_record(reader).offset() == 0
    reader.close()


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="needs RWF_NOWAIT (Linux)")
def test_data_evicted_from_the_page_cache_is_cold_until_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(bytes(cold_reads.CHUNK))
    file = LogFile.open(path)
    part = FileSlice(file, 100, cold_reads.CHUNK - 200)
    assert not cold_reads.is_cold(part)
    file.sync()
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if not cold_reads.is_cold(part):
        pytest.skip("this file system keeps everything in memory")
    cold_reads.load_part(part)
    assert not cold_reads.is_cold(part)


def test_missing_data_counts_as_warm(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"")
    part = FileSlice(LogFile.open(path), 0, cold_reads.CHUNK)
    assert not cold_reads.is_cold(part)
    cold_reads.load_part(part)
