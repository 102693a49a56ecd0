"""Records in a row whose fields have the same lengths, checked all at once by columns.

What stands at one place of each record is a slice with the size of a record as its step, so that some slices and
comparisons tell what else takes a loop over the records: 8 us for 600 of them. Load tests send such records, and
whatever has a fixed format.
"""

from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Final, NamedTuple, TypeAlias

from headrace.wire.record_sizes import MORE_FOLLOWS
from headrace.wire.records import get_varint

_MOST_SHAPES: Final = 64
_MOST_HEADERS: Final = 16
"""Records with more are read field by field: each header is two columns more."""
_MOST_WANTED: Final = 8
"""Numbers of records for which a shape remembers what their columns must be."""
_FEW: Final = 64
"""Records that are copied together so that prepared slices fit them; with more, slices for them alone are faster."""

_ColumnsOf: TypeAlias = Callable[[bytes], tuple[bytes, ...]]
"""Columns of records back to back."""


class _Shape(NamedTuple):
    """Where records have the numbers that tell how they are laid out, as bytes from their beginning."""

    size: int
    """Bytes of each record."""
    keyed: bool
    fixed: dict[int, bytes]
    """The bytes of its own length, those of key, value and headers, and of the count of these."""
    lasts: tuple[int, ...]
    """Where the last bytes of timestamp delta and offset delta are."""
    others: tuple[int, ...]
    """Where their other bytes are."""
    fixed_of: _ColumnsOf
    lasts_of: _ColumnsOf
    wanted: dict[int, tuple[bytes, ...]]
    """What `fixed_of` is of so many records."""


_shapes: dict[bytes, _Shape] = {}
"""The last shape of records that begin with the same two bytes."""


def of_one_shape(data: bytes, position: int, count: int, *, keyed: bool) -> int:
    """The size of each of `count` sound records of one shape that begin at `position`; 0 where they are not.

    With `keyed`, of those that have keys.
    """
    shape = _shapes.get(data[position : position + 2])
    if shape is None:
        return 0
    size, has_key, fixed, _, others, fixed_of, lasts_of, remembered = shape
    if keyed and not has_key:
        return 0
    if count > _FEW:
        return size if _many_fit(shape, data, position, count) else 0
    records = data[position : position + size * count]
    wanted = remembered.get(count)
    if wanted is None:
        if len(remembered) >= _MOST_WANTED:
            remembered.clear()
        wanted = remembered[count] = (*(byte * count for byte in fixed.values()), b"")
    if len(records) != size * count:
        return 0
    if fixed_of(records) != wanted or not b"".join(lasts_of(records)).isascii():
        return 0
    if others and b"".join([records[at::size] for at in others]).translate(None, MORE_FOLLOWS):
        return 0
    return size


def _many_fit(shape: _Shape, data: bytes, position: int, count: int) -> bool:
    size, _, fixed, lasts, others, *_ = shape
    end = position + size * count
    if end > len(data):
        return False
    for at, byte in fixed.items():
        if data[position + at : end : size] != byte * count:
            return False
    for at in lasts:
        if not data[position + at : end : size].isascii():
            return False
    return not any(data[position + at : end : size].translate(None, MORE_FOLLOWS) for at in others)


def learn_shape(data: bytes, position: int) -> None:
    """Know the shape of the record at `position`, which is a sound one, from now on, unless it has too many headers."""
    shape = _shape_of(data, position)
    if shape is None:
        return
    if len(_shapes) >= _MOST_SHAPES:
        _shapes.clear()
    _shapes[data[position : position + 2]] = shape


def _shape_of(data: bytes, position: int) -> _Shape | None:
    fixed: dict[int, bytes] = {}

    def number(at: int) -> tuple[int, int]:
        value, behind = get_varint(data, at)
        fixed.update((place - position, data[place : place + 1]) for place in range(at, behind))
        return value, behind

    length, at = number(position)
    size = at + length - position
    # behind the attributes
    at += 1
    _, offset_at = get_varint(data, at, 64)
    _, key_at = get_varint(data, offset_at)
    deltas = range(at - position, key_at - position)
    lasts = (offset_at - 1 - position, key_at - 1 - position)
    key, at = number(key_at)
    value, at = number(at + max(0, key))
    headers, at = number(at + max(0, value))
    if headers > _MOST_HEADERS:
        return None
    for _ in range(headers):
        name, at = number(at)
        content, at = number(at + name)
        at += max(0, content)

    def columns_of(places: Iterable[int]) -> _ColumnsOf:
        # with an empty one, so that there are always several
        return itemgetter(*(slice(place, None, size) for place in places), slice(0, 0))

    return _Shape(
        size=size,
        keyed=key >= 0,
        fixed=fixed,
        lasts=lasts,
        others=tuple(place for place in deltas if place not in lasts),
        fixed_of=columns_of(fixed),
        lasts_of=columns_of(lasts),
        wanted={},
    )
