"""Whether the arrays that a message announces can be, asked before the message is decoded.

kio's native reader reserves memory for as many items as an array says it has. Five bytes can say thirty thousand
millions, and a reservation of that size that the system refuses ends the whole process. So the lengths are followed
first: a message passes when every array has at most as many items as it has bytes left for them. Compiled once a
schema class; about a microsecond for a small request.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final, NamedTuple, TypeAlias

from headrace.types import Buffer
from headrace.wire.encoder import unwrap

_Step: TypeAlias = Callable[[Buffer, int], int]
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_SIZES: Final = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "error_code": 2,
    "int32": 4,
    "timedelta_i32": 4,
    "int64": 8,
    "float64": 8,
    "timedelta_i64": 8,
    "datetime_i64": 8,
    "uuid": 16,
}


class _Layout(NamedTuple):
    """How to pass over a value of `size` bytes, or of at least `least` where it has no one size.

    `step` goes to its end. `tail` goes only as far as there are arrays to check, for what comes last in a message; None
    where it holds no array.
    """

    size: int | None
    least: int
    step: _Step
    tail: _Step | None = None


def compile_bounds(cls: Any) -> Callable[[Buffer, int], None]:
    """A function that checks a message of schema class `cls` that begins at a position in a buffer.

    It raises ValueError for an array with more items than there are bytes for, and for a null one where the schema has
    none, which kio would hand on as None. A message that ends early is left to the
    reader, which finds it at the same place.
    """
    tail = _structure(cls).tail

    def check(data: Buffer, position: int) -> None:
        try:
            if tail is not None:
                tail(data, position)
        except (IndexError, struct.error):
            return

    return check


def _structure(cls: Any) -> _Layout:
    flexible: bool = cls.__flexible__
    layouts = []
    tagged: dict[int, _Step] = {}
    for field in fields(cls):
        layout = _field(field.type, field.metadata.get("kafka_type"), flexible)
        if "tag" not in field.metadata:
            layouts.append(layout)
        elif layout.tail is not None:
            tagged[field.metadata["tag"]] = layout.tail
    if flexible:
        step = _tags_with(tagged) if tagged else _tags
        layouts.append(_Layout(None, 1, step, step if tagged else None))
    return _sequence(layouts)


def _sequence(layouts: list[_Layout]) -> _Layout:
    merged: list[_Layout] = []
    for layout in layouts:
        if layout.size is not None and merged and merged[-1].size is not None:
            merged[-1] = _fixed(merged[-1].size + layout.size)
        else:
            merged.append(layout)
    if len(merged) == 1:
        return merged[0]
    with_arrays = [index for index, layout in enumerate(merged) if layout.tail is not None]
    tail = None
    if with_arrays:
        last = with_arrays[-1]
        tail = _chain([*(layout.step for layout in merged[:last]), merged[last].tail])
    least = sum(layout.least for layout in merged)
    return _Layout(None, least, _chain([layout.step for layout in merged]), tail)


def _chain(steps: Sequence[_Step | None]) -> _Step:
    taken = tuple(step for step in steps if step is not None)
    if len(taken) == 1:
        return taken[0]

    def follow(data: Buffer, position: int) -> int:
        for step in taken:
            position = step(data, position)
        return position

    return follow


def _fixed(size: int) -> _Layout:
    return _Layout(size, size, lambda _, position: position + size)


def _field(annotation: Any, kafka_type: str | None, flexible: bool) -> _Layout:
    inner, nullable, is_array = unwrap(annotation)
    if kafka_type is None:
        layout = _structure(inner)
        if nullable and not is_array:
            tail = None if layout.tail is None else _nullable(layout.tail)
            return _Layout(None, 1, _nullable(layout.step), tail)
    elif kafka_type in _SIZES:
        layout = _fixed(_SIZES[kafka_type])
    elif flexible:
        layout = _Layout(None, 1, _compact)
    elif kafka_type == "string":
        layout = _Layout(None, 2, _string)
    else:
        layout = _Layout(None, 4, _bytes)
    return _array(layout, flexible, nullable) if is_array else layout


def _array(item: _Layout, flexible: bool, nullable: bool) -> _Layout:
    size, step, tail = item.size, item.step, item.tail
    count_of = _checked_count(flexible, nullable, max(1, item.least))

    def follow(data: Buffer, position: int) -> int:
        count, position = count_of(data, position)
        if size is not None:
            return position + count * size
        for _ in range(count):
            position = step(data, position)
        return position

    def follow_to_last_array(data: Buffer, position: int) -> int:
        count, position = count_of(data, position)
        if tail is None or count == 0:
            return position
        for _ in range(count - 1):
            position = step(data, position)
        return tail(data, position)

    return _Layout(None, 1 if flexible else 4, follow, follow_to_last_array)


def _checked_count(flexible: bool, nullable: bool, least: int) -> Callable[[Buffer, int], tuple[int, int]]:
    def count_of(data: Buffer, position: int) -> tuple[int, int]:
        if flexible:
            count = data[position]
            position += 1
            if count > 0x7F:
                count, position = unsigned_varint(data, position - 1)
            count -= 1
        else:
            count = _INT32.unpack_from(data, position)[0]
            position += 4
        if count <= 0:
            if count < 0 and not nullable:
                raise ValueError("a null array where the message may have none")
            return 0, position
        if count * least > len(data) - position:
            raise ValueError(f"an array of {count} items in the {max(0, len(data) - position)} bytes that are left")
        return count, position

    return count_of


def _nullable(step: _Step) -> _Step:
    return lambda data, position: step(data, position + 1) if data[position] < 0x80 else position + 1


def _compact(data: Buffer, position: int) -> int:
    length = data[position]
    position += 1
    if length > 0x7F:
        length, position = unsigned_varint(data, position - 1)
    return position + length - 1 if length else position


def _string(data: Buffer, position: int) -> int:
    length: int = _INT16.unpack_from(data, position)[0]
    return position + 2 + max(0, length)


def _bytes(data: Buffer, position: int) -> int:
    length: int = _INT32.unpack_from(data, position)[0]
    return position + 4 + max(0, length)


def _tags(data: Buffer, position: int) -> int:
    if data[position] == 0:
        return position + 1
    return _follow_tags(data, position, {})


def _tags_with(known: Mapping[int, _Step]) -> _Step:
    return lambda data, position: _follow_tags(data, position, known)


def _follow_tags(data: Buffer, position: int, known: Mapping[int, _Step]) -> int:
    count, position = unsigned_varint(data, position)
    if 2 * count > len(data) - position:
        raise ValueError(f"{count} tagged fields in the {len(data) - position} bytes that are left")
    for _ in range(count):
        tag, position = unsigned_varint(data, position)
        size, position = unsigned_varint(data, position)
        if tag in known:
            known[tag](data, position)
        position += size
    return position


def unsigned_varint(data: Buffer, position: int) -> tuple[int, int]:
    """The varint at `position` and the position behind it. Raises ValueError, and IndexError at the end of `data`."""
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
