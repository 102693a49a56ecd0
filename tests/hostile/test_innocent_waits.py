"""Waits of a client that writes single records while another one sends expensive requests."""

import gzip
import random
import struct
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping
from statistics import quantiles
from typing import Final, Self

import pytest
import zstandard
from crc32c import crc32c

from tests.hostile.conftest import Memory, create_topic
from tests.hostile.raw import (
    CREATE_TOPICS,
    LIST_OFFSETS,
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
from tests.support.speed import delay
from tests.support.waiting import wait_for

INVALID_RECORD, MESSAGE_TOO_LARGE, INVALID_TIMESTAMP = 87, 10, 32
MB: Final = 1 << 20
P99_S: Final = 0.1
LONGEST_S: Final = 0.5
GOOD: Final = Batch().encode()
GZIP, ZSTD = 1, 4
LARGE: Final = {"max.message.bytes": str(5 * MB)}
NO_CONFIGS: Final[Mapping[str, str]] = {}
PATIENCE_S: Final = 100


class Innocent:
    """Writes single records in a thread, and measures the waits."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._connection = RawConnection(*address)
        self._topic = f"innocent-{uuid.uuid4().hex[:12]}"
        create_topic(self._connection, self._topic)
        self._stop = threading.Event()
        self._waits: list[float] = []
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._write)

    def _write(self) -> None:
        batch = Batch(values=(b"innocent",)).encode()
        try:
            while not self._stop.is_set():
                began = time.monotonic()
                error, _ = self._connection.produce(self._topic, batch)
                self._waits.append(time.monotonic() - began)
                assert error == 0
                time.sleep(0.001)
        except (AssertionError, OSError) as failure:
            self._failure = failure

    def __enter__(self) -> Self:
        self._thread.start()
        wait_for(lambda: len(self._waits) >= 300, "300 records")
        self._undisturbed = list(self._waits)
        self._waits.clear()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def close(self) -> None:
        self._connection.close()

    def does_not_wait(self) -> None:
        """Check the waits against fixed limits, scaled by the load, or ten times the waits before."""
        wait_for(lambda: len(self._waits) >= 100 or self._failure, "100 records")
        if self._failure:
            raise self._failure
        waits = list(self._waits)
        p99 = quantiles(waits, n=100)[98]
        before = quantiles(self._undisturbed, n=100)[98]
        load = delay()
        assert p99 <= max(load * P99_S, 10 * before), f"p99 is {p99:.3f} s, before: {before:.4f} s"
        longest = max(self._undisturbed)
        assert max(waits) <= max(load * LONGEST_S, 10 * longest), (
            f"the longest wait is {max(waits):.3f} s, before: {longest:.3f} s"
        )


@pytest.fixture
def innocent(address: tuple[str, int]) -> Iterator[Innocent]:
    """A client that writes inside `with innocent`, so that tests can prepare their requests first."""
    innocent = Innocent(address)
    yield innocent
    innocent.close()


@pytest.fixture
def attacker(address: tuple[str, int]) -> Iterator[RawConnection]:
    with RawConnection(*address) as connection:
        connection.socket.settimeout(PATIENCE_S)
        yield connection


def new_topic(connection: RawConnection, configs: Mapping[str, str] = NO_CONFIGS, *, partitions: int = 1) -> str:
    name = f"hostile-{uuid.uuid4().hex[:12]}"
    entries = array(*(string(key) + string(value) for key, value in configs.items()))
    topic = array(string(name) + struct.pack(">ih", partitions, 1) + array() + entries)
    connection.call(CREATE_TOPICS, 2, topic + struct.pack(">ib", 10_000, 0))
    wait_for(lambda: connection.fetch(name, 0)[0] == 0, f"{name} has a leader")
    return name


def tiny_records(count: int, *, timestamp_delta: int = 0) -> bytes:
    """Return records without key and value."""
    return many_records(count, [b"\1\1\0"], timestamp_delta=timestamp_delta)


def compressed(body: bytes, count: int, codec: int) -> bytes:
    content = gzip.compress(body, 1) if codec == GZIP else zstandard.ZstdCompressor().compress(body)
    return Batch(attributes=codec, body=content, count=count, last_offset_delta=count - 1).encode()


def list_offsets(topic: str, partitions: int, timestamp: int) -> bytes:
    entries = array(*(struct.pack(">iq", index, timestamp) for index in range(partitions)))
    return struct.pack(">i", -1) + array(string(topic) + entries)


def test_lookups_by_timestamp(
    address: tuple[str, int], attacker: RawConnection, innocent: Innocent, memory: Memory
) -> None:
    topic = new_topic(attacker, partitions=10)
    now = round(time.time() * 1000)
    # the last of a million records is a minute newer than the others
    last = b"\0" + varint(60_000) + varint(999_999) + b"\1\1\0"
    body = tiny_records(999_999) + varint(len(last)) + last
    batch = compressed(body, 1_000_000, ZSTD)
    for partition in range(10):
        attacker.call(PRODUCE, 8, produce_body(topic, batch, partition=partition))
    others = [RawConnection(*address) for _ in range(5)]
    with innocent:
        for other in others:
            other.socket.settimeout(PATIENCE_S)
            other.send(framed(request(LIST_OFFSETS, 1, list_offsets(topic, 10, now + 20_000))))
        answer = attacker.call(LIST_OFFSETS, 1, list_offsets(topic, 10, now + 20_001))
        for item in others:
            item.receive()
            item.close()
        innocent.does_not_wait()
    places = [struct.unpack_from(">ihqq", answer, 4 + 2 + len(topic) + 4 + 22 * place) for place in range(10)]
    assert [error for _, error, _, _ in places] == [0] * 10
    assert [offset for _, _, _, offset in places] == [999_999] * 10
    memory.has_grown_by_at_most(100 * MB)


RULES: Final[dict[str, tuple[dict[str, str], set[int]]]] = {
    "compacted": ({"cleanup.policy": "compact"}, {INVALID_RECORD}),
    "another codec": ({"compression.type": "gzip"}, {0}),
    "no codec": ({"compression.type": "uncompressed"}, {0, MESSAGE_TOO_LARGE}),
    "timestamps within bounds": ({"message.timestamp.before.max.ms": "1000"}, {INVALID_TIMESTAMP}),
}


@pytest.mark.parametrize(
    "rule",
    [pytest.param(rule, marks=[] if rule in ("compacted", "no codec") else [pytest.mark.slow]) for rule in RULES],
)
def test_batches_against_the_rules_of_a_topic(
    rule: str, attacker: RawConnection, innocent: Innocent, memory: Memory
) -> None:
    configs, errors = RULES[rule]
    topic = new_topic(attacker, {**configs, **LARGE})
    old = -3_600_000 if "timestamps" in rule else 0
    few = compressed(tiny_records(300_000, timestamp_delta=old), 300_000, GZIP)
    many = compressed(tiny_records(3_000_000, timestamp_delta=old), 3_000_000, GZIP)
    batches = [few] * 10 + [many] * 2
    partitions = array(*(struct.pack(">ii", 0, len(batch)) + batch for batch in batches))
    body = string(None) + struct.pack(">hi", -1, 60_000) + array(string(topic) + partitions)
    with innocent:
        answer = attacker.call(PRODUCE, 3, body)
        innocent.does_not_wait()
    found = [struct.unpack_from(">ihqq", answer, 4 + 2 + len(topic) + 4 + 22 * place) for place in range(len(batches))]
    assert {error for _, error, _, _ in found} == errors
    memory.has_grown_by_at_most(100 * MB)


def test_a_batch_that_recompresses_too_large_is_refused(
    attacker: RawConnection, innocent: Innocent, memory: Memory
) -> None:
    """The batch of six kilobytes would be stored uncompressed as 200 MB."""
    value = bytes(200 * MB)
    content = b"\0\0\0\1" + varint(len(value)) + value + b"\0"
    batch = compressed(varint(len(content)) + content, 1, ZSTD)
    del value, content
    topic = new_topic(attacker, {"compression.type": "uncompressed"})
    with innocent:
        assert attacker.produce(topic, batch) == (MESSAGE_TOO_LARGE, -1)
        assert attacker.produce(topic, GOOD) == (0, 0)
        innocent.does_not_wait()
    memory.has_grown_by_at_most(100 * MB)


GARBAGE: Final[dict[str, Callable[[], bytes]]] = {
    "garbage": lambda: random.Random(1).randbytes(900_000) + bytes(20 * MB),
    "zeros": lambda: bytes(200 * MB),
    "missing record": lambda: tiny_records(2_999_999),
    "bad last record": lambda: tiny_records(2_999_999) + varint(8) + b"\0\0" + varint(2_999_999) + b"\1\2\0",
}


@pytest.mark.parametrize(
    ("kind", "codec"),
    [
        ("garbage", ZSTD),
        ("zeros", ZSTD),
        ("bad last record", ZSTD),
        pytest.param("missing record", GZIP, marks=pytest.mark.slow),
    ],
)
def test_large_bad_batches_are_refused(
    kind: str, codec: int, attacker: RawConnection, innocent: Innocent, memory: Memory
) -> None:
    topic = new_topic(attacker, LARGE)
    batch = compressed(GARBAGE[kind](), 3_000_000, codec)
    with innocent:
        assert attacker.produce(topic, batch) == (INVALID_RECORD, -1)
        assert attacker.produce(topic, GOOD) == (0, 0)
        innocent.does_not_wait()
    memory.has_grown_by_at_most(100 * MB)


@pytest.mark.slow
def test_a_valid_record_of_300_megabytes(attacker: RawConnection, innocent: Innocent, memory: Memory) -> None:
    packer = zlib.compressobj(wbits=31)
    size = 300 * MB
    front = b"\0\0\0" + varint(3) + b"key" + varint(size)
    body = [packer.compress(varint(len(front) + size + 1) + front)]
    body += [packer.compress(bytes(MB)) for _ in range(300)]
    body += [packer.compress(b"\0"), packer.flush()]
    batch = Batch(attributes=GZIP, body=b"".join(body), count=1, last_offset_delta=0).encode()
    with innocent:
        for configs in (NO_CONFIGS, {"cleanup.policy": "compact"}, {"compression.type": "zstd"}):
            topic = new_topic(attacker, configs)
            assert attacker.produce(topic, batch) == (0, 0)
            answer = attacker.call(LIST_OFFSETS, 1, list_offsets(topic, 1, 1))
            assert struct.unpack_from(">ihqq", answer, 4 + 2 + len(topic) + 4)[1::2] == (0, 0)
        innocent.does_not_wait()
    memory.has_grown_by_at_most(100 * MB)


@pytest.mark.parametrize("header_age_ms", [28 * 3_600_000, -115 * 86_400_000])
def test_headers_with_wrong_timestamps(header_age_ms: int, attacker: RawConnection, innocent: Innocent) -> None:
    topic = new_topic(attacker, {"retention.ms": "3600000", "segment.bytes": "1048576"})
    batch = bytearray(Batch(values=(bytes(1000),) * 700).encode())
    (now,) = struct.unpack_from(">q", batch, 35)
    struct.pack_into(">q", batch, 35, now - header_age_ms)
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    with innocent:
        for place in range(4):
            assert attacker.produce(topic, bytes(batch)) == (0, 700 * place)
        innocent.does_not_wait()
    error, stored = attacker.fetch(topic, 0)
    assert error == 0
    assert struct.unpack_from(">q", stored, 35) == (now,)
    assert crc32c(stored[21 : len(batch)]) == struct.unpack_from(">I", stored, 17)[0]
    answer = attacker.call(LIST_OFFSETS, 1, list_offsets(topic, 1, now))
    assert struct.unpack_from(">ihqq", answer, 4 + 2 + len(topic) + 4) == (0, 0, now, 0)
