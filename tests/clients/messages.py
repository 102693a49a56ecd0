"""Messages for the scenarios, and checks of the consumed records."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from tests.clients.drivers.contract import Message, Received

HEADERS = (("source", b"headrace-tests"), ("sort", b"\xc3\xa4pfel"))
# compressible: librdkafka does not compress a batch that would not shrink
PADDING = "all work and no play " * 8


def plain(count: int, label: str) -> list[Message]:
    """Return messages without headers, alternately with and without a key."""
    return [
        Message(value=f"{label} {number} {PADDING}", key=f"key {number % 5}" if number % 2 else None)
        for number in range(count)
    ]


def with_headers(count: int, label: str) -> list[Message]:
    return [
        Message(value=message.value, key=message.key, headers=HEADERS) for message in plain(count, f"{label}, headers,")
    ]


def assert_same(received: Iterable[Received], sent: Iterable[Message]) -> None:
    """Check that every message was received once, in any order, with its key and headers."""
    consumed = sorted((record.message for record in received), key=str)
    assert consumed == sorted(sent, key=str)


def assert_in_order(received: Sequence[Received]) -> None:
    """Check that offsets of partitions start at 0 without gaps, and that a key stays in one partition."""
    offsets: dict[int, list[int]] = defaultdict(list)
    partitions_of_key: dict[bytes, set[int]] = defaultdict(set)
    for record in received:
        offsets[record.partition].append(record.offset)
        if record.key is not None:
            partitions_of_key[record.key].add(record.partition)
    for partition, seen in offsets.items():
        assert seen == list(range(len(seen))), f"offsets of partition {partition}"
    assert all(len(partitions) == 1 for partitions in partitions_of_key.values()), partitions_of_key
