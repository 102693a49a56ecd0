"""Only producers that are faster than the disk wait for it."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from headrace.replication import slow_disk
from headrace.storage.files.log_file import LogFile
from headrace.testing import Broker
from tests.broker.pending_records import PendingRecord, block_disk
from tests.support.flush_disk import Disk
from tests.support.topics import create_topic
from tests.support.waiting import wait_for

STALL_S = slow_disk.STALL_NS / 1e9


@pytest.fixture
def broker(tmp_path: Path, disk: Disk) -> Iterator[Broker]:
    with Broker(data=tmp_path / "data") as broker:
        create_topic(broker.bootstrap, "t")
        yield broker
        disk.free.set()


@pytest.fixture
def stalls(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Stalls of the next writes in seconds, as caused by writeback throttling."""
    stalls: list[float] = []
    append = LogFile.append

    def stalling(*arguments: object) -> None:
        if stalls:
            time.sleep(stalls.pop())
        append(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(LogFile, "append", stalling)
    return stalls


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_after_a_stall_only_producers_wait_for_the_disk(
    broker: Broker, disk: Disk, stalls: list[float], acks: object, caplog: pytest.LogCaptureFixture
) -> None:
    assert wait_for(PendingRecord(broker, "t").poll, "an answer from a fast disk") == "written"
    block_disk(broker, disk, "t")
    stalls.append(STALL_S * 1.5)
    stalled = PendingRecord(broker, "t", acks=1)
    assert disk.begun.wait(10)
    late = PendingRecord(broker, "t", acks=acks)
    assert AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=10).topics
    assert stalled.poll() is None
    assert late.poll() in ({None, "written"} if acks == 0 else {None})
    disk.free.set()
    assert [wait_for(item.poll, "an answer") for item in (stalled, late)] == ["written", "written"]
    assert "The disk is slower than the producers" in caplog.text


def test_producers_stop_waiting_after_the_disk_has_recovered(
    broker: Broker, disk: Disk, stalls: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_disk, "_LASTS_NS", 0)
    stalls.append(STALL_S * 1.5)
    assert wait_for(PendingRecord(broker, "t").poll, "an answer") == "written"
    block_disk(broker, disk, "t")
    assert wait_for(PendingRecord(broker, "t").poll, "an answer without the disk") == "written"
