"""Let a signal stop a command between two batches of records instead of in the middle of one."""

import signal
from types import TracebackType
from typing import Any, Self


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that stop a command in order: Ctrl-C, SIGTERM, and SIGHUP, which a closed terminal sends.

    `nohup` ignores SIGHUP, so that the command outlives the terminal: then leave it ignored.
    """
    hang_up = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
    return (signal.SIGINT, signal.SIGTERM, *hang_up)


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
        # Both the shell and the kernel send SIGHUP when a terminal is closed.
        if self.asked and number != signal.SIGHUP:
            raise KeyboardInterrupt
        self.asked = True
