"""Monitors the event loop: logs requests that block it for 200 ms or more, and measures its delay.

Connections time their requests. A timer measures the delay of callbacks, and detects blocking by anything other than a
request.
"""

import asyncio
import logging
from collections import Counter, deque
from time import thread_time_ns
from typing import Final

from headrace.server.context import ClientInfo
from headrace.wire.apis import ApiKey

log = logging.getLogger(__name__)

HOLD_NS: Final = 200_000_000
"""A request, or a step of one, that blocks the loop for this long is logged."""
BEAT_SECONDS: Final = 0.1
KEPT_BEATS: Final = 600
"""The number of delays that `quantiles` uses: one minute."""
_LOG_SECONDS: Final = 1.0
"""The interval between log lines."""
OTHER: Final = "other"
"""Used instead of an API if something other than a request blocked the loop."""
_UNKNOWN_API: Final = "unknown API"


class LoopWatch:
    """Delays of one loop, and the requests that blocked it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._beat: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._delays: deque[float] = deque(maxlen=KEPT_BEATS)
        self._held_ns_since_beat = 0
        self._cpu_ns_at_beat = 0
        self._logged_at = float("-inf")
        self._not_logged = 0
        self.holds: Counter[str] = Counter()
        """Number of times that the loop was blocked for 200 ms or more, by API."""

    def start(self) -> None:
        self._cpu_ns_at_beat = thread_time_ns()
        self._due = self._loop.time() + BEAT_SECONDS
        self._beat = self._loop.call_at(self._due, self._look)

    def stop(self) -> None:
        if self._beat is not None:
            self._beat.cancel()

    def held_by(self, client: ClientInfo, request: tuple[int, int, int], count: int, ns: int) -> None:
        """Record that `count` requests blocked the loop for `ns`; `request` identifies the first (see `identify`)."""
        self._held_ns_since_beat += ns
        key, version, size = request
        name = ApiKey(key).name if key in ApiKey.__members__.values() else _UNKNOWN_API
        self.holds[name] += 1
        more = f" and {count - 1} more" if count > 1 else ""
        self._log(f"{name} v{version} of {size} bytes{more} from {client}", ns)

    def quantiles(self, *shares: float) -> list[float]:
        """Return the quantiles of the loop's delay in the last minute, in seconds."""
        delays = sorted(self._delays) or [0.0]
        return [delays[min(int(len(delays) * share), len(delays) - 1)] for share in shares]

    def _look(self) -> None:
        now = self._loop.time()
        delay = max(now - self._due, 0.0)
        self._delays.append(delay)
        rest = delay - self._held_ns_since_beat / 1e9
        self._held_ns_since_beat = 0
        if rest * 1e9 >= HOLD_NS:
            self.holds[OTHER] += 1
            self._log("Work other than a single long request", int(rest * 1e9))
        self._cpu_ns_at_beat = thread_time_ns()
        self._due = now + BEAT_SECONDS
        self._beat = self._loop.call_at(self._due, self._look)

    def _log(self, what: str, held_ns: int) -> None:
        now = self._loop.time()
        if now - self._logged_at < _LOG_SECONDS:
            self._not_logged += 1
            return
        more = f" ({self._not_logged} more such events since the last line)" if self._not_logged else ""
        self._logged_at, self._not_logged = now, 0
        # an upper bound: the processor time since the last beat
        cpu_ns = thread_time_ns() - self._cpu_ns_at_beat
        busy = f", {cpu_ns / 1e6:.0f} ms of it on the processor: the machine is busy" if cpu_ns < held_ns / 2 else ""
        log.warning("%s blocked the event loop for %.0f ms%s%s", what, held_ns / 1e6, busy, more)
