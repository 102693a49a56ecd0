"""Request frames of the raw client, encoded once and sent many times.

They are encoded by hand: the client only sends and receives during a load, and shares no code with the broker.
"""

import json
import struct
import time
from random import Random
from typing import Final

import lz4.frame
import zstandard
from crc32c import crc32c

_CLIENT_ID: Final = b"\x00\x05bench"
_PRODUCE_VERSION: Final = 8
_FETCH_VERSION: Final = 4
_WORDS: Final = b"order customer created shipped paid amount currency address street city country item".split()
_BATCH_START = struct.Struct(">qiibI")
_BATCH_REST = struct.Struct(">hiqqqhii")


def api_versions() -> bytes:
    """Encode ApiVersions v0, which every broker answers."""
    return _frame(18, 0, b"")


def produce(topic: str, partitions: range, *, records: int, record_size: int, acks: int = 1) -> bytes:
    """Encode Produce v8: a batch of `records` records of `record_size` bytes for each of `partitions`."""
    return _produce(topic, partitions, _batch_of_equal(records, record_size), acks)


def produce_batch(topic: str, content: bytes, records: int) -> bytes:
    """Encode Produce v8, acks=1: a batch for partition 0 with the encoded records `content`."""
    return _produce(topic, range(1), _batch(content, records))


def produce_keyed(topic: str, partitions: range, *, records: int, codec: str) -> bytes:
    """Encode Produce v8, acks=1: a batch of `records` different, realistic records for each of `partitions`.

    A record has two headers, and a key and value of 80 to 420 bytes together. `codec` is none, lz4 or zstd.
    """
    rng = Random(2)
    batches = []
    for _ in partitions:
        content = bytearray()
        for delta in range(records):
            key = b"customer-%d" % rng.randrange(10 ** rng.randrange(1, 9))
            words = b" ".join(rng.choices(_WORDS, k=60))
            headers = [(b"trace-id", b"%032x" % rng.getrandbits(128)), (b"type", rng.choice(_WORDS))]
            content += _record(delta, key, words[: rng.randrange(80, 420) - len(key)], headers)
        batches.append(_batch(bytes(content), records, codec))
    return _produce_each(topic, partitions, batches)


def produce_json(topic: str, partitions: range, *, records: int) -> bytes:
    """Encode Produce v8, acks=1: a batch of `records` JSON values of 1 KB, with keys, for each of `partitions`."""
    rng = Random(3)
    batches = []
    for _ in partitions:
        content = bytearray()
        for delta in range(records):
            number = rng.getrandbits(60)
            text = b" ".join(rng.choices(_WORDS, k=200)).decode()
            value = json.dumps({"id": number, "at": time.time(), "text": text}).encode()
            content += _record(delta, b"%d" % number, value[:1022] + b'"}', [])
        batches.append(_batch(bytes(content), records))
    return _produce_each(topic, partitions, batches)


def fetch(topic: str, partition: int, offset: int, max_bytes: int) -> bytes:
    """Encode Fetch v4 of one partition; the reply does not wait for records."""
    body = struct.pack(">iiiib", -1, 0, 0, 2**31 - 1, 0) + struct.pack(">i", 1) + _string(topic)
    return _frame(1, _FETCH_VERSION, body + struct.pack(">iiqi", 1, partition, offset, max_bytes))


def produce_errors(answer: bytes) -> list[int]:
    """Return the error code of every partition in the reply to `produce`; `answer` begins after the frame's length."""
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
    """Encode a zigzag varint of the record format."""
    rest = (value << 1) ^ (value >> 63)
    out = bytearray()
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _record(delta: int, key: bytes | None, value: bytes, headers: list[tuple[bytes, bytes]]) -> bytes:
    record = bytearray(b"\x00" + varint(0) + varint(delta))
    record += varint(-1) if key is None else varint(len(key)) + key
    record += varint(len(value)) + value + varint(len(headers))
    for part in (part for header in headers for part in header):
        record += varint(len(part)) + part
    return varint(len(record)) + record


def _produce(topic: str, partitions: range, batch: bytes, acks: int = 1) -> bytes:
    return _produce_each(topic, partitions, [batch] * len(partitions), acks)


def _produce_each(topic: str, partitions: range, batches: list[bytes], acks: int = 1) -> bytes:
    body = struct.pack(">hhii", -1, acks, 30_000, 1) + _string(topic) + struct.pack(">i", len(partitions))
    for partition, batch in zip(partitions, batches, strict=True):
        body += struct.pack(">ii", partition, len(batch)) + batch
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
        content += _record(delta, None, value, [])
    return _batch(bytes(content), records)


def _batch(content: bytes, records: int, codec: str = "none") -> bytes:
    now = time.time_ns() // 1_000_000
    attributes = 0
    if codec == "lz4":
        attributes = 3
        content = lz4.frame.compress(content, block_linked=False)
    elif codec == "zstd":
        attributes = 4
        content = zstandard.ZstdCompressor().compress(content)
    rest = _BATCH_REST.pack(attributes, records - 1, now, now, -1, -1, -1, records) + content
    return _BATCH_START.pack(0, len(rest) + 9, -1, 2, crc32c(rest)) + rest
