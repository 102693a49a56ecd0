"""Requests that write and read records."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.parity.both import Request, Side

START = round(time.time() * 1000)


def produce(topic: str, batches: bytes, *, partition: int = 0, acks: int = 1) -> Request:
    def message(side: Side) -> dict[str, Any]:
        data = {"index": partition, "records": batches}
        return {
            "acks": acks,
            "timeout": 1000,
            "topic_data": [{"name": topic, "topic_id": side.topic_id(topic), "partition_data": [data]}],
        }

    return message


@dataclass(frozen=True, kw_only=True)
class Want:
    """A partition to fetch."""

    topic: str
    offset: int = 0
    partition: int = 0
    max_bytes: int = 1 << 20
    leader_epoch: int = -1
    last_epoch: int = -1


def fetch(
    wants: Sequence[Want],
    *,
    max_bytes: int = 1 << 20,
    min_bytes: int = 1,
    max_wait: int = 50,
    isolation: int = 0,
    session: Callable[[Side], tuple[int, int]] = lambda _: (0, -1),
    forgotten: Sequence[Want] = (),
) -> Request:
    def message(side: Side) -> dict[str, Any]:
        session_id, epoch = session(side)
        topics: dict[str, list[dict[str, Any]]] = {}
        for want in wants:
            entry = {
                "partition": want.partition,
                "current_leader_epoch": want.leader_epoch,
                "fetch_offset": want.offset,
                "last_fetched_epoch": want.last_epoch,
                "partition_max_bytes": want.max_bytes,
            }
            topics.setdefault(want.topic, []).append(entry)
        return {
            "replica_id": -1,
            "max_wait": max_wait,
            "min_bytes": min_bytes,
            "max_bytes": max_bytes,
            "isolation_level": isolation,
            "session_id": session_id,
            "session_epoch": epoch,
            "topics": [
                {"topic": topic, "topic_id": side.topic_id(topic), "partitions": partitions}
                for topic, partitions in topics.items()
            ],
            "forgotten_topics_data": [
                {"topic": item.topic, "topic_id": side.topic_id(item.topic), "partitions": [item.partition]}
                for item in forgotten
            ],
        }

    return message
