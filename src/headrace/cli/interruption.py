"""Let Ctrl-C or SIGTERM stop a command between two batches of records instead of in the middle of one."""

import signal
from types import TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """Context in which a first Ctrl-C or SIGTERM only sets `asked`; a second one raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.asked = False
        self._before: list[Any] = []

    def __enter__(self) -> Self:
        self._before = [signal.signal(number, self._note) for number in _SIGNALS]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in zip(_SIGNALS, self._before, strict=True):
            signal.signal(number, handler)

    def _note(self, *_: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
