"""Record batches that lie: each is refused with Kafka's error, is named in the log, and leaves the log as it was."""

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
    """A message of format v0 or v1."""
    timestamp = struct.pack(">q", 0) if magic else b""
    content = struct.pack(">bb", magic, attributes) + timestamp + struct.pack(">ii", -1, len(value)) + value
    message = struct.pack(">I", zlib.crc32(content)) + content
    return struct.pack(">qi", 0, len(message)) + message


def nested_old_message() -> bytes:
    """Format v1, compressed within compressed."""
    inner = old_message(1, attributes=GZIP, value=gzip.compress(old_message(1)))
    return old_message(1, attributes=GZIP, value=gzip.compress(inner))


def inside(
    *,
    key_length: int = 3,
    value_length: int = 5,
    headers: int = 0,
    behind: bytes = b"",
    packed: bool = False,
) -> bytes:
    """A batch of one honest record and one that lies about what is in it; its own length is right."""
    body = record(0, b"honest") + lying(1, key_length, value_length, headers, behind)
    if packed:
        return Batch(attributes=GZIP, body=gzip.compress(body), count=2, last_offset_delta=1).encode()
    return Batch(body=body, count=2, last_offset_delta=1).encode()


def among_many(*, value_length: int = 5, headers: int = 0) -> bytes:
    """A hundred records of which the last lies: the others are all alike."""
    body = b"".join(lying(delta, 3, 5, 0, b"") for delta in range(99)) + lying(99, 3, value_length, headers, b"")
    return Batch(body=body, count=100, last_offset_delta=99).encode()


def lying(offset_delta: int, key_length: int, value_length: int, headers: int, behind: bytes) -> bytes:
    content = b"\0" + varint(0) + varint(offset_delta) + varint(key_length) + b"key" + varint(value_length) + b"value"
    content += varint(headers) + behind
    return varint(len(content)) + content


REFUSED: Final = {
    "wrong CRC": (CORRUPT_MESSAGE, Batch(crc=1).encode()),
    "no batch at all": (INVALID_RECORD, b""),
    "torn in its header": (INVALID_RECORD, GOOD[:30]),
    "torn in its records": (INVALID_RECORD, GOOD[:-5]),
    "longer than what was sent": (INVALID_RECORD, Batch(length=10_000).encode()),
    "shorter than a header": (CORRUPT_MESSAGE, Batch(length=5).encode()),
    "of negative length": (CORRUPT_MESSAGE, Batch(length=-20).encode()),
    "two batches": (INVALID_RECORD, GOOD + GOOD),
    "counts too many": (INVALID_RECORD, Batch(count=10).encode()),
    "counts too many, last offset too": (INVALID_RECORD, Batch(count=10, last_offset_delta=9).encode()),
    "counts too few": (INVALID_RECORD, Batch(count=2).encode()),
    "counts too few, last offset too": (INVALID_RECORD, Batch(count=2, last_offset_delta=1).encode()),
    "counts none": (INVALID_RECORD, Batch(count=0).encode()),
    "is empty": (INVALID_RECORD, Batch(count=0, values=()).encode()),
    "counts a negative number": (INVALID_RECORD, Batch(count=-1).encode()),
    "last offset too high": (INVALID_RECORD, Batch(last_offset_delta=9).encode()),
    "last offset negative": (INVALID_RECORD, Batch(last_offset_delta=-5).encode()),
    "a record too long": (INVALID_RECORD, Batch(body=varint(500) + RECORDS[1:]).encode()),
    "a record of negative length": (INVALID_RECORD, Batch(body=varint(-5) + RECORDS[1:]).encode()),
    "a record too short": (INVALID_RECORD, Batch(body=varint(3) + RECORDS[1:]).encode()),
    "a key longer than its record": (INVALID_RECORD, inside(key_length=40)),
    "a key a byte longer": (INVALID_RECORD, inside(key_length=4)),
    "a key a byte shorter": (INVALID_RECORD, inside(key_length=2)),
    "a value longer than its record": (INVALID_RECORD, inside(value_length=5000)),
    "a value a byte longer": (INVALID_RECORD, inside(value_length=6)),
    "a value a byte shorter": (INVALID_RECORD, inside(value_length=4)),
    "a value of 2 GB": (INVALID_RECORD, inside(value_length=2**31 - 1)),
    "a header that is not there": (INVALID_RECORD, inside(headers=1)),
    "more headers than bytes": (INVALID_RECORD, inside(headers=2**31 - 1)),
    "fewer than no headers": (INVALID_RECORD, inside(headers=-1)),
    "a header without a name": (INVALID_RECORD, inside(headers=1, behind=varint(-1) + varint(0))),
    "a header longer than its record": (INVALID_RECORD, inside(headers=1, behind=varint(9) + b"name" + varint(-1))),
    "a header's value a byte longer": (INVALID_RECORD, inside(headers=1, behind=varint(1) + b"n" + varint(2) + b"v")),
    "bytes behind the headers": (INVALID_RECORD, inside(behind=b"more")),
    "a value a byte longer, compressed": (INVALID_RECORD, inside(value_length=6, packed=True)),
    "a header that is not there, compressed": (INVALID_RECORD, inside(headers=1, packed=True)),
    "fewer than no headers, compressed": (INVALID_RECORD, inside(headers=-1, packed=True)),
    "the last of a hundred with a value a byte longer": (INVALID_RECORD, among_many(value_length=6)),
    "the last of a hundred with a header that is not there": (INVALID_RECORD, among_many(headers=1)),
    "a batch and the header of one that says it is shorter than can be": (CORRUPT_MESSAGE, GOOD + bytes(20)),
    "a batch and the header of one of magic 3": (CORRUPT_MESSAGE, GOOD + GOOD[:16] + b"\3"),
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
    "a batch in a batch": (INVALID_RECORD, Batch(attributes=GZIP, body=gzip.compress(GOOD)).encode()),
    "counts too many, compressed": (
        INVALID_RECORD,
        Batch(attributes=GZIP, body=gzip.compress(RECORDS), count=10, last_offset_delta=9).encode(),
    ),
    "gzip torn": (UNKNOWN_SERVER_ERROR, Batch(attributes=GZIP, body=gzip.compress(RECORDS)[:-12]).encode()),
    "not gzip": (UNKNOWN_SERVER_ERROR, Batch(attributes=GZIP).encode()),
    "not snappy": (UNKNOWN_SERVER_ERROR, Batch(attributes=SNAPPY).encode()),
    "not lz4": (UNKNOWN_SERVER_ERROR, Batch(attributes=LZ4).encode()),
    "not zstd": (UNKNOWN_SERVER_ERROR, Batch(attributes=ZSTD).encode()),
    "unknown compression": (UNKNOWN_SERVER_ERROR, Batch(attributes=5).encode()),
}


CUT: Final = {
    "a byte": b"\0",
    "sixteen bytes": GOOD[:16],
    "a torn batch": GOOD[:-1],
    "eleven bytes that begin no batch": b"\xff" * 11,
}


@pytest.mark.parametrize("what", CUT)
def test_what_is_behind_a_batch_and_is_none_is_cut_off(what: str, address: tuple[str, int], topic: str) -> None:
    with RawConnection(*address) as connection:
        assert connection.produce(topic, GOOD + CUT[what]) == (0, 0)
        # nothing of it is in the log
        assert connection.produce(topic, GOOD) == (0, 3)
        error, taken = connection.fetch(topic, 0)
        assert error == 0
        assert len(taken) == 2 * len(GOOD)


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_batch_is_refused(
    name: str, address: tuple[str, int], topic: str, bystander: Bystander, log: BrokerLog
) -> None:
    code, records = REFUSED[name]
    with RawConnection(*address) as connection:
        assert connection.produce(topic, records) == (code, -1)
        log.names("refused", CLIENT_ID, address[0], topic)
        # the connection is as good as before, and the next record is the first
        assert connection.produce(topic, GOOD) == (0, 0)
    bystander.works()


def test_a_compressed_batch_that_unpacks_to_much_does_not_fill_the_memory(
    address: tuple[str, int], topic: str, bystander: Bystander, memory: Memory
) -> None:
    packer = zlib.compressobj(wbits=31)
    bomb = b"".join([*(packer.compress(bytes(1 << 20)) for _ in range(200)), packer.flush()])
    with RawConnection(*address) as connection:
        error, _ = connection.produce(topic, Batch(attributes=GZIP, body=bomb).encode())
    assert error in (0, INVALID_RECORD, UNKNOWN_SERVER_ERROR)
    memory.has_grown_by_at_most(60 << 20)
    bystander.works()


def test_clients_do_not_write_to_internal_topics(address: tuple[str, int], bystander: Bystander) -> None:
    with RawConnection(*address) as connection:
        connection.auto_create_topic("__consumer_offsets")
        assert connection.produce("__consumer_offsets", GOOD)[0] == INVALID_TOPIC
    bystander.works()


@pytest.mark.parametrize("acks", [5, -2])
def test_impossible_acks_are_refused(acks: int, address: tuple[str, int], topic: str) -> None:
    with RawConnection(*address) as connection:
        assert connection.produce(topic, GOOD, acks=acks) == (21, -1)


def test_a_bad_batch_without_acks_ends_the_connection(
    address: tuple[str, int], topic: str, bystander: Bystander, log: BrokerLog
) -> None:
    with RawConnection(*address) as connection:
        connection.send(framed(request(PRODUCE, 8, produce_body(topic, Batch(crc=1).encode(), acks=0))))
        assert connection.is_closed_by_broker()
        log.names("Closing connection", CLIENT_ID, f"{address[0]}:{connection.local_port}", "acks=0")
    bystander.works()


@pytest.mark.parametrize("name", ["", ".", "..", "two words", "a/b", "a" * 250, "ä", "nul\0"])
def test_a_forbidden_topic_name_is_refused(name: str, address: tuple[str, int], bystander: Bystander) -> None:
    with RawConnection(*address) as connection:
        assert connection.create_topic(name) == INVALID_TOPIC
        assert connection.auto_create_topic(name) == INVALID_TOPIC
    bystander.works()
