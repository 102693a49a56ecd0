"""A completely full disk causes a gap in the history of groups and no other failure."""

import contextlib
import os
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, TopicPartition

from tests.broker.watched_groups import SETTINGS, get, member, produce
from tests.support.broker_process import BrokerProcess
from tests.support.ports import free_port
from tests.support.small_disk import small_disk
from tests.support.topics import create_topic
from tests.support.waiting import wait_for

LOST = "headrace_group_history_events_lost_total"


class Disks:
    """A broker with metadata and history on a small disk, and the groups' topics on a large one."""

    def __init__(self, small: Path, roomy: Path) -> None:
        self.small, self.roomy = small, roomy
        address = f"127.0.0.1:{free_port()}"
        self.http = f"http://{address}"
        settings = {**SETTINGS, "headrace.http.listener": address, "offsets.topic.num.partitions": 1}
        self.broker = BrokerProcess(Path(f"{small / 'data'},{roomy}"), settings=settings)
        self.broker.log_path = roomy.with_name("broker.log")

    def fill(self) -> None:
        with (self.small / "ballast").open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
            while True:
                ballast.write(bytes(4096))
        assert not os.statvfs(self.small).f_bavail

    def free_space(self) -> None:
        (self.small / "ballast").unlink()

    def last_point(self) -> list[Any]:
        """Return the time, committed offset, end and lag of the latest sample."""
        series = get(self.http, "/groups/history?group=g")["series"]
        return list(series[0]["points"][-1]) if series else [None, None]

    def events_lost(self) -> float:
        with urllib.request.urlopen(f"{self.http}/metrics", timeout=10) as answer:
            found = re.search(rf"^{LOST} (\S+)$", answer.read().decode(), re.MULTILINE)
        assert found
        return float(found[1])


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[Disks]:
    with small_disk(tmp_path / "small", 8) as disk:
        disks = Disks(disk, tmp_path / "roomy")
        with disks.broker:
            # A new partition goes to the directory with the fewest: orders and the offsets topic go to the large disk.
            for topic in ("first", "orders", "third"):
                create_topic(disks.broker.bootstrap, topic)
            yield disks


def commit(consumer: Consumer, offset: int) -> None:
    consumer.commit(offsets=[TopicPartition("orders", 0, offset)], asynchronous=False)


def last_offset(messages: list[Message]) -> int | None:
    return messages[-1].offset() if messages else None


def test_groups_work_and_their_history_resumes_after_space_is_freed(disks: Disks) -> None:
    bootstrap = disks.broker.bootstrap
    produce(bootstrap, 100)
    with member(bootstrap, "g") as consumer:
        commit(consumer, 10)
        wait_for(lambda: disks.last_point()[1] == 10, "a sample")
        assert {"orders-0", "__consumer_offsets-0"} <= {path.name for path in disks.roomy.iterdir()}

        disks.fill()
        for offset in range(11, 61):
            commit(consumer, offset)
        produce(bootstrap, 10)
        with member(bootstrap, "late") as late:
            wait_for(lambda: last_offset(late.consume(200, 0.1)) == 109, "the last record")
            commit(late, 110)
        wait_for(disks.events_lost, "events that cannot be kept")
        [now] = get(disks.http, "/groups/describe?group=g")["partitions"]
        assert (now["committed"], now["end"]) == (60, 110), "the current state does not need the disk"

        disks.free_space()
        commit(consumer, 77)
        wait_for(lambda: disks.last_point()[1:4] == [77, 110, 33], "a sample after the gap")
    wait_for(lambda: get(disks.http, "/groups/timeline?group=g")["events"][-1]["event"] == "empty", "later events")
    assert disks.broker.log().count("Cannot read or write the history of groups") == 1
