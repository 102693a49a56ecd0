"""The record batch, magic 2: its header, its checksum, and the fields a leader patches in place.

A batch is opaque here: no record inside it is looked at, so the cost of every function is that of one header, however
many records follow. Layout: https://kafka.apache.org/documentation/#recordbatch
"""

import struct
from typing import Final, NamedTuple

from headrace.types import Buffer, new_tuple
from headrace.wire.checksum import crc32c

HEADER_SIZE: Final = 61
LOG_OVERHEAD: Final = 12
"""Bytes of base offset and batch length, which the batch length itself does not count."""
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
    """The 61 bytes in front of the records; timestamps in ms, lengths in bytes."""

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
        """Bytes of the whole batch, header included."""
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
        """Sequence of the last record; wraps round after 2^31 - 1 as KIP-98 says; -1 without a producer id."""
        if self.base_sequence < 0:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF


def parse_header(data: Buffer, position: int = 0) -> BatchHeader:
    """The header that begins at `position`.

    Raises struct.error when fewer than 61 bytes are left. Nothing is validated: for a batch of an older magic
    only `base_offset`, `batch_length` and `magic` mean anything.
    """
    return new_tuple(BatchHeader, _HEADER.unpack_from(data, position))


def peek(data: Buffer, position: int = 0) -> tuple[int, int, int]:
    """`(base offset, batch length, magic)` of the batch at `position`; the same place in every magic since 0."""
    base_offset, batch_length, _, magic = _OFFSET_LENGTH_EPOCH_MAGIC.unpack_from(data, position)
    return base_offset, batch_length, magic


def checksum(data: Buffer, position: int, size: int) -> int:
    """CRC-32C over everything behind the checksum field of the batch of `size` bytes at `position`."""
    return int(crc32c(memoryview(data)[position + CRC_START : position + size]))


def batch_crc_ok(data: Buffer, position: int, size: int) -> bool:
    """Whether the stored checksum of the batch of `size` bytes at `position` is the true one."""
    stored: int = _CRC.unpack_from(data, position + _CRC_POSITION)[0]
    return checksum(data, position, size) == stored


def with_log_append_time(header: BatchHeader, data: Buffer, position: int, timestamp_ms: int) -> bytearray:
    """A copy of the batch with its timestamp type set to LogAppendTime and its max timestamp to `timestamp_ms`.

    Both fields lie under the checksum, which is computed anew (KIP-32).
    """
    batch = bytearray(memoryview(data)[position : position + header.size])
    _ATTRIBUTES.pack_into(batch, _ATTRIBUTES_POSITION, header.attributes | LOG_APPEND_TIME_FLAG)
    _MAX_TIMESTAMP.pack_into(batch, _MAX_TIMESTAMP_POSITION, timestamp_ms)
    _CRC.pack_into(batch, _CRC_POSITION, checksum(batch, 0, len(batch)))
    return batch


def with_max_timestamp(header: BatchHeader, data: Buffer, timestamp_ms: int) -> bytearray:
    """A copy of the batch with this max timestamp, of type CreateTime, and a new checksum."""
    batch = bytearray(data)
    _ATTRIBUTES.pack_into(batch, _ATTRIBUTES_POSITION, header.attributes & ~LOG_APPEND_TIME_FLAG)
    _MAX_TIMESTAMP.pack_into(batch, _MAX_TIMESTAMP_POSITION, timestamp_ms)
    seal(batch)
    return batch


def pack_header(header: BatchHeader) -> bytes:
    """The 61 bytes of `header`, its `crc` as given."""
    return _HEADER.pack(*header)


def plain(body: bytes, record_count: int, timestamp: int, attributes: int) -> bytes:
    """A whole batch, of no producer, round `body`: records in order, all of them written at `timestamp` (ms)."""
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
    """Write the batch's own checksum into it."""
    _CRC.pack_into(batch, _CRC_POSITION, checksum(batch, 0, len(batch)))
