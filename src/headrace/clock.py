"""The system's clocks. Pure modules never import them; the time is passed in."""

import time
from collections.abc import Callable
from typing import Final, NamedTuple


def now_ms() -> int:
    """Return milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class Clock(NamedTuple):
    """The two clocks of a running broker; a simulation passes its own."""

    wall_ms: Callable[[], int]
    """Milliseconds since the epoch."""
    monotonic: Callable[[], float]
    """Seconds; only differences are meaningful."""


SYSTEM: Final = Clock(now_ms, time.monotonic)
