"""Encode plain dicts as messages of kio's schema classes. Encoders are compiled once per class, and take microseconds.

A message is a mapping from kio's snake_case field names to plain values: numbers, strings, bytes, UUIDs, mappings for
structures, sequences or `EncodedItems` for arrays; times and durations are in ms. Fields that a version does not have
are ignored, so that one mapping serves all versions. Missing fields get the schema's default.
"""

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from datetime import timedelta
from types import NoneType
from typing import Any, NamedTuple, TypeAlias, get_args
from uuid import UUID

from headrace.wire.items import Items
from headrace.wire.varint import put_unsigned_varint

Fields: TypeAlias = Mapping[str, Any]
Encoder: TypeAlias = Callable[[bytearray, Fields], None]
StepEncoder: TypeAlias = Callable[[bytearray, Fields], Iterator[None]]
"""An Encoder that can be interrupted where it yields."""
_Writer: TypeAlias = Callable[[bytearray, Any], None]

IMPLIED = {"throttle_time": 0, "error_code": 0, "error_message": None}
"""Defaults that the schemas lack, for fields of nearly every reply."""

_STEPPED = (list, tuple, Items)
"""Types of arrays that are encoded one item at a time."""
_ZERO_UUID = bytes(16)
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_NUMBERS = {
    "int8": struct.Struct(">b"),
    "int16": _INT16,
    "int32": _INT32,
    "int64": struct.Struct(">q"),
    "uint16": struct.Struct(">H"),
    "float64": struct.Struct(">d"),
    "error_code": _INT16,
    "timedelta_i32": _INT32,
    "timedelta_i64": struct.Struct(">q"),
    "datetime_i64": struct.Struct(">q"),
}


class EncodedItems(NamedTuple):
    """The already encoded items of an array."""

    number: int
    content: bytes | bytearray


class MissingFieldError(TypeError):
    """A message lacks a field without a default."""


def put_count(out: bytearray, count: int, *, flexible: bool) -> None:
    if flexible:
        put_unsigned_varint(out, count + 1)
    else:
        out += _INT32.pack(count)


def put_string(out: bytearray, text: str, *, flexible: bool) -> None:
    """Append `text` with its length."""
    if flexible:
        _write_compact_bytes(out, text)
    else:
        _write_legacy_string(out, text)


def compile_step_encoder(cls: Any) -> StepEncoder:
    """Like `compile_encoder`, for large messages: yields after every item of an array of structures, at every depth."""
    flexible: bool = cls.__flexible__
    plain: list[tuple[str, _Writer, StepEncoder | None, Any]] = []
    tagged: list[tuple[int, str, _Writer, Any]] = []
    for field in fields(cls):
        default = _default(field)
        tag = field.metadata.get("tag")
        kafka_type = field.metadata.get("kafka_type")
        write = _field_writer(field.type, kafka_type, flexible, is_tagged=tag is not None)
        if tag is not None:
            tagged.append((tag, field.name, write, default))
            continue
        inner, _, is_array = unwrap(field.type)
        steps = _array_steps(inner, flexible) if is_array and kafka_type is None else None
        plain.append((field.name, write, steps, default))
    tagged.sort()
    name_of_class = cls.__name__

    def encode(out: bytearray, message: Fields) -> Iterator[None]:
        for name, write, steps, default in plain:
            value = message.get(name, default)
            if value is MISSING:
                raise MissingFieldError(f"{name_of_class} lacks the field {name}")
            if steps is not None and type(value) in _STEPPED:
                yield from steps(out, value)
            else:
                write(out, value)
        if flexible:
            _write_tags(out, tagged, message)

    return encode


def _array_steps(inner: Any, flexible: bool) -> StepEncoder:
    is_nested = any(unwrap(field.type)[2] and "kafka_type" not in field.metadata for field in fields(inner))
    write_steps = compile_step_encoder(inner) if is_nested else None
    write = compile_encoder(inner)

    def encode(out: bytearray, items: Any) -> Iterator[None]:
        if type(items) is EncodedItems:
            put_count(out, items.number, flexible=flexible)
            out += items.content
            return
        put_count(out, len(items), flexible=flexible)
        for item in items:
            if write_steps is None:
                write(out, item)
            else:
                yield from write_steps(out, item)
            yield

    return encode


def compile_encoder(cls: Any) -> Encoder:
    """Return a function that appends a message of schema class `cls` to a buffer.

    It raises MissingFieldError, and TypeError for a value that does not fit its field.
    """
    flexible: bool = cls.__flexible__
    plain: list[tuple[str, _Writer, Any]] = []
    tagged: list[tuple[int, str, _Writer, Any]] = []
    for field in fields(cls):
        default = _default(field)
        tag = field.metadata.get("tag")
        write = _field_writer(field.type, field.metadata.get("kafka_type"), flexible, is_tagged=tag is not None)
        if tag is None:
            plain.append((field.name, write, default))
        else:
            tagged.append((tag, field.name, write, default))
    tagged.sort()
    name_of_class = cls.__name__

    def encode(out: bytearray, message: Fields) -> None:
        for name, write, default in plain:
            value = message.get(name, default)
            if value is MISSING:
                raise MissingFieldError(f"{name_of_class} lacks the field {name}")
            try:
                write(out, value)
            except (struct.error, AttributeError, TypeError) as error:
                if isinstance(error, MissingFieldError):
                    raise
                raise TypeError(f"{name_of_class}.{name} cannot be {value!r}: {error}") from error
        if flexible:
            _write_tags(out, tagged, message)

    return encode


def _write_tags(out: bytearray, tagged: list[tuple[int, str, _Writer, Any]], message: Fields) -> None:
    present = [
        (tag, write, message[name])
        for tag, name, write, default in tagged
        if name in message and message[name] != default
    ]
    put_unsigned_varint(out, len(present))
    for tag, write, value in present:
        body = bytearray()
        write(body, value)
        put_unsigned_varint(out, tag)
        put_unsigned_varint(out, len(body))
        out += body


def _default(field: Any) -> Any:
    if field.default is MISSING:
        return IMPLIED.get(field.name, MISSING)
    if isinstance(field.default, timedelta):
        return round(field.default.total_seconds() * 1000)
    return MISSING if is_dataclass(field.default) else field.default


def _field_writer(annotation: Any, kafka_type: str | None, flexible: bool, *, is_tagged: bool) -> _Writer:
    inner, nullable, is_array = unwrap(annotation)
    if kafka_type is not None:
        item = _scalar_writer(kafka_type, flexible)
    else:
        item = compile_encoder(inner)
        if nullable and not is_array and not is_tagged:
            return _nullable_struct_writer(item)
    return _array_writer(item, flexible) if is_array else item


def unwrap(annotation: Any) -> tuple[Any, bool, bool]:
    """Return `(inner type, nullable, is array)` of a field's annotation such as `tuple[X, ...] | None`."""
    arguments = get_args(annotation)
    if NoneType in arguments:
        inner, _, is_array = unwrap(next(argument for argument in arguments if argument is not NoneType))
        return inner, True, is_array
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return arguments[0], False, True
    return annotation, False, False


def _nullable_struct_writer(write: Encoder) -> _Writer:
    def write_nullable(out: bytearray, value: Fields | None) -> None:
        if value is None:
            out.append(0xFF)
        else:
            out.append(1)
            write(out, value)

    return write_nullable


def _array_writer(write: _Writer, flexible: bool) -> _Writer:
    def write_compact(out: bytearray, items: Sequence[Any] | None) -> None:
        if items is None:
            out.append(0)
            return
        if type(items) is EncodedItems:
            put_unsigned_varint(out, items.number + 1)
            out += items.content
            return
        put_unsigned_varint(out, len(items) + 1)
        for item in items:
            write(out, item)

    def write_legacy(out: bytearray, items: Sequence[Any] | None) -> None:
        if items is None:
            out += b"\xff\xff\xff\xff"
            return
        if type(items) is EncodedItems:
            out += _INT32.pack(items.number)
            out += items.content
            return
        out += _INT32.pack(len(items))
        for item in items:
            write(out, item)

    return write_compact if flexible else write_legacy


def _scalar_writer(kafka_type: str, flexible: bool) -> _Writer:
    if kafka_type == "bool":
        return lambda out, value: out.append(1 if value else 0)
    if kafka_type == "uuid":
        return _write_uuid
    if kafka_type in ("string", "bytes", "records"):
        if flexible:
            return _write_compact_bytes
        return _write_legacy_string if kafka_type == "string" else _write_legacy_bytes
    pack = _NUMBERS[kafka_type].pack
    if kafka_type == "datetime_i64":
        return lambda out, value: out.extend(pack(-1 if value is None else value))

    def write_number(out: bytearray, value: int) -> None:
        out += pack(value)

    return write_number


def _write_uuid(out: bytearray, value: UUID | None) -> None:
    out += _ZERO_UUID if value is None else value.bytes


def _write_compact_bytes(out: bytearray, value: str | bytes | None) -> None:
    if value is None:
        out.append(0)
        return
    data = value.encode() if isinstance(value, str) else value
    put_unsigned_varint(out, len(data) + 1)
    out += data


def _write_legacy_string(out: bytearray, value: str | None) -> None:
    if value is None:
        out += b"\xff\xff"
        return
    data = value.encode()
    out += _INT16.pack(len(data))
    out += data


def _write_legacy_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out += b"\xff\xff\xff\xff"
        return
    out += _INT32.pack(len(value))
    out += value
