"""Records in a row whose fields have the same lengths, checked all at once by columns.

What stands at one place of each record is a slice with the size of a record as its step, so that some slices and
comparisons tell what else takes a loop over the records: 8 us for 600 of them. Load tests send such records, and
whatever has a fixed format.
"""

from typing import Final, NamedTuple

from headrace.wire.record_sizes import MORE_FOLLOWS
from headrace.wire.records import get_varint

_MOST_SHAPES: Final = 64
_MOST_HEADERS: Final = 16
"""Records with more are read field by field: each header is two columns more."""


class Shape(NamedTuple):
    """Where records have the numbers that tell how they are laid out, as bytes from their beginning."""

    size: int
    """Bytes of each record."""
    keyed: bool
    fixed: dict[int, bytes]
    """The bytes of its own length, those of key, value and headers, and of the count of these."""
    timestamp_delta: range
    offset_delta: range


_shapes: dict[bytes, Shape] = {}
"""The last shape of records that begin with the same two bytes."""


def of_one_shape(data: bytes, position: int, count: int, *, keyed: bool) -> Shape | None:
    """The shape of `count` sound records that begin at `position`, or None where they have not all the same.

    With `keyed`, of those that have keys.
    """
    shape = _shapes.get(data[position : position + 2])
    if shape is None:
        return None
    size, has_key, fixed, *deltas = shape
    if keyed and not has_key:
        return None
    end = position + size * count
    if end > len(data):
        return None
    for at, byte in fixed.items():
        if data[position + at : end : size] != byte * count:
            return None
    for places in deltas:
        if not data[position + places[-1] : end : size].isascii():
            return None
        for at in places[:-1]:
            if data[position + at : end : size].translate(None, MORE_FOLLOWS):
                return None
    return shape


def learn_shape(data: bytes, position: int) -> None:
    """Know the shape of the record at `position`, which is a sound one, from now on, unless it has too many headers."""
    shape = _shape_of(data, position)
    if shape is None:
        return
    if len(_shapes) >= _MOST_SHAPES:
        _shapes.clear()
    _shapes[data[position : position + 2]] = shape


def _shape_of(data: bytes, position: int) -> Shape | None:
    fixed: dict[int, bytes] = {}

    def number(at: int) -> tuple[int, int]:
        value, behind = get_varint(data, at)
        fixed.update((place - position, data[place : place + 1]) for place in range(at, behind))
        return value, behind

    length, at = number(position)
    size = at + length - position
    # behind the attributes
    timestamp_at = at + 1
    _, offset_at = get_varint(data, timestamp_at, 64)
    _, key_at = get_varint(data, offset_at)
    key, at = number(key_at)
    value, at = number(at + max(0, key))
    headers, at = number(at + max(0, value))
    if headers > _MOST_HEADERS:
        return None
    for _ in range(headers):
        name, at = number(at)
        content, at = number(at + name)
        at += max(0, content)
    return Shape(
        size=size,
        keyed=key >= 0,
        fixed=fixed,
        timestamp_delta=range(timestamp_at - position, offset_at - position),
        offset_delta=range(offset_at - position, key_at - position),
    )
