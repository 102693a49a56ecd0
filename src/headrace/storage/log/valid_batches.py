"""Walks the batches of a segment, and stops at the first damaged one."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from zlib import crc32

from headrace.storage.log.segment import MAX_RELATIVE_OFFSET, MIN_BATCH_LENGTH, Segment, old_format_error
from headrace.wire.batch import HEADER_SIZE, LOG_OVERHEAD, MAGIC_V2, BatchHeader, batch_crc_ok, parse_header

_SCAN_BYTES: Final = 1024 * 1024
"""Bytes per read: large enough for few calls, small enough to stay in the processor's cache for the checksum."""


def valid_batches(segment: Segment, limit: int, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Yield the position and header of every batch, from `position` to the first torn, damaged or misordered one.

    Raises KafkaError(unsupported_for_message_format) for a valid batch of an older format.
    """
    descriptor = segment.file.fileno()
    buffer = bytearray(min(_SCAN_BYTES, max(segment.size - position, HEADER_SIZE)))
    start, filled = position, 0
    next_offset = segment.base_offset
    limit = min(limit, segment.base_offset + MAX_RELATIVE_OFFSET + 1)
    while position + HEADER_SIZE <= segment.size:
        at = position - start
        if at + HEADER_SIZE > filled:
            start, at = position, 0
            filled = os.preadv(descriptor, [buffer], position)
            if filled < HEADER_SIZE:
                return
        header = parse_header(buffer, at)
        size = header.size
        if header.batch_length < MIN_BATCH_LENGTH or position + size > segment.size:
            return
        if at + size > filled:
            if size > len(buffer):
                buffer = bytearray(size)
            start, at = position, 0
            filled = os.preadv(descriptor, [buffer], position)
            if filled < size:
                return
        if header.magic in (0, 1):
            _refuse_old_format(segment.path, position, buffer, at, size, header)
        if header.magic != MAGIC_V2 or not batch_crc_ok(buffer, at, size):
            return
        if header.base_offset < next_offset or header.last_offset >= limit:
            return
        yield position, header
        next_offset = header.next_offset
        position += size


def _refuse_old_format(path: Path, position: int, buffer: bytearray, at: int, size: int, header: BatchHeader) -> None:
    """Raise KafkaError if the CRC-32 after the length shows a message of v0 or v1, and not random bytes."""
    stored = int.from_bytes(buffer[at + LOG_OVERHEAD : at + LOG_OVERHEAD + 4], "big")
    if stored == crc32(memoryview(buffer)[at + LOG_OVERHEAD + 4 : at + size]):
        raise old_format_error(path, position, header.magic)
