"""A broker killed repeatedly while idempotent producers write loses, duplicates and reorders nothing."""

import os
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, Producer

from tests.support.broker_process import BrokerProcess
from tests.support.topics import create_topic, read_records
from tests.support.waiting import wait_for

KILLS = int(os.environ.get("HEADRACE_KILLS", "4"))
PARTITIONS = 3
RECORDS_BETWEEN_KILLS = 2000


class Writer:
    """A producer of ascending numbers in each partition that records the acknowledged ones."""

    def __init__(self, bootstrap: str, topic: str, name: str, **settings: Any) -> None:
        self.name = name
        self.sent: dict[int, int] = defaultdict(int)
        self.acknowledged: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self.errors: list[str] = []
        self._topic = topic
        self._stop = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 1,
                "reconnect.backoff.max.ms": 200,
                "message.timeout.ms": 120_000,
                "error_cb": self._on_error,
                "log_level": 0,
                **settings,
            }
        )
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    @property
    def count(self) -> int:
        return sum(map(len, self.acknowledged.values()))

    def finish(self) -> None:
        self._stop.set()
        self._thread.join(60)
        assert self._producer.flush(90) == 0, "records are still in flight"

    def _write(self) -> None:
        while not self._stop.is_set():
            for partition in range(PARTITIONS):
                number = self.sent[partition]
                try:
                    self._producer.produce(
                        self._topic, b"%d" % number, self.name, partition=partition, on_delivery=self._on_delivery
                    )
                except BufferError:
                    continue
                self.sent[partition] += 1
            self._producer.poll(0.001)

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors.append(str(error))
            return
        offset, value = message.offset(), message.value()
        assert offset is not None
        assert isinstance(value, bytes)
        self.acknowledged[message.partition() or 0].append((int(value), offset))

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal():
            self.errors.append(str(error))


@pytest.mark.parametrize(
    "flush_messages", [2**63 - 1, pytest.param(1, marks=pytest.mark.slow)], ids=["page cache", "fsync"]
)
def test_no_acknowledged_record_is_lost_duplicated_or_reordered(tmp_path: Path, flush_messages: int) -> None:
    settings = {"log.segment.bytes": 1_048_576, "log.flush.interval.messages": flush_messages}
    with BrokerProcess(tmp_path / "data", settings=settings) as broker:
        create_topic(broker.bootstrap, "t", PARTITIONS)
        writers = [
            Writer(broker.bootstrap, "t", "plain"),
            Writer(broker.bootstrap, "t", "packed", **{"compression.type": "lz4"}),
        ]
        for _ in range(KILLS):
            goals = [writer.count + RECORDS_BETWEEN_KILLS for writer in writers]
            wait_for(
                lambda goals=goals: all(w.count >= n or w.errors for w, n in zip(writers, goals, strict=True)),  # type: ignore[misc]
                "acknowledged records",
                timeout_s=60,
            )
            broker.restart()
        for writer in writers:
            writer.finish()
            assert writer.errors == []
        found = read_records(broker.bootstrap, "t")
        for writer in writers:
            for partition in range(PARTITIONS):
                own = [
                    (int(record.value() or b""), record.offset())
                    for record in found
                    if (record.partition(), record.key()) == (partition, writer.name.encode())
                ]
                assert [number for number, _ in own] == list(range(writer.sent[partition]))
                assert own == sorted(writer.acknowledged[partition])
