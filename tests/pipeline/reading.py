"""A topic as any consumer reads it, and the access log as plain Python counts it."""

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Message, TopicPartition

from headrace.pipeline.topics import Topics


@dataclass(frozen=True, slots=True)
class Published:
    """One record of an output topic."""

    key: str
    value: dict[str, Any]
    headers: dict[str, str]

    @property
    def identity(self) -> tuple[str, str, str]:
        """What must be there once: a row of a batch of a writer."""
        return self.headers["job"], self.headers["batch"], self.key


def read_all(bootstrap: str, topic: str) -> list[Published]:
    """Every record from the beginning to the end as it is now, in the order of each partition."""
    ends = Topics(bootstrap).end_offsets(topic)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "test", "enable.auto.commit": False})
    found: list[Published] = []
    try:
        for partition, end in ends.items():
            consumer.assign([TopicPartition(topic, partition, 0)])
            position = 0
            while position < end:
                message = consumer.poll(10)
                assert message is not None, f"no record at {position} of {topic}-{partition}, which ends at {end}"
                assert message.error() is None, message.error()
                position = (message.offset() or 0) + 1
                found.append(_published(message))
    finally:
        consumer.close()
    return found


def _published(message: Message) -> Published:
    headers = dict(_header(*header) for header in message.headers() or [])
    return Published(_text(message.key()), json.loads(_text(message.value()) or "null"), headers)


def _header(name: str, value: str | bytes | None) -> tuple[str, str]:
    return name, _text(value)


def _text(value: str | bytes | None) -> str:
    return value.decode() if isinstance(value, bytes) else value or ""


def latest(records: Iterable[Published]) -> dict[str, dict[str, Any]]:
    """The table that a changelog describes."""
    return {record.key: record.value for record in records}


_LINE = re.compile(r'^(\S+) \S+ \S+ \[([^]]+)\] "(\S+) (\S+) [^"]*" (\d{3}) ')


def requests_per_minute(path: Path) -> Counter[str]:
    """Requests by minute, as ISO 8601 in UTC, counted without any of the code under test."""
    minutes: Counter[str] = Counter()
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        found = _LINE.match(line)
        assert found is not None
        moment = datetime.strptime(found[2], "%d/%b/%Y:%H:%M:%S %z").astimezone(UTC)
        minutes[moment.strftime("%Y-%m-%dT%H:%M:00Z")] += 1
    return minutes
