"""Parse positions in a topic and moments in time. Pure: the current time is passed in."""

import re
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto

DAY_MS = 86_400_000
_MAX_MS = 2**63 - 1


class Start(Enum):
    """The kind of a position, which determines the meaning of its number."""

    BEGINNING = auto()
    END = auto()
    OFFSET = auto()
    BEFORE_END = auto()  # number of records before the end
    TIME = auto()  # ms since the Unix epoch
    CURRENT = auto()  # the group's committed offset


@dataclass(frozen=True, slots=True)
class Position:
    """A start position, the same for all partitions."""

    start: Start
    number: int = 0

    def offset(self, earliest: int, latest: int) -> int | None:
        """Return the offset in a partition with the offsets from `earliest` up to, but not including, `latest`.

        None for a time and for a group's committed offset.
        """
        match self.start:
            case Start.BEGINNING:
                return earliest
            case Start.END:
                return latest
            case Start.OFFSET:
                return min(max(self.number, earliest), latest)
            case Start.BEFORE_END:
                return max(latest - self.number, earliest)
            case Start.TIME | Start.CURRENT:
                return None


def parse_position(text: str, now_ms: int, *, of_group: bool = False) -> Position:
    """Parse 'beginning', 'end', '42', '-10', a moment, or for a group also 'current'.

    Raises ValueError, listing the valid positions unless a time is out of range.
    """
    word = text.strip().lower()
    if of_group and word == "current":
        return Position(Start.CURRENT)
    if word in ("beginning", "earliest", "start"):
        return Position(Start.BEGINNING)
    if word in ("end", "latest"):
        return Position(Start.END)
    if re.fullmatch(r"\d{1,99}", word):
        return Position(Start.OFFSET, int(word))
    if re.fullmatch(r"-\d{1,99}", word):
        return Position(Start.BEFORE_END, int(word[1:]))
    try:
        return Position(Start.TIME, parse_moment(text, now_ms))
    except ValueError as error:
        if "out of range" in str(error):
            raise
        names = "earliest, latest, current" if of_group else "beginning, end"
        raise ValueError(
            f"'{text}' is not a valid position: use {names}, an offset (42), a number of records before the end (-10), "
            "a time (2026-11-21T09:30, @MILLISECONDS), or a duration before now (15m, 2h, 1d12h)"
        ) from None


def parse_moment(text: str, now_ms: int) -> int:
    """Parse '@1763719200000', an ISO 8601 date or time (local without a zone) or '15m ago' to ms since the Unix epoch.

    Raises ValueError, listing the valid formats unless the time is out of range.
    """
    moment = _moment(text.strip(), now_ms)
    if not 0 <= moment <= _MAX_MS:
        raise ValueError(f"'{text}' is out of range: Kafka's timestamps are milliseconds since 1970")
    return moment


def _moment(text: str, now_ms: int) -> int:
    if re.fullmatch(r"@\d{1,99}", text):
        return int(text[1:])
    ago = parse_duration(text.lower().removesuffix("ago").rstrip())
    if ago is not None:
        return now_ms - ago
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise ValueError(
            f"'{text}' is not a valid time: use an ISO date or time (2026-11-21, 2026-11-21T09:30:00Z), @MILLISECONDS, "
            "or a duration before now (15m, 2h, 1d12h)"
        ) from None


_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": DAY_MS, "w": 7 * DAY_MS}
_TERM = re.compile(r"(\d+(?:\.\d+)?)(ms|min|[smhdw])")


def parse_duration(text: str) -> int | None:
    """Parse '90s', '15m' or '1d12h'. Return milliseconds, or None for any other text."""
    text = text.replace(" ", "")
    if not re.fullmatch(f"(?:{_TERM.pattern})+", text):
        return None
    return round(sum(float(number) * _UNITS_MS[unit] for number, unit in _TERM.findall(text)))
