"""A future whose callbacks run inside the call that sets its result.

An asyncio future runs its callbacks only in the next iteration of the event loop. On the path of acks=all, the extra
iterations take as long as the work.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any, Final, Generic, TypeVar, cast

T = TypeVar("T")
U = TypeVar("U")

_PENDING: Final = object()
log = logging.getLogger(__name__)


class Promise(Awaitable[T], Generic[T]):
    """Has the methods of an asyncio future. Not thread-safe: call them on the event loop."""

    __slots__ = ("_callbacks", "_error", "_result")

    def __init__(self) -> None:
        self._result: object = _PENDING
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Promise[T]], object]] = []

    def done(self) -> bool:
        return self._result is not _PENDING or self._error is not None

    def cancelled(self) -> bool:
        return isinstance(self._error, asyncio.CancelledError)

    def result(self) -> T:
        """Return the result, or raise the error. Call this only when done."""
        if self._error is not None:
            raise self._error
        return cast(T, self._result)

    def exception(self) -> BaseException | None:
        return self._error

    def set_result(self, result: T) -> None:
        """Set the result and run the callbacks. Does nothing if already done, for example cancelled."""
        self._end(result, None)

    def set_exception(self, error: BaseException) -> None:
        """Set an error and run the callbacks. Does nothing if already done."""
        self._end(_PENDING, error)

    def _end(self, result: object, error: BaseException | None) -> None:
        if not self.done():
            self._result, self._error = result, error
            callbacks, self._callbacks = self._callbacks, []  # they may refer to this promise
            for callback in callbacks:
                self._call(callback)

    def _call(self, callback: "Callable[[Promise[T]], object]") -> None:
        try:
            callback(self)
        except Exception:  # must not reach the caller, which may serve another client
            log.exception("A callback of a promise failed: this is a bug, please report it")

    def cancel(self) -> None:
        self.set_exception(asyncio.CancelledError())

    def add_done_callback(self, callback: "Callable[[Promise[T]], object]") -> None:
        """Call `callback` with this promise once it is done; at once if it already is."""
        if self.done():
            self._call(callback)
        else:
            self._callbacks.append(callback)

    def then(self, convert: "Callable[[Promise[T]], U]") -> "Promise[U]":
        """Return a promise of the result of `convert(self)`, or of the error that it raises.

        Cancelling it also cancels this promise.
        """
        converted = _Converted(self, convert)
        self.add_done_callback(converted.convert)
        return converted

    def __await__(self) -> Generator[Any, Any, T]:
        if not self.done():
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._callbacks.append(partial(_wake, future))
            try:
                yield from future
            except asyncio.CancelledError:
                self.cancel()
                raise
        return self.result()


def _wake(future: asyncio.Future[None], _: object) -> None:
    if not future.done():
        future.set_result(None)


class _Converted(Promise[U]):
    """A promise of the converted result of another one."""

    __slots__ = ("_convert", "_source")

    def __init__(self, source: Promise[Any], convert: Callable[[Promise[Any]], U]) -> None:
        super().__init__()
        self._source = source
        self._convert = convert

    def cancel(self) -> None:
        self._source.cancel()
        super().cancel()

    def convert(self, done: Promise[Any]) -> None:
        try:
            result = self._convert(done)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  passed on
            self.set_exception(error)
        else:
            self.set_result(result)
