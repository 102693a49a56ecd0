"""Fields that records of offsets and classic groups share."""

import struct
from typing import Final

from headrace.coordinator.runtime.record_reader import RecordReader
from headrace.errors import ErrorCode, KafkaError

_NEWEST_VALUE: Final = 4

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


def string(value: str) -> bytes:
    data = value.encode()
    return _INT16.pack(len(data)) + data


def nullable_string(value: str | None) -> bytes:
    return _INT16.pack(-1) if value is None else string(value)


def bytes_(value: bytes) -> bytes:
    return _INT32.pack(len(value)) + value


def value_reader(data: bytes) -> RecordReader:
    """Return a reader positioned after the version. Raises KafkaError(corrupt_message) for an unknown version."""
    reader = RecordReader(data)
    if not 0 <= reader.version <= _NEWEST_VALUE:
        raise KafkaError(
            ErrorCode.corrupt_message,
            f"a value of __consumer_offsets has version {reader.version}, but only versions 0 to {_NEWEST_VALUE} are"
            " supported: a newer Kafka may have written it",
        )
    return reader
