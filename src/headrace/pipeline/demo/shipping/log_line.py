"""Extract the time and the client from a line of an access log, for its record. The jobs parse the line themselves."""

import re
from datetime import datetime
from typing import Final

_TIME: Final = re.compile(rb"\[(\d{2}/[A-Z][a-z]{2}/\d{4}:\d{2}:\d{2}:\d{2} [+-]\d{4})\]")


def time_of(line: bytes) -> int | None:
    """Return milliseconds since the epoch; None if the line has no time."""
    found = _TIME.search(line)
    if found is None:
        return None
    try:
        moment = datetime.strptime(found[1].decode("ascii"), "%d/%b/%Y:%H:%M:%S %z")
    except ValueError:
        return None
    return max(0, int(moment.timestamp() * 1000))


def client_of(line: bytes) -> bytes:
    return line.split(b" ", 1)[0]
