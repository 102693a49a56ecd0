"""Batches whose check takes long: who sends them waits, and nobody else."""

import gzip
import socket
import struct
import time
from typing import Final, NamedTuple

from tests.hostile.conftest import Bystander, Memory
from tests.hostile.raw import (
    PATIENCE_S,
    PRODUCE,
    Batch,
    RawConnection,
    array,
    framed,
    produce_body,
    request,
    string,
    varint,
)

INVALID_RECORD = 87
GOOD: Final = Batch().encode()


def laborious(size: int) -> tuple[bytes, int]:
    """Records of one header each and of different lengths, `size` bytes or more, and how many."""
    several = [
        varint(len(content)) + content
        for value in (b"", b"v")
        for content in [b"\0\0\0" + varint(-1) + varint(len(value)) + value + varint(1) + varint(0) + varint(-1)]
    ]
    pairs = size // sum(map(len, several)) + 1
    return b"".join(several) * pairs, 2 * pairs


def packed(body: bytes, count: int) -> bytes:
    return Batch(attributes=1, body=gzip.compress(body), count=count, last_offset_delta=count - 1).encode()


class Meanwhile(NamedTuple):
    """What a bystander could do until another client had its answer."""

    times: int
    longest_s: float
    """Of which one took at most."""
    whole_s: float


def goes_on_until_answered(bystander: Bystander, connection: RawConnection) -> Meanwhile:
    started = time.monotonic()
    longest = 0.0
    times = 0
    connection.socket.settimeout(0)
    while True:
        begin = time.monotonic()
        bystander.works()
        longest = max(longest, time.monotonic() - begin)
        times += 1
        try:
            # to look, and leave it there
            connection.socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            continue
        connection.socket.settimeout(PATIENCE_S)
        return Meanwhile(times, longest, time.monotonic() - started)


def test_nobody_else_waits(address: tuple[str, int], topic: str, bystander: Bystander, memory: Memory) -> None:
    body, count = laborious(16 << 20)
    batch = packed(body, count)
    with RawConnection(*address) as connection:
        connection.send(framed(request(PRODUCE, 8, produce_body(topic, batch))))
        meanwhile = goes_on_until_answered(bystander, connection)
        connection.receive()
        # where all wait it is the one or two that came first
        assert meanwhile.times > 10
        # what is sent next comes behind it
        assert connection.produce(topic, GOOD) == (0, count)
    memory.has_grown_by_at_most(60 << 20)


def test_a_lie_in_a_large_batch_is_found(address: tuple[str, int], topic: str, bystander: Bystander) -> None:
    body, count = laborious(4 << 20)
    lie = bytearray(body)
    # the last header has a name of one byte, which is not there
    lie[-2] = 2
    with RawConnection(*address) as connection:
        assert connection.produce(topic, packed(bytes(lie), count)) == (INVALID_RECORD, -1)
        assert connection.produce(topic, packed(body, count + 1)) == (INVALID_RECORD, -1)
        assert connection.produce(topic, packed(body, count)) == (0, 0)
    bystander.works()


def test_what_comes_behind_a_large_batch_in_the_same_breath_is_appended_behind_it(
    address: tuple[str, int], topic: str
) -> None:
    body, count = laborious(3 << 20)
    requests = [request(PRODUCE, 8, produce_body(topic, records)) for records in (GOOD, packed(body, count), GOOD)]
    with RawConnection(*address) as connection:
        connection.send(b"".join(map(framed, requests)))
        for _ in requests:
            connection.receive()
        assert connection.produce(topic, GOOD) == (0, count + 6)
        # and the first of them is where it was sent
        assert connection.fetch(topic, 0, max_bytes=100)[1][: len(GOOD)][61:] == GOOD[61:]


def test_a_client_that_goes_away_leaves_nothing_behind(
    address: tuple[str, int], topic: str, bystander: Bystander, memory: Memory
) -> None:
    batch = packed(*laborious(4 << 20))
    for _ in range(10):
        with RawConnection(*address) as connection:
            connection.send(framed(request(PRODUCE, 8, produce_body(topic, batch))))
        bystander.works()
    with RawConnection(*address) as connection:
        error, _ = connection.produce(topic, GOOD)
    assert error == 0
    memory.has_grown_by_at_most(60 << 20)


def test_many_batches_in_one_request_that_unpack_to_much(
    address: tuple[str, int], topic: str, bystander: Bystander, memory: Memory
) -> None:
    """A few kilobytes that are a second's work, and shapes of records that are thousands of columns."""
    body, count = laborious(1 << 20)
    batches = [packed(body, count)] * 10
    for size in range(4000, 4010):
        content = b"\0\0\0" + varint(-1) * 2 + varint(size) + b"\0\0" * size
        batches += [packed((varint(len(content)) + content) * many, many) for many in range(8, 40)]
    partitions = array(*(struct.pack(">ii", 0, len(batch)) + batch for batch in batches))
    produce = string(None) + struct.pack(">hi", -1, 60_000) + array(string(topic) + partitions)
    with RawConnection(*address) as connection:
        connection.socket.settimeout(60)
        connection.send(framed(request(PRODUCE, 8, produce)))
        meanwhile = goes_on_until_answered(bystander, connection)
        assert meanwhile.longest_s < meanwhile.whole_s / 2
        connection.socket.settimeout(60)
        connection.receive()
        assert connection.produce(topic, GOOD) == (0, 10 * count + 10 * sum(range(8, 40)))
    memory.has_grown_by_at_most(60 << 20)
