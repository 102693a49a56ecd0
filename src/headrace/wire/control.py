"""Transaction markers (KIP-98). A marker is the only record of its control batch; it commits or aborts a transaction.

https://kafka.apache.org/documentation/#controlbatch
"""

from enum import IntEnum
from functools import lru_cache
from struct import Struct
from typing import Final

from headrace.wire.batch import (
    CONTROL_FLAG,
    CRC_START,
    LOG_OVERHEAD,
    MAGIC_V2,
    NO_LEADER_EPOCH,
    NO_SEQUENCE,
    TRANSACTIONAL_FLAG,
)
from headrace.wire.checksum import crc32c

_KEY: Final = Struct(">hh")
"""Version and type."""
_VALUE: Final = Struct(">hi")
"""Version and coordinator epoch; later versions append fields."""
_VERSION: Final = 0
_UNCHECKED: Final = Struct(">qiibI")
_CHECKED: Final = Struct(">hiqqqhii 5s4s c6s c")
"""The part of the batch that its checksum covers: the rest of the header, and the record with its key and value."""
_LENGTH: Final = CRC_START + _CHECKED.size - LOG_OVERHEAD
_BEFORE_KEY: Final = b"\x20\x00\x00\x00\x08"
"""The record's size (16), attributes, timestamp delta, offset delta, and the key's size (4). Sizes are varints."""
_BEFORE_VALUE: Final = b"\x0c"
"""Size of the value (6)."""
_NO_HEADERS: Final = b"\x00"


class Marker(IntEnum):
    """The types of marker, with their numbers in the record's key."""

    ABORT = 0
    COMMIT = 1


def encode_marker(marker: Marker, coordinator_epoch: int) -> tuple[bytes, bytes]:
    """Return the key and the value of the marker's record."""
    return _KEY.pack(_VERSION, marker), _VALUE.pack(_VERSION, coordinator_epoch)


@lru_cache(maxsize=16)
def marker_batch(
    marker: Marker, coordinator_epoch: int, producer_id: int, producer_epoch: int, timestamp_ms: int
) -> bytes:
    """Build the control batch that ends the producer's transaction, with base offset 0.

    These batches all have the same layout, so this is several times faster than `build_batch`. They are cached, because
    a transaction writes the same batch to all of its partitions.
    """
    key, value = encode_marker(marker, coordinator_epoch)
    checked = _CHECKED.pack(
        TRANSACTIONAL_FLAG | CONTROL_FLAG,
        0,
        timestamp_ms,
        timestamp_ms,
        producer_id,
        producer_epoch,
        NO_SEQUENCE,
        1,
        _BEFORE_KEY,
        key,
        _BEFORE_VALUE,
        value,
        _NO_HEADERS,
    )
    return _UNCHECKED.pack(0, _LENGTH, NO_LEADER_EPOCH, MAGIC_V2, crc32c(checked)) + checked


def marker_of(key: bytes | None) -> Marker | None:
    """Return the marker of a control record with this key; None for control records of other types."""
    if key is None or len(key) < _KEY.size:
        return None
    number = _KEY.unpack_from(key)[1]
    return Marker(number) if number in (0, 1) else None


def coordinator_epoch_of(value: bytes | None) -> int:
    """Return the epoch of the transaction coordinator that wrote the marker; -1 if the value is too short."""
    return -1 if value is None or len(value) < _VALUE.size else int(_VALUE.unpack_from(value)[1])
