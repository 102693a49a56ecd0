"""Read a topic with a plain consumer, and count the access log in plain Python."""

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from confluent_kafka import Message

from tests.support.topics import read_records


@dataclass(frozen=True, slots=True)
class Published:
    """A record of an output topic."""

    key: str
    value: dict[str, Any]
    headers: dict[str, str]

    @property
    def identity(self) -> tuple[str, str, str]:
        """Writer, batch and row: unique in the topic."""
        return self.headers["job"], self.headers["batch"], self.key


def read_all(bootstrap: str, topic: str) -> list[Published]:
    """Return the records up to the current end offsets, partition by partition."""
    return [_published(message) for message in read_records(bootstrap, topic)]


def read_committed(bootstrap: str, topic: str) -> list[Published]:
    """Return the records of committed transactions up to the last stable offsets, partition by partition."""
    return [_published(message) for message in read_records(bootstrap, topic, isolation="read_committed")]


def _published(message: Message) -> Published:
    headers = dict(_header(*header) for header in message.headers() or [])
    return Published(_text(message.key()), json.loads(_text(message.value()) or "null"), headers)


def _header(name: str, value: str | bytes | None) -> tuple[str, str]:
    return name, _text(value)


def _text(value: str | bytes | None) -> str:
    return value.decode() if isinstance(value, bytes) else value or ""


def latest(records: Iterable[Published]) -> dict[str, dict[str, Any]]:
    """Return the table of a changelog."""
    return {record.key: record.value for record in records}


_LINE = re.compile(r'^(\S+) \S+ \S+ \[([^]]+)\] "(\S+) (\S+) [^"]*" (\d{3}) ')


def requests_per_minute(path: Path) -> Counter[str]:
    """Count requests by minute, as ISO 8601 in UTC, without the code under test."""
    minutes: Counter[str] = Counter()
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        found = _LINE.match(line)
        assert found is not None
        moment = datetime.strptime(found[2], "%d/%b/%Y:%H:%M:%S %z").astimezone(UTC)
        minutes[moment.strftime("%Y-%m-%dT%H:%M:00Z")] += 1
    return minutes
