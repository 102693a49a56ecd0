"""Batches that take long to check: only their sender waits."""

from typing import Final

import zstandard

from tests.hostile.conftest import Bystander, Memory
from tests.hostile.raw import (
    PRODUCE,
    Batch,
    RawConnection,
    framed,
    many_records,
    produce_body,
    request,
    varint,
)

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
