"""Record batches of magic 2: the header, the checksum, and the fields that a leader changes.

Records are opaque here, so the cost of most functions does not depend on their number. Layout:
https://kafka.apache.org/documentation/#recordbatch
"""

import struct
from typing import Final, NamedTuple

from headrace.types import Buffer, new_tuple
from headrace.wire.checksum import crc32c

HEADER_SIZE: Final = 61
LOG_OVERHEAD: Final = 12
"""Bytes of base offset and batch length, which the batch length does not include."""
CRC_START: Final = 21
MAGIC_V2: Final = 2

NO_LEADER_EPOCH: Final = -1
NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME_FLAG: Final = 0x08
TRANSACTIONAL_FLAG: Final = 0x10
CONTROL_FLAG: Final = 0x20
DELETE_HORIZON_FLAG: Final = 0x40

_HEADER = struct.Struct(">qiibIhiqqqhii")
_OFFSET_LENGTH_EPOCH_MAGIC = struct.Struct(">qiib")
_UNCHECKED = struct.Struct(">qiibI")
_CHECKED = struct.Struct(">hiqqqhii")
_CRC = struct.Struct(">I")
_CRC_POSITION: Final = 17
_ATTRIBUTES = struct.Struct(">h")
_ATTRIBUTES_POSITION: Final = 21
_MAX_TIMESTAMP = struct.Struct(">q")
_MAX_TIMESTAMP_POSITION: Final = 35


class BatchHeader(NamedTuple):
    """The 61 bytes before the records; timestamps in ms, lengths in bytes."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch, including its header."""
        return LOG_OVERHEAD + self.batch_length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME_FLAG)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_FLAG)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_FLAG)

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record; wraps after 2^31 - 1 (KIP-98); -1 without a producer id."""
        if self.base_sequence < 0:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF


def parse_header(data: Buffer, position: int = 0) -> BatchHeader:
    """Parse the header at `position`, without validation.

    For an older magic, only `base_offset`, `batch_length` and `magic` are meaningful. Raises struct.error if fewer than
    61 bytes are left.
    """
    return new_tuple(BatchHeader, _HEADER.unpack_from(data, position))


def peek(data: Buffer, position: int = 0) -> tuple[int, int, int]:
    """Return `(base offset, batch length, magic)` of the batch at `position`; works for every magic."""
    base_offset, batch_length, _, magic = _OFFSET_LENGTH_EPOCH_MAGIC.unpack_from(data, position)
    return base_offset, batch_length, magic


def checksum(data: Buffer, position: int, size: int) -> int:
    """Compute the CRC-32C of everything after the checksum field of the batch of `size` bytes at `position`."""
    return int(crc32c(memoryview(data)[position + CRC_START : position + size]))


def batch_crc_ok(data: Buffer, position: int, size: int) -> bool:
    """Return True if the stored checksum of the batch of `size` bytes at `position` is correct."""
    stored: int = _CRC.unpack_from(data, position + _CRC_POSITION)[0]
    return checksum(data, position, size) == stored


def with_log_append_time(header: BatchHeader, data: Buffer, position: int, timestamp_ms: int) -> bytearray:
    """Return a copy of the batch with timestamp type LogAppendTime, this max timestamp and a new checksum (KIP-32)."""
    batch = bytearray(memoryview(data)[position : position + header.size])
    _ATTRIBUTES.pack_into(batch, _ATTRIBUTES_POSITION, header.attributes | LOG_APPEND_TIME_FLAG)
    _MAX_TIMESTAMP.pack_into(batch, _MAX_TIMESTAMP_POSITION, timestamp_ms)
    _CRC.pack_into(batch, _CRC_POSITION, checksum(batch, 0, len(batch)))
    return batch


def with_max_timestamp(header: BatchHeader, data: Buffer, timestamp_ms: int) -> bytearray:
    """Return a copy of the batch with timestamp type CreateTime, this max timestamp and a new checksum."""
    batch = bytearray(data)
    _ATTRIBUTES.pack_into(batch, _ATTRIBUTES_POSITION, header.attributes & ~LOG_APPEND_TIME_FLAG)
    _MAX_TIMESTAMP.pack_into(batch, _MAX_TIMESTAMP_POSITION, timestamp_ms)
    seal(batch)
    return batch


def pack_header(header: BatchHeader) -> bytes:
    """Return the 61 bytes of `header`, with its `crc` unchanged."""
    return _HEADER.pack(*header)


def plain(body: bytes, record_count: int, timestamp: int, attributes: int) -> bytes:
    """Build a batch without a producer id from `body`: records in order, all with `timestamp` (ms)."""
    checked = _CHECKED.pack(
        attributes,
        record_count - 1,
        timestamp,
        timestamp,
        NO_PRODUCER_ID,
        NO_PRODUCER_EPOCH,
        NO_SEQUENCE,
        record_count,
    )
    checked += body
    length = CRC_START + len(checked) - LOG_OVERHEAD
    return _UNCHECKED.pack(0, length, NO_LEADER_EPOCH, MAGIC_V2, crc32c(checked)) + checked


def seal(batch: bytearray) -> None:
    """Compute the batch's checksum and store it."""
    _CRC.pack_into(batch, _CRC_POSITION, checksum(batch, 0, len(batch)))
