"""Let a signal stop a command between two batches of records instead of in the middle of one."""

import signal
from types import FrameType, TracebackType
from typing import Any, Self


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that stop a command in order: Ctrl-C, SIGTERM, and SIGHUP, which a closed terminal sends.

    `nohup` ignores SIGHUP, so that the command outlives the terminal: then leave it ignored.
    """
    hang_up = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
    return (signal.SIGINT, signal.SIGTERM, *hang_up)


def interrupt(number: int, frame: FrameType | None) -> None:
    """Handle a signal as Ctrl-C, but ignore further SIGHUPs. Raises KeyboardInterrupt."""
    if number == signal.SIGHUP:
        # Both the shell and the kernel send it when a terminal is closed.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.default_int_handler(number, frame)


class Interruption:
    """Context in which a first signal only sets `asked`; a second Ctrl-C or SIGTERM raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._note) for number in stop_signals()}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: object) -> None:
        # A second SIGHUP is not a second request: see `interrupt`.
        if self.asked and number != signal.SIGHUP:
            raise KeyboardInterrupt
        self.asked = True
