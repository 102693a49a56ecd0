"""Invalid record batches are refused with Kafka's error and logged, and the partition is unchanged."""

import gzip
import struct
import zlib
from typing import Final

import pytest

from tests.hostile.conftest import BrokerLog, Bystander, Memory
from tests.hostile.raw import CLIENT_ID, PRODUCE, Batch, RawConnection, framed, produce_body, record, request, varint

UNKNOWN_SERVER_ERROR, CORRUPT_MESSAGE, MESSAGE_TOO_LARGE, INVALID_TOPIC = -1, 2, 10, 17
TRANSACTIONAL_ID_AUTHORIZATION_FAILED, INVALID_RECORD = 53, 87

GOOD: Final = Batch().encode()
RECORDS: Final = b"".join(record(delta, value) for delta, value in enumerate((b"first", b"second", b"third")))
GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4


def old_message(magic: int, *, attributes: int = 0, value: bytes = b"old") -> bytes:
    timestamp = struct.pack(">q", 0) if magic else b""
    content = struct.pack(">bb", magic, attributes) + timestamp + struct.pack(">ii", -1, len(value)) + value
    message = struct.pack(">I", zlib.crc32(content)) + content
    return struct.pack(">qi", 0, len(message)) + message


def nested_old_message() -> bytes:
    inner = old_message(1, attributes=GZIP, value=gzip.compress(old_message(1)))
    return old_message(1, attributes=GZIP, value=gzip.compress(inner))


def bad_batch(
    *,
    key_length: int = 3,
    value_length: int = 5,
    headers: int = 0,
    trailing: bytes = b"",
    compressed: bool = False,
) -> bytes:
    """Return a batch of a valid record and one with wrong lengths inside; its own length is right."""
    body = record(0, b"valid") + bad_record(1, key_length, value_length, headers, trailing)
    if compressed:
        return Batch(attributes=GZIP, body=gzip.compress(body), count=2, last_offset_delta=1).encode()
    return Batch(body=body, count=2, last_offset_delta=1).encode()


def bad_hundredth() -> bytes:
    """Return a batch of 99 equal records and one whose value is a byte too long."""
    body = b"".join(bad_record(delta, 3, 5 + (delta == 99), 0, b"") for delta in range(100))
    return Batch(body=body, count=100, last_offset_delta=99).encode()


def bad_record(offset_delta: int, key_length: int, value_length: int, headers: int, trailing: bytes) -> bytes:
    content = b"\0" + varint(0) + varint(offset_delta) + varint(key_length) + b"key" + varint(value_length) + b"value"
    content += varint(headers) + trailing
    return varint(len(content)) + content


REFUSED: Final = {
    "wrong CRC": (CORRUPT_MESSAGE, Batch(crc=1).encode()),
    "empty": (INVALID_RECORD, b""),
    "truncated header": (INVALID_RECORD, GOOD[:30]),
    "truncated records": (INVALID_RECORD, GOOD[:-5]),
    "length beyond the request": (INVALID_RECORD, Batch(length=10_000).encode()),
    "length below a header": (CORRUPT_MESSAGE, Batch(length=5).encode()),
    "two batches": (INVALID_RECORD, GOOD + GOOD),
    "count too high": (INVALID_RECORD, Batch(count=10).encode()),
    "count too low": (INVALID_RECORD, Batch(count=2).encode()),
    "no records": (INVALID_RECORD, Batch(count=0, values=()).encode()),
    "last offset too high": (INVALID_RECORD, Batch(last_offset_delta=9).encode()),
    "record too long": (INVALID_RECORD, Batch(body=varint(500) + RECORDS[1:]).encode()),
    "key longer than its record": (INVALID_RECORD, bad_batch(key_length=40)),
    "value longer than its record": (INVALID_RECORD, bad_batch(value_length=5000)),
    "value of 2 GB": (INVALID_RECORD, bad_batch(value_length=2**31 - 1)),
    "missing header": (INVALID_RECORD, bad_batch(headers=1)),
    "more headers than bytes": (INVALID_RECORD, bad_batch(headers=2**31 - 1)),
    "bytes after the headers": (INVALID_RECORD, bad_batch(trailing=b"more")),
    "value a byte too long, compressed": (INVALID_RECORD, bad_batch(value_length=6, compressed=True)),
    "value a byte too long in the last of a hundred": (INVALID_RECORD, bad_hundredth()),
    "second batch with a length below a header": (CORRUPT_MESSAGE, GOOD + bytes(20)),
    "second batch of magic 3": (CORRUPT_MESSAGE, GOOD + GOOD[:16] + b"\3"),
    "base offset not 0": (INVALID_RECORD, Batch(base_offset=7).encode()),
    "control batch": (INVALID_RECORD, Batch(attributes=0x20).encode()),
    "transaction without an id": (TRANSACTIONAL_ID_AUTHORIZATION_FAILED, Batch(attributes=0x10).encode()),
    "producer id without a sequence": (INVALID_RECORD, Batch(producer_id=5, producer_epoch=0).encode()),
    "over max.message.bytes": (MESSAGE_TOO_LARGE, Batch(values=(bytes(2_000_000),)).encode()),
    "message format v0": (INVALID_RECORD, old_message(0)),
    "message format v1": (INVALID_RECORD, old_message(1)),
    "nested compression": (INVALID_RECORD, nested_old_message()),
    "message format v3": (CORRUPT_MESSAGE, Batch(magic=3).encode()),
    "compressed twice": (INVALID_RECORD, Batch(attributes=GZIP, body=gzip.compress(gzip.compress(RECORDS))).encode()),
    "batch in a batch": (INVALID_RECORD, Batch(attributes=GZIP, body=gzip.compress(GOOD)).encode()),
    "truncated gzip": (UNKNOWN_SERVER_ERROR, Batch(attributes=GZIP, body=gzip.compress(RECORDS)[:-12]).encode()),
    "not gzip": (UNKNOWN_SERVER_ERROR, Batch(attributes=GZIP).encode()),
    "not snappy": (UNKNOWN_SERVER_ERROR, Batch(attributes=SNAPPY).encode()),
    "not lz4": (UNKNOWN_SERVER_ERROR, Batch(attributes=LZ4).encode()),
    "not zstd": (UNKNOWN_SERVER_ERROR, Batch(attributes=ZSTD).encode()),
    "unknown compression": (UNKNOWN_SERVER_ERROR, Batch(attributes=5).encode()),
}


def test_trailing_bytes_after_a_batch_are_dropped(address: tuple[str, int], topic: str) -> None:
    with RawConnection(*address) as connection:
        for place, trailing in enumerate((b"\0", GOOD[:16], GOOD[:-1], b"\xff" * 11)):
            assert connection.produce(topic, GOOD + trailing) == (0, 3 * place), trailing
        error, records = connection.fetch(topic, 0)
        assert error == 0
        assert len(records) == 4 * len(GOOD)


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_batch_is_refused(
    name: str, address: tuple[str, int], topic: str, bystander: Bystander, log: BrokerLog
) -> None:
    code, records = REFUSED[name]
    with RawConnection(*address) as connection:
        assert connection.produce(topic, records) == (code, -1)
        log.has_warning("refused", CLIENT_ID, address[0], topic)
        # the connection still works, and the partition is empty
        assert connection.produce(topic, GOOD) == (0, 0)
    bystander.check()


def test_a_decompression_bomb_does_not_fill_the_memory(
    address: tuple[str, int], topic: str, bystander: Bystander, memory: Memory
) -> None:
    packer = zlib.compressobj(wbits=31)
    bomb = b"".join([*(packer.compress(bytes(1 << 20)) for _ in range(200)), packer.flush()])
    with RawConnection(*address) as connection:
        error, _ = connection.produce(topic, Batch(attributes=GZIP, body=bomb).encode())
    assert error in (0, INVALID_RECORD, UNKNOWN_SERVER_ERROR)
    memory.has_grown_by_at_most(60 << 20)
    bystander.check()


def test_clients_cannot_write_to_internal_topics(address: tuple[str, int], bystander: Bystander) -> None:
    with RawConnection(*address) as connection:
        connection.auto_create_topic("__consumer_offsets")
        assert connection.produce("__consumer_offsets", GOOD)[0] == INVALID_TOPIC
    bystander.check()


def test_impossible_acks_are_refused(address: tuple[str, int], topic: str) -> None:
    with RawConnection(*address) as connection:
        for acks in (5, -2):
            assert connection.produce(topic, GOOD, acks=acks) == (21, -1)


def test_a_bad_batch_without_acks_closes_the_connection(
    address: tuple[str, int], topic: str, bystander: Bystander, log: BrokerLog
) -> None:
    with RawConnection(*address) as connection:
        connection.send(framed(request(PRODUCE, 8, produce_body(topic, Batch(crc=1).encode(), acks=0))))
        assert connection.is_closed_by_broker()
        log.has_warning("Closing connection", CLIENT_ID, f"{address[0]}:{connection.local_port}", "acks=0")
    bystander.check()


def test_forbidden_topic_names_are_refused(address: tuple[str, int], bystander: Bystander) -> None:
    with RawConnection(*address) as connection:
        for name in ("", ".", "..", "two words", "a/b", "a" * 250, "ä", "nul\0"):
            assert connection.create_topic(name) == INVALID_TOPIC, name
            assert connection.auto_create_topic(name) == INVALID_TOPIC, name
    bystander.check()
