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
_BATCH_START = struct.Struct(">qiibI")
_BATCH_REST = struct.Struct(">hiqqqhii")


def api_versions() -> bytes:
    """ApiVersions v0: what every broker answers first."""
    return _frame(18, 0, b"")


def produce(topic: str, partitions: range, *, records: int, record_size: int) -> bytes:
    """Produce v8, acks=1: one batch of `records` records of `record_size` bytes for each of `partitions`."""
    batch = _batch(records, record_size)
    body = struct.pack(">hhiii", -1, 1, 30_000, 1, 0)[:-4] + _string(topic) + struct.pack(">i", len(partitions))
    body += b"".join(struct.pack(">ii", partition, len(batch)) + batch for partition in partitions)
    return _frame(0, _PRODUCE_VERSION, body)


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


def _frame(api_key: int, version: int, body: bytes) -> bytes:
    frame = struct.pack(">hhi", api_key, version, 1) + _CLIENT_ID + body
    return struct.pack(">i", len(frame)) + frame


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _batch(records: int, record_size: int) -> bytes:
    value = Random(0).randbytes(record_size)
    content = bytearray()
    for delta in range(records):
        record = b"\x00" + _varint(0) + _varint(delta) + _varint(-1) + _varint(record_size) + value + _varint(0)
        content += _varint(len(record)) + record
    now = time.time_ns() // 1_000_000
    rest = _BATCH_REST.pack(0, records - 1, now, now, -1, -1, -1, records) + content
    return _BATCH_START.pack(0, len(rest) + 9, -1, 2, crc32c(rest)) + rest


def _varint(value: int) -> bytes:
    """Zigzag, as the record format has it."""
    rest = (value << 1) ^ (value >> 63)
    out = bytearray()
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)
