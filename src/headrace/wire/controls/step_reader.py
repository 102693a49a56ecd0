"""Read a controller's requests in steps: with the states of all partitions, they may have many megabytes.

`compile_bounds` and kio's reader process a message in one go. Here they process one structure of an array at a time.
"""

from collections.abc import Callable, Generator
from dataclasses import fields
from typing import Any, Final, TypeAlias

from kio._kio_native import entity_reader, get_field_reader

from headrace.types import Buffer
from headrace.wire.bounds import compile_bounds
from headrace.wire.encoder import unwrap
from headrace.wire.varint import unsigned_varint

_Read: TypeAlias = Generator[None, None, tuple[Any, int]]
StepReader: TypeAlias = Callable[[Buffer, int], _Read]
"""Returns a message and the position after it. Can be interrupted where it yields."""
_YIELD_EVERY: Final = 64


def compile_step_reader(cls: Any) -> StepReader:
    """Return a reader for messages of the flexible schema class `cls`, without unknown tagged fields.

    It raises ValueError, IndexError or kio's exceptions for malformed messages.
    """
    readers: list[tuple[str, Any, StepReader | None]] = []
    tagged: dict[int, tuple[str, Any]] = {}
    for field in fields(cls):
        _, _, is_array = unwrap(field.type)
        if "tag" in field.metadata:
            tagged[field.metadata["tag"]] = field.name, get_field_reader(cls, field, False, True)
        elif is_array:
            assert "kafka_type" not in field.metadata, f"{cls.__name__}.{field.name} is an array of primitive values"
            readers.append((field.name, None, _array(field.type)))
        else:
            readers.append((field.name, get_field_reader(cls, field, False, False), None))

    def read(data: Buffer, position: int) -> _Read:
        values: dict[str, Any] = {}
        for name, read_field, read_array in readers:
            if read_array is None:
                values[name], size = read_field(data, position)
                position += size
            else:
                values[name], position = yield from read_array(data, position)
        count, position = unsigned_varint(data, position)
        for _ in range(count):
            tag, position = unsigned_varint(data, position)
            size, position = unsigned_varint(data, position)
            if tag not in tagged:
                raise ValueError(f"unknown tagged field {tag}")
            name, read_field = tagged[tag]
            values[name], _ = read_field(data, position)
            position += size
        return cls(**values), position

    return read


def _array(annotation: Any) -> StepReader:
    inner, _, _ = unwrap(annotation)
    if any(unwrap(field.type)[2] and "kafka_type" not in field.metadata for field in fields(inner)):
        return _array_of(compile_step_reader(inner))
    return _array_of_small(inner)


def _array_of(read: StepReader) -> StepReader:
    def follow(data: Buffer, position: int) -> _Read:
        count, position = _count(data, position)
        items = []
        for _ in range(count):
            item, position = yield from read(data, position)
            items.append(item)
            yield
        return tuple(items), position

    return follow


def _array_of_small(cls: Any) -> StepReader:
    check, read = compile_bounds(cls), entity_reader(cls)

    def follow(data: Buffer, position: int) -> _Read:
        count, position = _count(data, position)
        items = []
        for number in range(1, count + 1):
            check(data, position)
            item, size = read(data, position)
            position += size
            items.append(item)
            if number % _YIELD_EVERY == 0:
                yield
        return tuple(items), position

    return follow


def _count(data: Buffer, position: int) -> tuple[int, int]:
    count, position = unsigned_varint(data, position)
    if count == 0:
        raise ValueError("an array is null, but the schema does not allow that")
    if count - 1 > len(data) - position:
        raise ValueError(f"an array declares {count - 1} items, but only {max(0, len(data) - position)} bytes remain")
    return count - 1, position
