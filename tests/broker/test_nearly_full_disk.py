"""Producers fill a small disk: they wait at the hard mark, everything else works, and nothing is lost."""

import os
import re
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka import KafkaError as ClientError
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from kafka import KafkaProducer
from prometheus_client.parser import text_string_to_metric_families

from headrace.errors import ErrorCode
from headrace.wire.apis import ApiKey
from headrace.wire.records import RecordData, build_batch
from tests.support.broker_process import BrokerProcess
from tests.support.ports import free_port
from tests.support.small_disk import small_disk
from tests.support.topics import create_topic, read_records
from tests.support.waiting import wait_for
from tests.support.wire_client import WireClient

MIB = 1024 * 1024
DISK = 64 * MIB
SOFT = 24 * MIB
HARD = 16 * MIB
VALUE = bytes(10_000)
REFUSES_RECORDS = "refuse records from clients"
ACCEPTS_RECORDS = "accept records again"


class Flood:
    """A producer that writes numbered records as fast as the broker accepts them."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.acknowledged: list[tuple[int, int]] = []
        self.errors: list[str] = []
        self._topic = topic
        self._stop = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "queue.buffering.max.kbytes": 4096,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 100,
                "error_cb": lambda error: self.errors.append(str(error)) if error.fatal() else None,
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def _write(self) -> None:
        number = 0
        while not self._stop.is_set():
            try:
                self._producer.produce(self._topic, VALUE, str(number), partition=0, on_delivery=self._delivered)
                number += 1
            except BufferError:
                self._producer.poll(0.01)
            self._producer.poll(0)

    def _delivered(self, error: ClientError | None, message: Message) -> None:
        if error is not None:
            self.errors.append(str(error))
            return
        key, offset = message.key(), message.offset()
        assert isinstance(key, bytes)
        assert offset is not None
        self.acknowledged.append((int(key), offset))

    def finish(self) -> None:
        self._stop.set()
        self._thread.join(30)
        assert self._producer.flush(60) == 0, "records are still in flight"


class Cluster:
    """The broker on the small disk, with an admin client."""

    def __init__(self, broker: BrokerProcess, http_port: int) -> None:
        self.broker = broker
        self.admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        self._http_port = http_port

    def configure(self, topic: str, name: str, value: object) -> None:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        resource.add_incremental_config(ConfigEntry(name, str(value), incremental_operation=AlterConfigOpType.SET))
        for future in self.admin.incremental_alter_configs([resource]).values():
            future.result(10)

    def free(self) -> int:
        system = os.statvfs(self.broker.data)
        return system.f_bavail * system.f_frsize

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._http_port}/metrics", timeout=10) as answer:
            families = text_string_to_metric_families(answer.read().decode())
        (value,) = [sample.value for family in families for sample in family.samples if sample.name == name]
        return value

    def size_without_the_oldest_segment(self, topic: str) -> int:
        segments = sorted((self.broker.data / f"{topic}-0").glob("*.log"))
        try:
            return sum(segment.stat().st_size for segment in segments[1:])
        except FileNotFoundError:  # Retention is deleting them.
            return DISK

    def times(self, words: str) -> int:
        return self.broker.log().count(words)

    def wait_for_line(self, words: str, times: int) -> None:
        wait_for(lambda: self.times(words) >= times, f"{words!r} in the log, {times} times", timeout_s=40)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    port = free_port()
    settings: dict[str, Any] = {
        "headrace.disk.soft.free.bytes": SOFT,
        "headrace.disk.hard.free.bytes": HARD,
        "headrace.http.listener": port,
        "log.segment.bytes": MIB,
        "log.retention.check.interval.ms": 1000,
        "offsets.topic.num.partitions": 1,
    }
    with small_disk(tmp_path / "small", DISK // MIB) as disk:
        broker = BrokerProcess(disk / "data", settings=settings)
        broker.log_path = tmp_path / "broker.log"  # not on the small disk
        with broker:
            yield Cluster(broker, port)


def refusal(bootstrap: str, topic: str) -> tuple[str, str | None]:
    """Return the error that a producer gets and the setting named in its message."""
    message = {
        "acks": 1,
        "timeout": 9000,
        "topic_data": [
            {"name": topic, "partition_data": [{"index": 0, "records": build_batch([RecordData(None, b"v", 1)])}]}
        ],
    }
    with WireClient(bootstrap) as client:
        answer = client.ask(ApiKey.PRODUCE, 9, message)["responses"][0]["partition_responses"][0]
    found = re.search(r"headrace\.disk\.\w+\.\w+", answer["error_message"] or "")
    return answer["error_code"], found and found[0]


def records_of(bootstrap: str, topic: str) -> list[tuple[int, int]]:
    """Return the number and offset of every record, in log order."""
    return [(int(record.key() or b""), record.offset() or 0) for record in read_records(bootstrap, topic)]


def commit(bootstrap: str, topic: str) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader"})
    consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    consumer.close()


def test_producers_wait_at_the_hard_mark_and_everything_else_works(cluster: Cluster) -> None:
    bootstrap = cluster.broker.bootstrap
    create_topic(bootstrap, "ballast")
    ballast = Producer({"bootstrap.servers": bootstrap})
    for _ in range(20 * MIB // len(VALUE)):
        ballast.produce("ballast", VALUE, "0")
        ballast.poll(0)
    assert ballast.flush(30) == 0
    commit(bootstrap, "ballast")  # creates the offsets topic

    create_topic(bootstrap, "t", retention_bytes=-1)
    flood = Flood(bootstrap, "t")
    cluster.wait_for_line(REFUSES_RECORDS, 1)
    assert cluster.times("less than the soft mark") >= 1
    assert cluster.metric("headrace_log_directory_fullness") == 2
    stopped_at = len(flood.acknowledged)
    assert stopped_at * len(VALUE) > 10 * MIB
    assert cluster.free() > HARD // 2
    assert refusal(bootstrap, "t") == (ErrorCode.kafka_storage_error.name, "headrace.disk.hard.free")

    # at the hard mark, only records of clients are refused
    commit(bootstrap, "t")
    found = records_of(bootstrap, "t")
    assert set(flood.acknowledged) <= set(found)
    create_topic(bootstrap, "another")
    cluster.configure("another", "retention.ms", 1000)
    waiting = KafkaProducer(bootstrap_servers=bootstrap, retries=1000, retry_backoff_ms=50)
    sent = waiting.send("another", VALUE)

    # free space by a deletion
    cluster.admin.delete_topics(["ballast"])["ballast"].result(10)
    cluster.wait_for_line(ACCEPTS_RECORDS, 1)
    cluster.wait_for_line(REFUSES_RECORDS, 2)
    assert len(flood.acknowledged) > stopped_at
    assert sent.get(timeout=20).offset == 0
    waiting.close()

    # a crash on a full disk
    cluster.broker.restart()
    cluster.wait_for_line(REFUSES_RECORDS, 3)

    # free space by retention
    cluster.configure("t", "retention.bytes", 8 * MIB)
    cluster.wait_for_line(ACCEPTS_RECORDS, 2)
    before = len(flood.acknowledged)
    wait_for(lambda: len(flood.acknowledged) > before + 2000 or flood.errors, "more records", timeout_s=40)
    flood.finish()
    assert flood.errors == []
    numbers = [number for number, _ in flood.acknowledged]
    assert sorted(numbers) == list(range(len(numbers)))
    assert [offset for _, offset in sorted(flood.acknowledged)] == list(range(len(numbers)))
    # Segments that are deleted while they are read would be missing.
    wait_for(lambda: cluster.size_without_the_oldest_segment("t") < 8 * MIB, "the end of retention")
    kept = records_of(bootstrap, "t")
    assert kept == sorted(flood.acknowledged)[-len(kept) :]
    assert len(kept) * len(VALUE) > 4 * MIB
