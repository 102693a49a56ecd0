"""Log refused batches, with a rate limit: one request can contain thousands of them."""

import logging
import time
from collections.abc import Callable
from typing import Final

from headrace.server.context import RequestContext

log = logging.getLogger(__name__)

MAX_LINES: Final = 100
"""Lines per second."""


class RefusalLog:
    """Logs at most MAX_LINES refusals per second. The next line counts the refusals that were not logged."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since = clock()
        self._lines = 0
        self._unlogged = 0

    def refused(self, partition: str, context: RequestContext, error: Exception) -> None:
        """Log that a batch for `partition` was refused."""
        now = self._clock()
        if now - self._since >= 1:
            self._since = now
            self._lines = 0
        if self._lines >= MAX_LINES:
            self._unlogged += 1
            return
        self._lines += 1
        more = ""
        if self._unlogged:
            more = f" ({self._unlogged} more refused since the last line)"
            self._unlogged = 0
        log.warning(
            "Produce to %s from client id %s (%s) refused: %s%s",
            partition,
            context.client_id,
            context.client_host,
            error,
            more,
        )
