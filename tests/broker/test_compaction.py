"""Compaction keeps the last value of each key while clients read and write."""

import logging
import random
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from prometheus_client.parser import text_string_to_metric_families

from headrace.testing import Broker
from tests.support.topics import create_topic, read_records
from tests.support.waiting import wait_for

MEGABYTE = 1024 * 1024
SETTINGS = {
    "log.cleaner.backoff.ms": "100",
    "log.segment.delete.delay.ms": "0",
    "headrace.http.listener": "0",
}


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(SETTINGS) as broker:
        yield broker


def create(broker: Broker, topic: str) -> None:
    settings: dict[str, Any] = {
        "cleanup_policy": "compact",
        "segment_bytes": MEGABYTE,
        "min_cleanable_dirty_ratio": 0.1,
    }
    create_topic(broker.bootstrap, topic, **settings)


def fill(broker: Broker, topic: str, megabytes: int = 5) -> dict[bytes, int]:
    """Return the offset of the last record of each key."""
    last: dict[bytes, int] = {}
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "batch.size": 50_000,
            "linger.ms": 5,
            "compression.type": "lz4",
            "enable.idempotence": True,
        }
    )

    def delivered(error: object, message: Any) -> None:
        assert error is None
        last[message.key()] = message.offset()

    for number in range(megabytes * 100):
        value = random.Random(number).randbytes(10_000)  # incompressible
        producer.produce(topic, value, key=f"key-{number % 20}", partition=0, on_delivery=delivered)
        producer.poll(0)
    assert producer.flush(30) == 0
    return last


def read(broker: Broker, topic: str) -> list[tuple[int | None, object]]:
    """Return the offset and key of every record."""
    return [(record.offset(), record.key()) for record in read_records(broker.bootstrap, topic)]


def log_bytes(broker: Broker, topic: str) -> int:
    total = 0
    for path in Path(broker.data, f"{topic}-0").glob("*.log"):
        with suppress(FileNotFoundError):  # the cleaner has just removed it
            total += path.stat().st_size
    return total


def metric(broker: Broker, name: str) -> float:
    with urllib.request.urlopen(f"{broker.http}/metrics", timeout=10) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return sum(sample.value for family in families for sample in family.samples if sample.name == name)


def test_a_topic_shrinks_to_the_last_values(broker: Broker) -> None:
    create(broker, "table")
    last = fill(broker, "table")
    wait_for(lambda: log_bytes(broker, "table") < 2 * MEGABYTE, "the log shrinks")
    found = read(broker, "table")
    assert [offset for offset, _ in found] == sorted({offset or 0 for offset, _ in found})
    assert {key: offset for offset, key in found} == last
    again = fill(broker, "table", 1)
    assert {key: offset for offset, key in read(broker, "table")} == again


def test_a_damaged_log_is_reported_and_others_compacted(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    create(broker, "damaged")
    create(broker, "sound")
    with caplog.at_level(logging.INFO):
        first = Path(broker.data, "damaged-0", f"{0:020d}.log")
        fill(broker, "damaged", 1)
        content = bytearray(first.read_bytes())
        content[len(content) // 2] ^= 1
        first.write_bytes(content)
        fill(broker, "damaged", 2)
        wait_for(lambda: "Compaction of damaged-0 failed" in caplog.text, "the damage is found")
        fill(broker, "sound")
        wait_for(lambda: log_bytes(broker, "sound") < 2 * MEGABYTE, "the other log shrinks")
        assert metric(broker, "kafka_log_logcleanermanager_uncleanable_partitions_count") == 1
        assert metric(broker, "kafka_log_logcleanermanager_uncleanable_bytes") >= MEGABYTE
        assert metric(broker, "headrace_log_cleaner_failing") == 1
        assert metric(broker, "kafka_log_logcleaner_deadthreadcount") == 0
    assert caplog.text.count("Compaction of damaged-0 failed") == 1
    assert "has no valid batch at byte" in caplog.text


def test_compacted_records_survive_a_restart(tmp_path: Path) -> None:
    with Broker(SETTINGS, data=tmp_path) as broker:
        create(broker, "table")
        last = fill(broker, "table")
        checkpoint = tmp_path / "cleaner-offset-checkpoint"
        wait_for(
            lambda: checkpoint.exists() and "table 0 " in checkpoint.read_text(), "the checkpoint of the compaction"
        )
        wait_for(lambda: log_bytes(broker, "table") < 2 * MEGABYTE, "the log shrinks")
    with Broker(SETTINGS, data=tmp_path) as broker:
        assert {key: offset for offset, key in read(broker, "table")} == last
