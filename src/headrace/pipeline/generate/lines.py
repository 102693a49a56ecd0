"""Render requests as lines in Combined Log Format, and tear lines, with the reason that a parser must give."""

from datetime import UTC, datetime
from typing import Final

from headrace.pipeline.generate.site import Request

_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

NO_TIME: Final = "no time as [dd/Mon/yyyy:hh:mm:ss +zzzz]"
NO_REQUEST: Final = "no quoted request after the time"
OPEN_REQUEST: Final = "the quoted request does not end"
NO_STATUS: Final = "the status is not a number of three digits"
NO_SIZE: Final = "the size is neither a number nor a hyphen"
NO_CLIENT: Final = "no client address at the start"
NO_FORMAT: Final = "neither Common nor Combined Log Format"


class Renderer:
    """Renders requests as lines. Caches the last formatted timestamp."""

    def __init__(self) -> None:
        self._second = -1
        self._stamp = ""

    def line(self, request: Request) -> str:
        """Return the line without its line ending."""
        time, client, text, status, size, referer, user_agent, _ = request
        if time != self._second:
            self._second = time
            self._stamp = stamp(time)
        shown = "-" if size is None else size
        return f'{client} - - [{self._stamp}] "{text}" {status} {shown} "{referer}" "{user_agent}"'


def stamp(time: int) -> str:
    """Format seconds since the epoch as '17/May/2015:10:05:03 +0000'."""
    at = datetime.fromtimestamp(time, UTC)
    return f"{at.day:02}/{_MONTHS[at.month - 1]}/{at.year}:{at.hour:02}:{at.minute:02}:{at.second:02} +0000"


def torn(line: str, side: float, place: float) -> tuple[str, str]:
    """Cut off a part of a line, chosen by two random numbers in [0, 1); return the rest and the reason to reject it.

    In four of five cases, the end is lost, including the whole size, because a longer line could still be valid.
    Otherwise, the start is lost.
    """
    bracket = line.index("[")
    time_end = line.index("]") + 1
    status = line.index('" ', time_end) + 2
    if side < 0.2:
        first = line.index(" ")
        cut = first + int(place * (status - first))
        return line[cut:], NO_CLIENT if cut < bracket else NO_FORMAT if cut == bracket else NO_TIME
    cut = 1 + int(place * (status + 4))
    for limit, reason in (
        (time_end, NO_TIME),
        (time_end + 2, NO_REQUEST),
        (status, OPEN_REQUEST),
        (status + 4, NO_STATUS),
    ):
        if cut < limit:
            return line[:cut], reason
    return line[:cut], NO_SIZE
