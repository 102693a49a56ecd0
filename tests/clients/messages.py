"""Messages for the scenarios, and what a client must have made of them."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from tests.clients.drivers.contract import Message, Received

HEADERS = (("source", b"headrace-tests"), ("sort", b"\xc3\xa4pfel"))
# librdkafka sends a batch as it is when compression would not make it smaller
PADDING = "all work and no play " * 8


def plain(count: int, label: str) -> list[Message]:
    """Keyed and unkeyed in turn, without headers."""
    return [
        Message(value=f"{label} {number} {PADDING}", key=f"key {number % 5}" if number % 2 else None)
        for number in range(count)
    ]


def with_headers(count: int, label: str) -> list[Message]:
    return [
        Message(value=message.value, key=message.key, headers=HEADERS) for message in plain(count, f"{label}, headers,")
    ]


def assert_same(received: Iterable[Received], sent: Iterable[Message]) -> None:
    """Every message that was sent came back once, whatever the order, with its key and headers."""
    came = sorted((record.message for record in received), key=str)
    assert came == sorted(sent, key=str)


def assert_in_order(received: Sequence[Received]) -> None:
    """Offsets of each partition begin at 0 and leave nothing out, and a key keeps to one partition."""
    offsets: dict[int, list[int]] = defaultdict(list)
    partitions_of_key: dict[bytes, set[int]] = defaultdict(set)
    for record in received:
        offsets[record.partition].append(record.offset)
        if record.key is not None:
            partitions_of_key[record.key].add(record.partition)
    for partition, seen in offsets.items():
        assert seen == list(range(len(seen))), f"offsets of partition {partition}"
    assert all(len(partitions) == 1 for partitions in partitions_of_key.values()), partitions_of_key
