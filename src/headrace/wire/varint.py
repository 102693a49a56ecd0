"""Varints: unsigned in messages and in values of internal topics, zigzag in record batches.

The compiled record loop (`record_checks.py`) and the cleaner's columns have their own decoders.
"""

from functools import lru_cache

from headrace.errors import ErrorCode, KafkaError
from headrace.types import Buffer


def unsigned_varint(data: Buffer, position: int) -> tuple[int, int]:
    """Return the varint at `position`, and the position after it.

    Raises ValueError for more than five bytes, IndexError at the end of `data`.
    """
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 28:
            raise ValueError("a varint is longer than five bytes")


def put_unsigned_varint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def get_varint(data: Buffer, position: int, bits: int = 32) -> tuple[int, int]:
    """Return the zigzag varint of 32 or 64 bits at `position`, and the position after it.

    Excess bits are dropped, as in Kafka. Raises KafkaError(corrupt_message) for a varint of more than five bytes (ten
    for 64 bits), IndexError at the end of `data`.
    """
    byte = data[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    value = byte & 0x7F
    shift = 7
    while True:
        position += 1
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > bits:
            raise KafkaError(ErrorCode.corrupt_message, f"a {bits}-bit varint has more than {shift // 7} bytes")
    value &= (1 << bits) - 1
    return (value >> 1) ^ -(value & 1), position + 1


def put_varint(out: bytearray, value: int) -> None:
    """Append `value` as a zigzag varint (up to 64 bits)."""
    zigzag = (value << 1) ^ (value >> 63)
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)


@lru_cache(maxsize=4096)
def varint(value: int) -> bytes:
    out = bytearray()
    put_varint(out, value)
    return bytes(out)
