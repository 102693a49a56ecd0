"""End the process if its event loop is blocked, because ZooKeeper's client thread would keep the session alive."""

import asyncio
import logging
import os
import sys
import traceback
from collections.abc import Callable
from threading import Event, Thread, get_ident
from typing import Final

_CHECKS: Final = 20
"""Number of checks per session timeout."""
_LOG_S: Final = 1.0
"""Timeout (s) for logging: the log itself may block the loop, such as a pipe that nobody reads."""

log = logging.getLogger(__name__)


def end_process() -> None:
    """End the process at once, as if it were killed."""
    _within(_LOG_S, logging.shutdown)
    os._exit(1)


def _within(timeout_s: float, work: Callable[[], None]) -> None:
    """Run `work` in another thread, and wait for it for at most `timeout_s`."""
    thread = Thread(target=work, daemon=True)
    thread.start()
    thread.join(timeout_s)


class Watchdog:
    """Calls `end` if the loop has not run for `timeout_s` while the rest of the process has.

    A stopped process (SIGSTOP) is not ended when it continues: its session expires meanwhile, and it registers again.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *, timeout_s: float, end: Callable[[], None] = end_process
    ) -> None:
        self._loop = loop
        self._timeout_s = timeout_s
        self._end = end
        self._has_run = True
        self._loop_thread = 0
        self._stopped = Event()
        self._thread = Thread(target=self._watch, name="headrace-watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _watch(self) -> None:
        missed = 0
        while not self._stopped.wait(self._timeout_s / _CHECKS):
            if self._has_run:
                missed = 0
                self._has_run = False
                self._loop.call_soon_threadsafe(self._note)
                continue
            missed += 1
            if missed >= _CHECKS:
                _within(_LOG_S, self._report)
                self._end()
                return

    def _report(self) -> None:
        log.critical(
            "The event loop has been blocked for %d s: ending the process, so that other brokers take over. "
            "Stack of the event loop:\n%s",
            self._timeout_s,
            self._place(),
        )

    def _note(self) -> None:
        self._has_run = True
        self._loop_thread = get_ident()

    def _place(self) -> str:
        """Return the stack of the loop's thread."""
        frame = sys._current_frames().get(self._loop_thread)
        return "".join(traceback.format_stack(frame)) if frame is not None else "unknown"
