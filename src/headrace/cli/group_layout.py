"""Fit tables to the terminal: shorten long names in the middle, wrap sentences between words.

In pipes and in JSON, names are complete.
"""

import shutil
from collections.abc import Sequence
from datetime import datetime

from headrace.cli import output
from headrace.cli.cell_text import folded, shortened, width_of
from headrace.cli.output import Cell, Column

_GAP = 3
"""Spaces between two columns."""
_NARROWEST = 8
"""Minimum width of a column of names or sentences, even on a narrower terminal."""


class Name(Column):
    """A column of ids or names."""

    __slots__ = ()


class Prose(Column):
    """A column of sentences."""

    __slots__ = ()


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> None:
    """Print a table as `output.print_table` does, fitted to the terminal if stdout is one."""
    if output.stdout_is_terminal():
        rows = fitted(columns, rows, terminal_width())
    output.print_table(columns, rows)


def terminal_width() -> int:
    return shutil.get_terminal_size().columns


def fitted(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int) -> list[list[Cell]]:
    """Return the rows with names and sentences shortened to fit the width."""
    natural = [max([len(column.title), *(_width(row[place]) for row in rows)]) for place, column in enumerate(columns)]
    flexible = [place for place, column in enumerate(columns) if isinstance(column, Name | Prose)]
    room = width - _GAP * (len(columns) - 1) - sum(natural) + sum(natural[place] for place in flexible)
    least = [max(map(len, columns[place].title.split())) for place in flexible]
    widths = dict(zip(flexible, _shares(room, [natural[place] for place in flexible], least), strict=True))
    return [
        [_cut(cell, columns[place], widths[place]) if place in widths else cell for place, cell in enumerate(row)]
        for row in rows
    ]


def _shares(room: int, wishes: Sequence[int], least: Sequence[int]) -> list[int]:
    """Divide the width equally, but give no column more than it needs (`wishes`) or less than its minimum (`least`)."""
    shares = [0] * len(wishes)
    for place, each in enumerate(sorted(range(len(wishes)), key=wishes.__getitem__)):
        fair = max(room // (len(wishes) - place), least[each], _NARROWEST)
        shares[each] = min(wishes[each], fair)
        room -= shares[each]
    return shares


def _cut(cell: Cell, column: Column, width: int) -> Cell:
    if not isinstance(cell, str):
        return cell
    return shortened(cell, width) if isinstance(column, Name) else folded(cell, width)


def _width(cell: Cell) -> int:
    return 1 if cell is None else width_of(f"{cell:,}" if isinstance(cell, int) else cell)


def seconds(duration: float | None, on_terminal: bool) -> Cell:
    """Format a duration: '3 min 20 s' on a terminal, otherwise '200.000' (seconds)."""
    if duration is None:
        return None
    if not on_terminal:
        return f"{duration:.3f}"
    if duration < 1:
        return f"{duration * 1000:.0f} ms" if duration else "0 s"
    return output.seconds(duration)


def moment(time_ms: int, on_terminal: bool) -> str:
    """Format a time: local, without the year, on a terminal; otherwise as `output.utc` does."""
    if not on_terminal:
        return output.utc(time_ms)
    try:
        local = datetime.fromtimestamp(time_ms // 1000).astimezone()
    except (ValueError, OverflowError, OSError):
        return output.utc(time_ms)
    # The non-breaking space keeps date and time on one line.
    return local.strftime("%m-%d\u00a0%H:%M:%S")
