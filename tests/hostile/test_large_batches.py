"""Batches that take long to check: only their sender waits."""

import socket
import struct
import time
from typing import Final, NamedTuple

import zstandard

from tests.hostile.conftest import Bystander, Memory
from tests.hostile.raw import (
    PATIENCE_S,
    PRODUCE,
    Batch,
    RawConnection,
    array,
    framed,
    many_records,
    produce_body,
    request,
    string,
    varint,
)

INVALID_RECORD = 87
ZSTD = 4
GOOD: Final = Batch().encode()


def slow_records(size: int) -> tuple[bytes, int]:
    """Return at least `size` bytes of records with a header and varying lengths, and their count."""
    count = size // 9 + 1
    tails = [varint(-1) + varint(len(value)) + value + varint(1) + varint(0) + varint(-1) for value in (b"", b"v")]
    return many_records(count, tails), count


def compressed(body: bytes, count: int) -> bytes:
    content = zstandard.ZstdCompressor().compress(body)
    return Batch(attributes=ZSTD, body=content, count=count, last_offset_delta=count - 1).encode()


class Served(NamedTuple):
    """Checks of the bystander until another client had its answer."""

    times: int
    longest_s: float
    total_s: float


def check_until_answered(bystander: Bystander, connection: RawConnection) -> Served:
    started = time.monotonic()
    longest = 0.0
    times = 0
    connection.socket.settimeout(0)
    while True:
        begin = time.monotonic()
        bystander.check()
        longest = max(longest, time.monotonic() - begin)
        times += 1
        try:
            connection.socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            continue
        connection.socket.settimeout(PATIENCE_S)
        return Served(times, longest, time.monotonic() - started)


def test_nobody_else_waits(address: tuple[str, int], topic: str, bystander: Bystander, memory: Memory) -> None:
    body, count = slow_records(8 << 20)
    batch = compressed(body, count)
    with RawConnection(*address) as connection:
        connection.send(framed(request(PRODUCE, 8, produce_body(topic, batch))))
        served = check_until_answered(bystander, connection)
        connection.receive()
        # a blocked bystander gets one or two checks
        assert served.times > 10
        # the next record follows the batch
        assert connection.produce(topic, GOOD) == (0, count)
    memory.has_grown_by_at_most(60 << 20)


def test_an_error_in_a_large_batch_is_found(address: tuple[str, int], topic: str, bystander: Bystander) -> None:
    body, count = slow_records(4 << 20)
    bad = bytearray(body)
    # the last header lacks its name of one byte
    bad[-2] = 2
    with RawConnection(*address) as connection:
        assert connection.produce(topic, compressed(bytes(bad), count)) == (INVALID_RECORD, -1)
        assert connection.produce(topic, compressed(body, count + 1)) == (INVALID_RECORD, -1)
        assert connection.produce(topic, compressed(body, count)) == (0, 0)
    bystander.check()


def test_requests_pipelined_after_a_large_batch_are_appended_after_it(address: tuple[str, int], topic: str) -> None:
    body, count = slow_records(3 << 20)
    requests = [request(PRODUCE, 8, produce_body(topic, records)) for records in (GOOD, compressed(body, count), GOOD)]
    with RawConnection(*address) as connection:
        connection.send(b"".join(map(framed, requests)))
        for _ in requests:
            connection.receive()
        assert connection.produce(topic, GOOD) == (0, count + 6)
        # the first batch is first
        assert connection.fetch(topic, 0, max_bytes=100)[1][: len(GOOD)][61:] == GOOD[61:]


def test_a_client_that_disconnects_leaves_nothing_behind(
    address: tuple[str, int], topic: str, bystander: Bystander, memory: Memory
) -> None:
    batch = compressed(*slow_records(4 << 20))
    for _ in range(10):
        with RawConnection(*address) as connection:
            connection.send(framed(request(PRODUCE, 8, produce_body(topic, batch))))
        bystander.check()
    with RawConnection(*address) as connection:
        error, _ = connection.produce(topic, GOOD)
    assert error == 0
    memory.has_grown_by_at_most(60 << 20)


def test_many_batches_in_one_request_that_decompress_to_much(
    address: tuple[str, int], topic: str, bystander: Bystander, memory: Memory
) -> None:
    """Some take a second to check; others have thousands of headers per record."""
    body, count = slow_records(1 << 20)
    batches = [compressed(body, count)] * 10
    for size in range(4000, 4010):
        tails = [varint(-1) * 2 + varint(size) + b"\0\0" * size]
        batches += [compressed(many_records(many, tails), many) for many in range(8, 40)]
    partitions = array(*(struct.pack(">ii", 0, len(batch)) + batch for batch in batches))
    produce = string(None) + struct.pack(">hi", -1, 60_000) + array(string(topic) + partitions)
    with RawConnection(*address) as connection:
        connection.socket.settimeout(60)
        connection.send(framed(request(PRODUCE, 8, produce)))
        served = check_until_answered(bystander, connection)
        assert served.longest_s < served.total_s / 2
        connection.socket.settimeout(60)
        connection.receive()
        assert connection.produce(topic, GOOD) == (0, 10 * count + 10 * sum(range(8, 40)))
    memory.has_grown_by_at_most(60 << 20)
