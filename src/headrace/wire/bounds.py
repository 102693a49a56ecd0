"""Count the items of a message's arrays before it is decoded, and reject impossible array lengths.

kio's native reader allocates memory for the declared number of items. Five bytes can declare thirty billion items, and
the process ends if the system refuses the allocation. So the lengths are checked first: at least one byte per item must
follow, and all arrays together may have at most `MAX_ENTRIES` items. A check is compiled once per schema class, and
takes about a microsecond for a small request.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final, NamedTuple, TypeAlias

from headrace.types import Buffer
from headrace.wire.encoder import unwrap
from headrace.wire.varint import unsigned_varint

_Step: TypeAlias = Callable[[Buffer, int], int]
_StepMaker: TypeAlias = Callable[[int], _Step]
MAX_ENTRIES: Final = 100_000
"""Maximum number of items in all arrays of one request. Decoding them takes 30 MB and blocks the event loop for
30 ms; handling them takes a few tenths of a second, in slices."""

MAX_STRING: Final = 32_767
"""Maximum bytes of a string."""

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
FIXED_SIZES: Final = {
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
    """Describes how to skip a value of `size` bytes, or of at least `least` bytes if its size varies.

    `after(n)` returns a step that skips n bytes and the value. For the last value of a message, `tail_after(n)` returns
    a step that stops after the last array; it is None if the value contains no array.
    """

    size: int | None
    least: int
    after: _StepMaker
    tail_after: _StepMaker | None = None


class TooManyEntriesError(ValueError):
    """The arrays of a message have more items than allowed."""


def compile_bounds(cls: Any, max_entries: int = MAX_ENTRIES) -> Callable[[Buffer, int], int]:
    """Return a function that checks a message of schema class `cls` at a position, and counts its array items.

    The function is not thread-safe. It raises ValueError for an array or tagged fields that need more bytes than
    remain, and for a null array that the schema forbids, which kio would return as None; TooManyEntriesError for more
    than `max_entries` items and tagged fields. It ignores truncated messages, which the reader detects.
    """
    left = [0]
    tail_after = _structure(cls, left).tail_after
    tail = None if tail_after is None else tail_after(0)

    def check(data: Buffer, position: int) -> int:
        if tail is None:
            return 0
        left[0] = max_entries
        try:
            tail(data, position)
        except (IndexError, struct.error):
            pass
        return max_entries - left[0]

    return check


def _structure(cls: Any, left: list[int]) -> _Layout:
    """Return the layout of a structure. `left[0]` is the number of items that the message may still have."""
    flexible: bool = cls.__flexible__
    layouts = []
    tagged: dict[int, _Step] = {}
    has_tags = False
    for field in fields(cls):
        layout = _field(field.type, field.metadata.get("kafka_type"), flexible, left)
        if "tag" not in field.metadata:
            layouts.append(layout)
            continue
        has_tags = True
        if layout.tail_after is not None:
            tagged[field.metadata["tag"]] = layout.tail_after(0)
    if flexible:
        after = _tags_with(tagged, left)
        # a known tag may repeat; if the schema has no tags, the reader stops at the first one
        layouts.append(_Layout(None, 1, after, after if has_tags else None))
    return _sequence(layouts)


def _sequence(layouts: list[_Layout]) -> _Layout:
    least = sum(layout.least for layout in layouts)
    parts: list[tuple[int, _Layout]] = []
    fixed = 0
    for layout in layouts:
        if layout.size is None:
            parts.append((fixed, layout))
            fixed = 0
        else:
            fixed += layout.size
    if not parts:
        return _fixed(fixed)
    trailing = fixed
    last = max((place for place, (_, layout) in enumerate(parts) if layout.tail_after is not None), default=-1)

    def after(before: int) -> _Step:
        return _chain(before, [(skipped, layout.after) for skipped, layout in parts], trailing)

    def tail_after(before: int) -> _Step:
        skipped, layout = parts[last]
        assert layout.tail_after is not None
        return _chain(before, [*((size, part.after) for size, part in parts[:last]), (skipped, layout.tail_after)], 0)

    return _Layout(None, least, after, tail_after if last >= 0 else None)


def _chain(before: int, parts: Sequence[tuple[int, _StepMaker]], trailing: int) -> _Step:
    """Skip `before` bytes, then for every part its bytes and its value, then `trailing` bytes."""
    (skipped, make), *others = parts
    first = make(before + skipped)
    rest = tuple(make(skipped) for skipped, make in others)
    if not rest and not trailing:
        return first

    def follow(data: Buffer, position: int) -> int:
        position = first(data, position)
        for step in rest:
            position = step(data, position)
        return position + trailing

    return follow


def _fixed(size: int) -> _Layout:
    return _Layout(size, size, lambda before: lambda _, position: position + before + size)


def _field(annotation: Any, kafka_type: str | None, flexible: bool, left: list[int]) -> _Layout:
    inner, nullable, is_array = unwrap(annotation)
    if kafka_type is None:
        layout = _structure(inner, left)
        if nullable and not is_array:
            tail_after = None if layout.tail_after is None else _nullable(layout.tail_after(0))
            return _Layout(None, 1, _nullable(layout.after(0)), tail_after)
    elif kafka_type in FIXED_SIZES:
        layout = _fixed(FIXED_SIZES[kafka_type])
    elif flexible:
        layout = _Layout(None, 1, _compact_string if kafka_type == "string" else _compact)
    elif kafka_type == "string":
        layout = _Layout(None, 2, _prefixed(_INT16))
    else:
        layout = _Layout(None, 4, _prefixed(_INT32))
    return _array(layout, flexible, nullable, left) if is_array else layout


def _array(item: _Layout, flexible: bool, nullable: bool, left: list[int]) -> _Layout:
    least = max(1, item.least)
    step = item.after(0)
    last_step = None if item.tail_after is None else item.tail_after(0)

    def after(before: int) -> _Step:
        return _items(before, flexible, nullable, least, item.size, step, step, left)

    def tail_after(before: int) -> _Step:
        # if the items have no arrays, only their number matters
        size = 0 if last_step is None else None
        return _items(before, flexible, nullable, least, size, step, last_step or step, left)

    return _Layout(None, 1 if flexible else 4, after, tail_after)


def _items(
    before: int,
    flexible: bool,
    nullable: bool,
    least: int,
    size: int | None,
    step: _Step,
    last_step: _Step,
    left: list[int],
) -> _Step:
    """Skip `before` bytes and an array.

    An item has `size` bytes; if that is None, `step` skips every item but the last, and `last_step` the last one. This
    is a single function, because further calls would take more time.
    """

    def follow(data: Buffer, position: int) -> int:
        position += before
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
                raise ValueError("an array is null, but the schema does not allow that")
            return position
        if count * least > len(data) - position:
            raise ValueError(f"an array declares {count} items, but only {max(0, len(data) - position)} bytes remain")
        left[0] -= count
        if left[0] < 0:
            raise TooManyEntriesError("the message has too many array items")
        if size is not None:
            return position + count * size
        if count > 1:
            for _ in range(count - 1):
                position = step(data, position)
        return last_step(data, position)

    return follow


def _nullable(step: _Step) -> _StepMaker:
    def after(before: int) -> _Step:
        def follow(data: Buffer, position: int) -> int:
            position += before
            return step(data, position + 1) if data[position] < 0x80 else position + 1

        return follow

    return after


def _compact(before: int) -> _Step:
    def follow(data: Buffer, position: int) -> int:
        position += before
        length = data[position]
        position += 1
        if length > 0x7F:
            length, position = unsigned_varint(data, position - 1)
        return position + length - 1 if length else position

    return follow


def _compact_string(before: int) -> _Step:
    def follow(data: Buffer, position: int) -> int:
        position += before
        length = data[position]
        position += 1
        if length > 0x7F:
            length, position = unsigned_varint(data, position - 1)
            check_string(length - 1)
        return position + length - 1 if length else position

    return follow


def check_string(size: int) -> None:
    """Raise ValueError if a string of `size` bytes is longer than Kafka allows."""
    if size > MAX_STRING:
        raise ValueError(f"a string has {size} bytes; at most {MAX_STRING} are allowed")


def _prefixed(prefix: struct.Struct) -> _StepMaker:
    """Skip a length and that many bytes; a negative length is null."""
    width = prefix.size

    def after(before: int) -> _Step:
        def follow(data: Buffer, position: int) -> int:
            position += before
            length: int = prefix.unpack_from(data, position)[0]
            return position + width + length if length > 0 else position + width

        return follow

    return after


def _tags_with(known: Mapping[int, _Step], left: list[int]) -> _StepMaker:
    def after(before: int) -> _Step:
        def follow(data: Buffer, position: int) -> int:
            position += before
            return position + 1 if data[position] == 0 else _follow_tags(data, position, known, left)

        return follow

    return after


def _follow_tags(data: Buffer, position: int, known: Mapping[int, _Step], left: list[int]) -> int:
    count, position = unsigned_varint(data, position)
    if 2 * count > len(data) - position:
        raise ValueError(f"a structure declares {count} tagged fields, but only {len(data) - position} bytes remain")
    left[0] -= count
    if left[0] < 0:
        raise TooManyEntriesError("the message has too many tagged fields")
    for _ in range(count):
        tag, position = unsigned_varint(data, position)
        size, position = unsigned_varint(data, position)
        if tag in known:
            known[tag](data, position)
        position += size
    return position
