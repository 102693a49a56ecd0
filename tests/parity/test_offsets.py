"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords and DescribeLogDirs."""

from typing import Any

import pytest

from headrace.wire.apis import ApiKey
from headrace.wire.records import RecordData, build_batch
from tests.parity.both import Both, Names, every_version
from tests.parity.records import START, Want, fetch, produce


@pytest.fixture(scope="module")
def filled(session_both: Both) -> str:
    """A topic with two partitions, and five batches in the first."""
    topic = session_both.create(f"offsets-{START}", 2)
    for batch in range(5):
        data = build_batch([RecordData(b"k", b"v", START + 10 * batch + number) for number in range(3)])
        session_both.ask(ApiKey.PRODUCE, 12, produce(topic, data))
    return topic


@every_version(ApiKey.LIST_OFFSETS)
@pytest.mark.parametrize("isolation", [0, 1])
def test_list_offsets(version: int, isolation: int, both: Both, filled: str) -> None:
    def ask(case: str, timestamp: int, epoch: int = -1, topic: str = filled) -> None:
        partitions = [
            {"partition_index": index, "current_leader_epoch": epoch, "timestamp": timestamp} for index in (0, 1, 9)
        ]
        message = {
            "replica_id": -1,
            "isolation_level": isolation,
            "timeout": 1000,
            "topics": [{"name": topic, "partitions": partitions}],
        }
        both.ask(ApiKey.LIST_OFFSETS, version, message, case=case)

    for special in range(-8, 0):
        ask(f"{special}", special)
    for delta in (-(10**9), 0, 1, 2, 3, 9, 10, 11, 41, 42, 43, 10**9):
        ask(f"start + {delta}", START + delta)
    for epoch in (0, 1, 5):
        ask(f"epoch {epoch}", -1, epoch)
    ask("unknown topic", -1, topic="no-such-topic")


@every_version(ApiKey.LIST_OFFSETS)
def test_a_partition_twice(version: int, both: Both, filled: str) -> None:
    partition = {"partition_index": 0, "timestamp": -1}
    message = {
        "replica_id": -1,
        "isolation_level": 0,
        "timeout": 1000,
        "topics": [{"name": filled, "partitions": [partition, partition]}],
    }
    both.ask(ApiKey.LIST_OFFSETS, version, message)


@every_version(ApiKey.OFFSET_FOR_LEADER_EPOCH)
def test_ends_of_leader_epochs(version: int, both: Both, filled: str) -> None:
    for current in (-1, 0, 1):
        for epoch in (-1, 0, 1, 7):
            partitions = [
                {"partition": index, "current_leader_epoch": current, "leader_epoch": epoch} for index in (0, 1, 9)
            ]
            topics = [{"topic": name, "partitions": partitions} for name in (filled, "no-such-topic")]
            message = {"replica_id": -1, "topics": topics}
            both.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, version, message, case=f"{current} {epoch}")


@every_version(ApiKey.DELETE_RECORDS)
def test_records_are_deleted(version: int, both: Both, name: Names) -> None:
    topic = both.create(name(), 2)
    compacted = both.create(name(), configs={"cleanup.policy": "compact"})
    for _ in range(3):
        data = build_batch([RecordData(b"k", b"v", START)] * 3)
        both.ask(ApiKey.PRODUCE, 12, produce(topic, data))

    def delete(where: str, **offsets: int) -> dict[str, Any]:
        partitions = [{"partition_index": int(index[1:]), "offset": offset} for index, offset in offsets.items()]
        return {"topics": [{"name": where, "partitions": partitions}], "timeout": 1000}

    for case, message in (
        ("in a batch", delete(topic, p0=4)),
        ("before the start", delete(topic, p0=1)),
        ("past the end", delete(topic, p0=10, p1=1)),
        ("negative", delete(topic, p0=-2)),
        ("nothing to delete", delete(topic, p1=0)),
        ("unknown partition", delete(topic, p9=0)),
        ("unknown topic", delete("no-such-topic", p0=0)),
        ("compacted topic", delete(compacted, p0=0)),
        ("internal topic", delete("__consumer_offsets", p0=0)),
        ("none", {"topics": [], "timeout": 1000}),
    ):
        both.ask(ApiKey.DELETE_RECORDS, version, message, case=case)
    for offset in (0, 3, 4, 5, 9):
        both.ask(ApiKey.FETCH, 12, fetch([Want(topic=topic, offset=offset)]), case=f"fetch {offset}")
    both.ask(ApiKey.DELETE_RECORDS, version, delete(topic, p0=-1), case="everything")
    both.ask(ApiKey.FETCH, 12, fetch([Want(topic=topic, offset=9)]), case="fetch at the end")


@every_version(ApiKey.DESCRIBE_LOG_DIRS)
def test_log_directories(version: int, both: Both, filled: str) -> None:
    for case, topics in (
        ("one topic", [{"topic": filled, "partitions": [0, 1]}]),
        ("one partition", [{"topic": filled, "partitions": [0]}]),
        ("unknown", [{"topic": filled, "partitions": [9]}, {"topic": "no-such-topic", "partitions": [0]}]),
        ("none", []),
    ):
        both.ask(ApiKey.DESCRIBE_LOG_DIRS, version, {"topics": topics}, case=case)
