"""Consumers of committed records are not affected by log changes under open and aborted transactions."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from headrace.wire.apis import ApiKey
from tests.broker.log_directories import Directories, move
from tests.support.topics import create_topic, read_values
from tests.support.waiting import wait_for
from tests.support.wire_client import WireClient

SETTINGS: dict[str, object] = {
    "log.cleaner.backoff.ms": "100",
    "log.initial.task.delay.ms": "100",
    "transaction.state.log.num.partitions": "1",
}


@pytest.fixture
def dirs(tmp_path: Path) -> Iterator[Directories]:
    dirs = Directories(tmp_path, SETTINGS)
    dirs.broker.start()
    yield dirs
    dirs.broker.close()


def committed(dirs: Directories) -> list[str]:
    """Return the committed records up to the last stable offset."""
    found = read_values(dirs.broker.bootstrap, "t", isolation="read_committed")
    return [value.decode().rstrip() for value in found]


def transactional(dirs: Directories, name: str) -> Producer:
    """A producer with an open transaction."""
    producer = Producer({"bootstrap.servers": dirs.broker.bootstrap, "transactional.id": name, "linger.ms": 0})
    producer.init_transactions(20)
    producer.begin_transaction()
    return producer


def send(producer: Producer, *values: str, key: str | None = None, size: int = 0) -> None:
    for value in values:
        producer.produce("t", value.ljust(size), key=key or value)
    assert producer.flush(20) == 0


def mixed(dirs: Directories) -> Producer:
    """Interleave a committed transaction, an aborted one and an open one; return the producer of the last."""
    first, second, third = (transactional(dirs, item) for item in ("first", "second", "third"))
    send(first, "a")
    send(second, "b")
    send(third, "c")
    send(first, "d")
    first.commit_transaction(20)
    second.abort_transaction(20)
    return third


def test_a_partition_moves_to_another_directory(dirs: Directories) -> None:
    create_topic(dirs.broker.bootstrap, "t")
    producer = mixed(dirs)
    home = dirs.directory_of("t-0")
    target = dirs.other(home)
    with WireClient(dirs.broker.bootstrap) as client:
        assert move(client, target, "t") == "none"
    wait_for((target / "t-0").exists, "the move")
    assert committed(dirs) == ["a"]
    send(producer, "e")
    producer.abort_transaction(20)
    assert committed(dirs) == ["a", "d"]


def test_the_broker_is_killed(dirs: Directories) -> None:
    create_topic(dirs.broker.bootstrap, "t")
    producer = mixed(dirs)
    dirs.broker.sigkill()
    for path in dirs.directory_of("t-0").glob("t-0/*.txnindex"):
        path.unlink()
    dirs.broker.start()
    assert committed(dirs) == ["a"]
    send(producer, "e")
    producer.commit_transaction(20)
    assert committed(dirs) == ["a", "c", "d", "e"]


def test_records_are_deleted_from_an_open_transaction(dirs: Directories) -> None:
    create_topic(dirs.broker.bootstrap, "t")
    producer = mixed(dirs)
    topics = [{"name": "t", "partitions": [{"partition_index": 0, "offset": 3}]}]
    with WireClient(dirs.broker.bootstrap) as client:
        deleted = client.ask(ApiKey.DELETE_RECORDS, 2, {"topics": topics, "timeout": 1000})
    assert deleted["topics"][0]["partitions"][0]["error_code"] == "none"
    dirs.broker.sigterm()
    dirs.broker.start()
    send(producer, "e")
    producer.commit_transaction(20)
    assert committed(dirs) == ["d", "e"]


def test_compaction_stops_before_an_open_transaction(dirs: Directories) -> None:
    settings: dict[str, Any] = {"segment_bytes": 1 << 20, "min_cleanable_dirty_ratio": 0.01}
    create_topic(dirs.broker.bootstrap, "t", cleanup_policy="compact", **settings)
    old, open_one = transactional(dirs, "old"), transactional(dirs, "open")
    send(old, *(f"{number}" for number in range(100)), key="k", size=30_000)
    old.commit_transaction(20)
    send(open_one, "open", key="k")
    old.begin_transaction()
    send(old, *(f"later {number}" for number in range(100)), key="k", size=30_000)
    old.commit_transaction(20)
    checkpoint = dirs.directory_of("t-0") / "cleaner-offset-checkpoint"
    wait_for(lambda: checkpoint.exists() and "t 0 " in checkpoint.read_text(), "a compaction")
    assert "99" in committed(dirs)
    open_one.abort_transaction(20)
    assert committed(dirs)[-1] == "later 99"
