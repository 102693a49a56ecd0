"""Transaction markers (KIP-98): the only record of a control batch, which commits or aborts a transaction.

https://kafka.apache.org/documentation/#controlbatch
"""

from enum import IntEnum
from struct import Struct
from typing import Final

from headrace.wire.batch import CONTROL_FLAG, TRANSACTIONAL_FLAG
from headrace.wire.records import RecordData, build_batch

_KEY: Final = Struct(">hh")
"""Version and type."""
_VALUE: Final = Struct(">hi")
"""Version and coordinator epoch; later versions append fields."""
_VERSION: Final = 0


class Marker(IntEnum):
    """The types of marker, with their numbers in the record's key."""

    ABORT = 0
    COMMIT = 1


def encode_marker(marker: Marker, coordinator_epoch: int) -> tuple[bytes, bytes]:
    """Return key and value of the record."""
    return _KEY.pack(_VERSION, marker), _VALUE.pack(_VERSION, coordinator_epoch)


def marker_batch(
    marker: Marker, coordinator_epoch: int, producer_id: int, producer_epoch: int, timestamp_ms: int
) -> bytes:
    """Build the control batch that ends the producer's transaction, with base offset 0."""
    return build_batch(
        [RecordData(*encode_marker(marker, coordinator_epoch), timestamp_ms)],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        attributes=TRANSACTIONAL_FLAG | CONTROL_FLAG,
    )


def marker_of(key: bytes | None) -> Marker | None:
    """Return the marker of a control record with this key; None for other control records."""
    if key is None or len(key) < _KEY.size:
        return None
    number = _KEY.unpack_from(key)[1]
    return Marker(number) if number in (0, 1) else None


def coordinator_epoch_of(value: bytes | None) -> int:
    """Return the epoch of the transaction coordinator that wrote the marker; -1 if the value is too short."""
    return -1 if value is None or len(value) < _VALUE.size else int(_VALUE.unpack_from(value)[1])
