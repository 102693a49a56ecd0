"""Check the strings of a flexible message, and remove unknown tagged fields, which kio cannot skip (KIP-482).

Flexible strings have a varint length, but Kafka, and the records that store them, allow at most 32,767 bytes. Few
messages need this: those large enough for a longer string, and those with an unknown tag.
"""

from collections.abc import Callable, Generator
from dataclasses import fields
from typing import Any, Final, TypeAlias

from headrace.types import Buffer
from headrace.wire.bounds import FIXED_SIZES, MAX_STRING, TooManyEntriesError, check_string
from headrace.wire.encoder import unwrap
from headrace.wire.varint import put_unsigned_varint, unsigned_varint

StrictReader: TypeAlias = Callable[[Buffer, int], Generator[None, None, Buffer]]
"""Returns the message at a position, without unknown tagged fields. Can be interrupted where it yields."""

_Edit: TypeAlias = tuple[int, int, bytes]
"""Start, end and replacement of a range of bytes."""
_Walk: TypeAlias = Callable[[Buffer, int, "_Edits"], Generator[None, None, int]]
_YIELD_EVERY: Final = 64


class _Edits(list[_Edit]):
    """Replacements, ascending by position; at most `left` more unknown tags are allowed."""

    def __init__(self, left: int) -> None:
        super().__init__()
        self.left = left


def may_hold_long_string(data: Buffer) -> bool:
    """Return True if a message is large enough for a string that exceeds the limit."""
    return len(data) > MAX_STRING


def compile_strict(cls: Any, max_tags: int) -> StrictReader:
    """Return a reader for messages of the flexible schema class `cls` that have passed `compile_bounds`.

    It raises ValueError for a string that is too long, TooManyEntriesError for more than `max_tags` unknown tagged
    fields, IndexError for a truncated message.
    """
    walk = _structure(cls)

    def read(data: Buffer, position: int) -> Generator[None, None, Buffer]:
        edits = _Edits(max_tags)
        end = yield from walk(data, position, edits)
        return _edited(data, position, end, edits) if edits else data[position:]

    return read


def _edited(data: Buffer, position: int, end: int, edits: list[_Edit]) -> bytes:
    parts: list[Buffer] = []
    for start, stop, replacement in edits:
        parts += (data[position:start], replacement)
        position = stop
    parts.append(data[position:end])
    return b"".join(parts)


def _structure(cls: Any) -> _Walk:
    walks: list[int | _Walk] = []
    tagged: dict[int, _Walk] = {}
    for field in fields(cls):
        walk = _field(field.type, field.metadata.get("kafka_type"))
        if "tag" in field.metadata:
            tagged[field.metadata["tag"]] = _fixed(walk) if isinstance(walk, int) else walk
        elif isinstance(walk, int) and walks and isinstance(walks[-1], int):
            walks[-1] += walk
        else:
            walks.append(walk)
    walks.append(_tags(tagged))

    def follow(data: Buffer, position: int, edits: _Edits) -> Generator[None, None, int]:
        for walk in walks:
            if isinstance(walk, int):
                position += walk
            else:
                position = yield from walk(data, position, edits)
        return position

    return follow


def _field(annotation: Any, kafka_type: str | None) -> int | _Walk:
    inner, nullable, is_array = unwrap(annotation)
    walk: int | _Walk
    if kafka_type is None:
        walk = _structure(inner)
        if nullable and not is_array:
            return _nullable(walk)
    elif kafka_type in FIXED_SIZES:
        walk = FIXED_SIZES[kafka_type]
    else:
        walk = _text if kafka_type == "string" else _bytes
    return _array(walk) if is_array else walk


def _fixed(size: int) -> _Walk:
    def follow(_data: Buffer, position: int, _edits: _Edits) -> Generator[None, None, int]:
        yield from ()
        return position + size

    return follow


def _bytes(data: Buffer, position: int, _: _Edits) -> Generator[None, None, int]:
    yield from ()
    length, position = unsigned_varint(data, position)
    return position + max(0, length - 1)


def _text(data: Buffer, position: int, _: _Edits) -> Generator[None, None, int]:
    yield from ()
    length, position = unsigned_varint(data, position)
    check_string(length - 1)
    return position + max(0, length - 1)


def _nullable(walk: _Walk) -> _Walk:
    def follow(data: Buffer, position: int, edits: _Edits) -> Generator[None, None, int]:
        if data[position] >= 0x80:
            return position + 1
        return (yield from walk(data, position + 1, edits))

    return follow


def _array(walk: int | _Walk) -> _Walk:
    def follow(data: Buffer, position: int, edits: _Edits) -> Generator[None, None, int]:
        count, position = unsigned_varint(data, position)
        if isinstance(walk, int):
            return position + max(0, count - 1) * walk
        for number in range(count - 1):
            position = yield from walk(data, position, edits)
            if number % _YIELD_EVERY == 0:
                yield
        return position

    return follow


def _tags(known: dict[int, _Walk]) -> _Walk:
    def follow(data: Buffer, position: int, edits: _Edits) -> Generator[None, None, int]:
        began = position
        count, position = unsigned_varint(data, position)
        kept: list[tuple[int, bytes]] = []
        for number in range(count):
            tag, position = unsigned_varint(data, position)
            size, position = unsigned_varint(data, position)
            walk = known.get(tag)
            if walk is not None:
                inner = _Edits(edits.left)
                yield from walk(data, position, inner)
                edits.left = inner.left
                kept.append((tag, _edited(data, position, position + size, inner)))
            else:
                edits.left -= 1
                if edits.left < 0:
                    raise TooManyEntriesError("the message has too many unknown tagged fields")
            position += size
            if position > len(data):
                raise IndexError("the message ends inside a tagged field")
            if number % _YIELD_EVERY == 0:
                yield
        if count:
            section = bytearray()
            put_unsigned_varint(section, len(kept))
            for tag, content in kept:
                put_unsigned_varint(section, tag)
                put_unsigned_varint(section, len(content))
                section += content
            edits.append((began, position, bytes(section)))
        return position

    return follow
