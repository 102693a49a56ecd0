"""Batches laid out as one that was checked before, byte for byte in what tells a layout.

A producer that is busy sends batches as large as it may: as many records, of the same lengths. Of such a batch only the
timestamps' deltas and what keys, values and headers hold are new, and neither says where something is. So if all other
bytes in front of, between and behind those are the ones of a batch that was sound, this one is: 1.6 us for 75 records,
where columns of each run of them take 4.
"""

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Final, NamedTuple, TypeAlias

from headrace.wire.record_shapes import Shape

_MOST_TEMPLATES: Final = 128
WORTH_A_TEMPLATE: Final = 16
"""Records below which a batch is checked as fast without a template."""
_MOST_RECORDS: Final = 1024
_MOST_COLUMNS: Final = 32
_MOST_RUNS: Final = 3

_MOST_CREDIT: Final = 256
_HIT: Final = 4
_MISS: Final = 1
_COST: Final = 64
"""What to make a template takes of the credit that batches give: 16 of them that had one, or 64 that did not.

It costs as much as a template saves in five batches, so who sends ever new layouts must not have each of them learned.
"""

_ColumnsOf: TypeAlias = Callable[[bytes], tuple[bytes, ...]]

Run: TypeAlias = tuple[int, int, Shape]
"""Records of one shape in a row: where they begin, and how many they are."""


class _Template(NamedTuple):
    layout_of: _ColumnsOf
    layout: tuple[bytes, ...]
    """What `layout_of` is of every batch like this one."""
    timestamps_of: _ColumnsOf
    """The timestamps' deltas, which must have one byte each, as they have here."""
    end: int


class Templates:
    """The layouts of some batches that were seen of late; two megabytes at most."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, int], _Template] = {}
        """By size of the data, position of the first record and number of records."""
        self._credit = _MOST_CREDIT

    def __len__(self) -> int:
        return len(self._known)

    def end_of(self, data: bytes, position: int, count: int) -> int:
        """The position behind `count` records from `position` on, if a batch laid out as they are was sound; else 0."""
        template = self._known.get((len(data), position, count))
        if template is None:
            return 0
        layout_of, layout, timestamps_of, end = template
        if layout_of(data) != layout or not b"".join(timestamps_of(data)).isascii():
            return 0
        if self._credit < _MOST_CREDIT:
            self._credit += _HIT
        return end

    def learn(self, data: bytes, position: int, count: int, runs: Sequence[Run]) -> None:
        """Know batches like this sound one from now on, if its `count` records are the `runs`, and credit allows it."""
        if count > _MOST_RECORDS or len(runs) > _MOST_RUNS:
            return
        if self._credit < _MOST_CREDIT:
            self._credit += _MISS
        if self._credit < _COST:
            return
        columns = records = 0
        for _, number, shape in runs:
            records += number
            columns += len(shape.fixed) + len(shape.offset_delta) + 1
            if len(shape.timestamp_delta) > 1:
                return
        if records != count or columns > _MOST_COLUMNS:
            return
        self._credit -= _COST
        key = len(data), position, count
        if len(self._known) >= _MOST_TEMPLATES:
            # the younger half stays; another thread that learns meanwhile may lose what it has learned
            self._known = dict(list(self._known.items())[_MOST_TEMPLATES // 2 :])
        layout_of = _columns_of((run, place) for run in runs for place in (*run[2].fixed, *run[2].offset_delta))
        timestamps_of = _columns_of((run, place) for run in runs for place in run[2].timestamp_delta)
        begin, number, shape = runs[-1]
        self._known[key] = _Template(layout_of, layout_of(data), timestamps_of, begin + number * shape.size)


def _columns_of(places: Iterable[tuple[Run, int]]) -> _ColumnsOf:
    slices = [
        slice(begin + place, begin + place + (number - 1) * shape.size + 1, shape.size)
        for (begin, number, shape), place in places
    ]
    # with an empty one, so that there are always several
    return itemgetter(*slices, slice(0, 0))
