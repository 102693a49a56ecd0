"""Read the fields of versioned records, in the plain or the flexible encoding (KIP-482)."""

import struct
from typing import Final

from headrace.errors import ErrorCode, KafkaError
from headrace.wire.varint import unsigned_varint

_FIRST_FLEXIBLE: Final = 4
"""First flexible version of the values for offsets and classic groups, with varint lengths and tagged fields."""

_INT8 = struct.Struct(">b")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")


class RecordReader:
    """Reads fields in order. `flexible`: records of this type use the flexible encoding in every version."""

    __slots__ = ("_data", "_is_flexible", "_position", "version")

    def __init__(self, data: bytes, *, flexible: bool = False) -> None:
        self._data = data
        self._position = 0
        self.version: int = self._unpack(_INT16)
        self._is_flexible = flexible or self.version >= _FIRST_FLEXIBLE

    @classmethod
    def of_structure(cls, data: bytes) -> "RecordReader":
        """Return a reader of a nested structure, which is flexible and has no version."""
        reader = cls(data, flexible=True)
        reader._position = 0
        return reader

    @classmethod
    def of_key(cls, data: bytes) -> "RecordReader":
        """Return a reader of a key, which is plain in every version."""
        reader = cls(data)
        reader._is_flexible = False
        return reader

    def int8(self) -> int:
        return self._unpack(_INT8)

    def int32(self) -> int:
        return self._unpack(_INT32)

    def int64(self) -> int:
        return self._unpack(_INT64)

    def string(self) -> str:
        return self.nullable_string() or ""

    def nullable_string(self) -> str | None:
        size = self._length(_INT16)
        return None if size < 0 else self.take(size).decode()

    def bytes_(self) -> bytes:
        return self.take(max(self._length(_INT32), 0))

    def array_length(self) -> int:
        return self._length(_INT32)

    def tagged_fields(self) -> dict[int, bytes]:
        """Return bytes by tag; the plain encoding has none."""
        if not self._is_flexible:
            return {}
        return {self._uvarint(): self.take(self._uvarint()) for _ in range(self._uvarint())}

    def _length(self, plain: struct.Struct) -> int:
        return self._uvarint() - 1 if self._is_flexible else self._unpack(plain)

    def _unpack(self, field: struct.Struct) -> int:
        try:
            value: int = field.unpack_from(self._data, self._position)[0]
        except struct.error as error:
            raise too_short(self._data) from error
        self._position += field.size
        return value

    def take(self, size: int) -> bytes:
        end = self._position + size
        if end > len(self._data):
            raise too_short(self._data)
        data = self._data[self._position : end]
        self._position = end
        return data

    def _uvarint(self) -> int:
        try:
            value, self._position = unsigned_varint(self._data, self._position)
        except (IndexError, ValueError) as error:
            raise too_short(self._data) from error
        return value


def too_short(data: bytes) -> KafkaError:
    return KafkaError(ErrorCode.corrupt_message, f"the record is truncated or malformed; it begins with {data[:64]!r}")
