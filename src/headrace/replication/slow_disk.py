"""Producers that are faster than the disk: whether there are such, and what is done about it.

The system takes writes into memory until too much waits for the disk; then it makes whoever writes wait inside the
write, which here is everybody, as one thread serves all. So once a write had to wait, producers are answered when what
they sent is on the disk: they send no more than it takes, writes do not wait any longer, and other clients notice
nothing (docs/decisions/065).
"""

import logging
import time
from typing import Final

log = logging.getLogger(__name__)

STALL_NS: Final = 100_000_000
"""Appending what one request brings takes a hundredth of this."""
_LASTS_NS: Final = 10_000_000_000
_SILENCE_NS: Final = 60_000_000_000


class SlowDisk:
    """`until_ns` is when producers need not wait for the disk any more, in ns since the epoch; 0 before they must."""

    def __init__(self) -> None:
        self.until_ns = 0
        self._told_ns = -_SILENCE_NS

    def wrote(self, began_ns: int) -> bool:
        """Whether producers wait for the disk, after writes that began then."""
        ended_ns = time.time_ns()
        if ended_ns - began_ns > STALL_NS:
            self.stalled(ended_ns, ended_ns - began_ns)
        return ended_ns < self.until_ns

    def waited(self, began_ns: int) -> None:
        """Producers have waited since then, for the disk perhaps."""
        if began_ns < self.until_ns:
            ended_ns = time.time_ns()
            self.clock_is(ended_ns)
            if ended_ns - began_ns > STALL_NS:
                self.stalled(ended_ns, ended_ns - began_ns)

    def stalled(self, now_ns: int, waited_ns: int) -> None:
        """A write, or a flush, took `waited_ns` until now."""
        if now_ns - self._told_ns >= _SILENCE_NS:
            log.warning(
                "The disk is slower than the producers: it took %.1f s; they are answered once their records are on it",
                waited_ns / 1e9,
            )
            self._told_ns = now_ns
        self.until_ns = now_ns + _LASTS_NS

    def clock_is(self, now_ns: int) -> None:
        """A clock that is set back does not make producers wait for longer."""
        if self.until_ns - now_ns > _LASTS_NS:
            self.until_ns = 0
