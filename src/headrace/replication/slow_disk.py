"""Slow down producers that are faster than the disk.

The kernel buffers writes until too much data waits for the disk; then it blocks the writing thread, which serves all
clients. So after a blocked write, producers are answered only when their records are flushed: they send no more than
the disk can take, writes no longer block, and other clients are not affected (docs/decisions/065).
"""

import logging
import time
from typing import Final

log = logging.getLogger(__name__)

STALL_NS: Final = 100_000_000
"""A write that takes longer was blocked; an append usually takes a hundredth of this."""
_LASTS_NS: Final = 10_000_000_000
_SILENCE_NS: Final = 60_000_000_000


class SlowDisk:
    """Decides when producers have to wait for the disk: until `until_ns` (ns since the epoch), 0 for not at all."""

    def __init__(self) -> None:
        self.until_ns = 0
        self._logged_ns = -_SILENCE_NS

    def wrote(self, began_ns: int) -> bool:
        """Handle writes that began at `began_ns`. Return True if producers have to wait for the disk."""
        ended_ns = time.time_ns()
        if ended_ns - began_ns > STALL_NS:
            self.stalled(ended_ns, ended_ns - began_ns)
        return ended_ns < self.until_ns

    def waited(self, began_ns: int) -> None:
        """Handle the end of a wait for a flush that began at `began_ns`. If it was long, producers keep waiting."""
        if began_ns < self.until_ns:
            ended_ns = time.time_ns()
            self.clock_is(ended_ns)
            if ended_ns - began_ns > STALL_NS:
                self.stalled(ended_ns, ended_ns - began_ns)

    def stalled(self, now_ns: int, waited_ns: int) -> None:
        """Make producers wait for the disk, after a write or flush that took `waited_ns`."""
        if now_ns - self._logged_ns >= _SILENCE_NS:
            log.warning(
                "The disk is slower than the producers: a write or flush took %.1f s; Produce now waits for the disk",
                waited_ns / 1e9,
            )
            self._logged_ns = now_ns
        self.until_ns = now_ns + _LASTS_NS

    def clock_is(self, now_ns: int) -> None:
        """End the wait if the clock was set back: otherwise the wait would last too long."""
        if self.until_ns - now_ns > _LASTS_NS:
            self.until_ns = 0
