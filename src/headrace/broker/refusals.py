"""The log of refused batches, with a limit on lines per second: one request can contain thousands of such batches."""

import logging
import time
from collections.abc import Callable
from typing import Final

from headrace.server.context import RequestContext

log = logging.getLogger(__name__)

MAX_LINES: Final = 100
"""Lines per second."""


class RefusalLog:
    """Counts the refusals that it leaves out, and adds their number to the next line."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since = clock()
        self._lines = 0
        self._left_out = 0

    def refused(self, partition: str, context: RequestContext, error: Exception) -> None:
        """Log that a batch for `partition` was refused."""
        now = self._clock()
        if now - self._since >= 1:
            self._since = now
            self._lines = 0
        if self._lines >= MAX_LINES:
            self._left_out += 1
            return
        self._lines += 1
        more = ""
        if self._left_out:
            more = f" ({self._left_out} more refused since the last line)"
            self._left_out = 0
        log.warning(
            "Produce to %s from client id %s (%s) refused: %s%s",
            partition,
            context.client_id,
            context.client_host,
            error,
            more,
        )
