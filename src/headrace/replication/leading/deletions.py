"""Deletions of records that wait until all live replicas have raised their log start offsets (KIP-107)."""

import asyncio
from functools import partial
from typing import Final

from headrace.errors import ErrorCode, KafkaError

_MAX_TIMEOUT_S: Final = 86_400.0


class Deletions:
    """The waiting deletions of one partition. Use it on the event loop only."""

    __slots__ = ("_waits",)

    def __init__(self) -> None:
        self._waits: dict[asyncio.Future[KafkaError | None], int] = {}

    def wait(self, offset: int, timeout_s: float) -> "asyncio.Future[KafkaError | None]":
        """Return a future that is done when the low watermark reaches `offset`, with an error if it does not."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[KafkaError | None] = loop.create_future()
        self._waits[future] = offset
        late = KafkaError(
            ErrorCode.request_timed_out, f"not all replicas deleted the records before offset {offset} in time"
        )
        timer = loop.call_later(min(max(timeout_s, 0), _MAX_TIMEOUT_S), _finish, future, late)
        future.add_done_callback(partial(self._forget, timer))
        return future

    def _forget(self, timer: asyncio.TimerHandle, future: "asyncio.Future[KafkaError | None]") -> None:
        timer.cancel()
        self._waits.pop(future, None)

    def advanced(self, low_watermark: int) -> None:
        """Complete the deletions up to `low_watermark`."""
        for future, offset in self._waits.items():
            if offset <= low_watermark:
                _finish(future, None)

    def end(self, error: KafkaError | None) -> None:
        """Complete all deletions with this outcome."""
        for future in self._waits:
            _finish(future, error)


def _finish(future: "asyncio.Future[KafkaError | None]", outcome: KafkaError | None) -> None:
    if not future.done():
        future.set_result(outcome)
