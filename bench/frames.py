"""The few request frames that the raw client sends, packed once and sent many times.

Written out by hand because a measuring client must do nothing per request but send and receive, and must not share the
broker's code.
"""

import struct
import time
from random import Random
from typing import Final

from crc32c import crc32c

_CLIENT_ID: Final = b"\x00\x05bench"
_PRODUCE_VERSION: Final = 8
_FETCH_VERSION: Final = 4
_BATCH_START = struct.Struct(">qiibI")
_BATCH_REST = struct.Struct(">hiqqqhii")


def api_versions() -> bytes:
    """ApiVersions v0: what every broker answers first."""
    return _frame(18, 0, b"")


def produce(topic: str, partitions: range, *, records: int, record_size: int) -> bytes:
    """Produce v8, acks=1: one batch of `records` records of `record_size` bytes for each of `partitions`."""
    return _produce(topic, partitions, _batch_of_equal(records, record_size))


def produce_batch(topic: str, content: bytes, records: int) -> bytes:
    """Produce v8, acks=1: one batch for partition 0, of records that `content` has as they are in the log."""
    return _produce(topic, range(1), _batch(content, records))


def fetch(topic: str, partition: int, offset: int, max_bytes: int) -> bytes:
    """Fetch v4 of one partition, answered at once."""
    body = struct.pack(">iiiib", -1, 0, 0, 2**31 - 1, 0) + struct.pack(">i", 1) + _string(topic)
    return _frame(1, _FETCH_VERSION, body + struct.pack(">iiqi", 1, partition, offset, max_bytes))


def produce_errors(answer: bytes) -> list[int]:
    """Error codes, one a partition, in the answer (without its length) to a frame of `produce`."""
    position = 4 + 4
    position += 2 + struct.unpack_from(">h", answer, position)[0]
    (count,) = struct.unpack_from(">i", answer, position)
    position += 4
    errors = []
    for _ in range(count):
        errors.append(struct.unpack_from(">h", answer, position + 4)[0])
        # index, error, base offset, append time, log start offset, no record errors, error message
        position += 4 + 2 + 8 + 8 + 8 + 4
        position += 2 + max(0, struct.unpack_from(">h", answer, position)[0])
    return errors


def varint(value: int) -> bytes:
    """Zigzag, as the record format has it."""
    rest = (value << 1) ^ (value >> 63)
    out = bytearray()
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _produce(topic: str, partitions: range, batch: bytes) -> bytes:
    body = struct.pack(">hhii", -1, 1, 30_000, 1) + _string(topic) + struct.pack(">i", len(partitions))
    body += b"".join(struct.pack(">ii", partition, len(batch)) + batch for partition in partitions)
    return _frame(0, _PRODUCE_VERSION, body)


def _frame(api_key: int, version: int, body: bytes) -> bytes:
    frame = struct.pack(">hhi", api_key, version, 1) + _CLIENT_ID + body
    return struct.pack(">i", len(frame)) + frame


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _batch_of_equal(records: int, record_size: int) -> bytes:
    value = Random(0).randbytes(record_size)
    content = bytearray()
    for delta in range(records):
        record = b"\x00" + varint(0) + varint(delta) + varint(-1) + varint(record_size) + value + varint(0)
        content += varint(len(record)) + record
    return _batch(bytes(content), records)


def _batch(content: bytes, records: int) -> bytes:
    now = time.time_ns() // 1_000_000
    rest = _BATCH_REST.pack(0, records - 1, now, now, -1, -1, -1, records) + content
    return _BATCH_START.pack(0, len(rest) + 9, -1, 2, crc32c(rest)) + rest
