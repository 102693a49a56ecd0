"""Produce and InitProducerId: valid and invalid batches, and sequences of idempotent producers."""

import time
from collections.abc import Callable
from typing import Any

from headrace.wire.apis import ApiKey
from headrace.wire.compression import Codec
from headrace.wire.records import RecordData, build_batch
from tests.parity.both import Both, Names, every_version
from tests.parity.records import produce


def records(count: int = 3, *, key: bytes | None = b"k", timestamp: int | None = None) -> list[RecordData]:
    first = round(time.time() * 1000) if timestamp is None else timestamp
    return [RecordData(key, b"value %d" % number, first + number) for number in range(count)]


@every_version(ApiKey.PRODUCE)
def test_records_are_appended(version: int, both: Both, name: Names) -> None:
    topic = both.create(name())
    stamped = both.create(name(), configs={"message.timestamp.type": "LogAppendTime"})
    recompressed = both.create(name(), configs={"compression.type": "lz4"})
    for where in (topic, stamped, recompressed):
        for acks in (1, -1, 1):
            both.ask(ApiKey.PRODUCE, version, produce(where, build_batch(records()), acks=acks), case=where)
        for codec in Codec:
            request = produce(where, build_batch(records(), codec=codec))
            both.ask(ApiKey.PRODUCE, version, request, case=f"{codec.name} {where}")


def with_wrong_crc() -> bytes:
    batch = bytearray(build_batch(records(1)))
    batch[-1] ^= 1
    return bytes(batch)


def with_magic(magic: int) -> bytes:
    batch = bytearray(build_batch(records(1)))
    batch[16] = magic
    return bytes(batch)


# Not compared: null records, which Kafka never answers.
BAD_BATCHES: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "two": lambda: build_batch(records(1)) + build_batch(records(1)),
    "wrong CRC": with_wrong_crc,
    "truncated": lambda: build_batch(records(1))[:-3],
    "header only": lambda: build_batch(records(1))[:61],
    "future": lambda: build_batch(records(timestamp=round(time.time() * 1000) + 10**8)),
    "no timestamp": lambda: build_batch(records(timestamp=-1)),
    "transactional": lambda: build_batch(records(), attributes=0x10, producer_id=5, producer_epoch=0, base_sequence=0),
    "control": lambda: build_batch(records(), attributes=0x20, producer_id=5, producer_epoch=0, base_sequence=0),
    "unknown codec": lambda: build_batch(records(), attributes=0)[:22] + b"\x07" + build_batch(records())[23:],
    "too large": lambda: build_batch([RecordData(b"k", bytes(1_100_000), 1)]),
    "magic 1": lambda: with_magic(1),
    "magic 3": lambda: with_magic(3),
    "base offset": lambda: build_batch(records(), base_offset=7),
    "leader epoch": lambda: build_batch(records(), leader_epoch=7),
}


@every_version(ApiKey.PRODUCE)
def test_bad_batches_are_refused(version: int, both: Both, name: Names) -> None:
    topic = both.create(name())
    for why, batches in BAD_BATCHES.items():
        both.ask(ApiKey.PRODUCE, version, produce(topic, batches()), case=why)
    both.ask(ApiKey.PRODUCE, version, produce(topic, build_batch(records(1))), case="a valid batch after them")


@every_version(ApiKey.PRODUCE)
def test_refused_writes(version: int, both: Both, name: Names) -> None:
    topic = both.create(name())
    compacted = both.create(name(), configs={"cleanup.policy": "compact"})
    alone = both.create(name(), configs={"min.insync.replicas": "2"})
    batch = build_batch(records())
    for case, request in (
        ("acks 5", produce(topic, batch, acks=5)),
        ("acks -2", produce(topic, batch, acks=-2)),
        ("unknown topic", produce("no-such-topic", batch)),
        ("unknown partition", produce(topic, batch, partition=9)),
        ("negative partition", produce(topic, batch, partition=-1)),
        ("no key in a compacted topic", produce(compacted, build_batch(records(key=None)))),
        ("internal topic", produce("__consumer_offsets", batch)),
        ("too few replicas", produce(alone, batch, acks=-1)),
        ("too few replicas, acks 1", produce(alone, batch, acks=1)),
    ):
        both.ask(ApiKey.PRODUCE, version, request, case=case)


def test_sequences_of_an_idempotent_producer(both: Both, name: Names) -> None:
    topic = both.create(name())
    for producer, epoch, sequence, count in (
        (77, 0, 0, 1),
        (77, 0, 0, 1),
        (77, 0, 0, 2),
        (77, 0, 1, 1),
        (77, 0, 5, 1),
        (77, 0, 2, 3),
        (77, 0, 2, 3),
        (77, 0, 3, 1),
        (77, 1, 3, 1),
        (77, 1, 0, 1),
        (77, 1, 1, 1),
        (77, 0, 2, 1),
        (88, 0, 4, 1),
        (88, 0, 5, 1),
        (99, 3, 0, 1),
        (99, 2, 0, 1),
        (99, -1, 0, 1),
        (99, 3, -1, 1),
    ):
        batch = build_batch(records(count), producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
        both.ask(ApiKey.PRODUCE, 9, produce(topic, batch), case=f"{producer} {epoch} {sequence} {count}")
    for sequence in range(8):  # brokers remember the last five batches
        batch = build_batch(records(1), producer_id=5, producer_epoch=0, base_sequence=sequence)
        both.ask(ApiKey.PRODUCE, 9, produce(topic, batch), case=f"{sequence}")
    for sequence in range(8):
        batch = build_batch(records(1), producer_id=5, producer_epoch=0, base_sequence=sequence)
        both.ask(ApiKey.PRODUCE, 9, produce(topic, batch), case=f"{sequence} again")
    indexes = {"topics": [{"name": topic, "partition_indexes": [0, 9]}, {"name": "none", "partition_indexes": [0]}]}
    both.ask(ApiKey.DESCRIBE_PRODUCERS, 0, indexes)


@every_version(ApiKey.INIT_PRODUCER_ID, until=5)
def test_producer_ids(version: int, both: Both) -> None:
    for case, fields in (
        ("none", {}),
        ("an id", {"producer_id": 5}),
        ("an epoch", {"producer_epoch": 5}),
        ("id and epoch", {"producer_id": 5, "producer_epoch": 1}),
        ("no transactional id", {"transactional_id": ""}),
    ):
        message = {"transactional_id": None, "transaction_timeout": 1000, **fields}
        both.send(ApiKey.INIT_PRODUCER_ID, version, message)
        both.receive(ApiKey.INIT_PRODUCER_ID, version, case=case, only=without_the_id)


def without_the_id(answer: Any) -> Any:
    """Hide the producer id, which brokers choose."""
    return {**answer, "producer_id": min(answer["producer_id"], 0)} if isinstance(answer, dict) else answer
