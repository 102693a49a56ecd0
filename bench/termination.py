"""SIGTERM ends a benchmark as Ctrl-C does: its brokers stop, and their data is removed."""

import signal
import sys
from collections.abc import Callable


class _TerminatedError(KeyboardInterrupt):
    pass


def until_interrupted(measure: Callable[[], int]) -> int:
    """Return the exit code of `measure`. If SIGINT or SIGTERM ends it, print a line and return 128 plus the signal."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        return measure()
    except KeyboardInterrupt as error:
        by_term = isinstance(error, _TerminatedError)
        sys.stderr.write(
            f"\n{'Terminated' if by_term else 'Interrupted'}: the brokers are stopped and their data is removed.\n"
        )
        return 128 + (signal.SIGTERM if by_term else signal.SIGINT)


def _terminate(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the brokers are already being stopped
    raise _TerminatedError
