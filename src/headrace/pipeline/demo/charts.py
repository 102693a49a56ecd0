"""Text charts for a terminal: columns over time, and horizontal bars."""

from collections.abc import Sequence
from typing import Final

_EIGHTHS: Final = " ▁▂▃▄▅▆▇█"
_PARTS: Final = " ▏▎▍▌▋▊▉█"


def columns(values: Sequence[int], height: int, *, ascii_only: bool = False) -> list[str]:
    """Return `height` lines, top first, that draw one column per value, scaled to the largest value.

    A value above 0 is always visible.
    """
    steps = 1 if ascii_only else 8
    most = max(values, default=0) or 1
    levels = [max(1, round(value / most * height * steps)) if value > 0 else 0 for value in values]
    return [
        "".join(_filled(level - line * steps, steps, "#" if ascii_only else _EIGHTHS) for level in levels)
        for line in reversed(range(height))
    ]


def bar(value: int, most: int, width: int, *, ascii_only: bool = False) -> str:
    """Return a horizontal bar of at most `width` characters for a value of at most `most`."""
    steps = 1 if ascii_only else 8
    level = max(1, round(value / (most or 1) * width * steps)) if value > 0 else 0
    characters = "#" if ascii_only else _PARTS
    return "".join(_filled(level - place * steps, steps, characters) for place in range(width)).rstrip()


def _filled(level: int, steps: int, characters: str) -> str:
    """Return the character for a cell that is filled up to `level` of `steps`."""
    if level <= 0:
        return " "
    return characters[-1] if level >= steps else characters[level]
