"""A thread that does not keep the process from ending."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Worker(Executor):
    """Runs calls one after another in a daemon thread: unlike a ThreadPoolExecutor, it is not awaited at exit."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], object]] | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._is_shut_down = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a call after those before it. Raise RuntimeError after `shutdown`."""
        if self._is_shut_down:
            raise RuntimeError("the thread was shut down")
        if self._thread.ident is None:
            self._thread.start()
        future: Future[T] = Future()
        self._calls.put((future, partial(fn, *args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the thread after the calls submitted before, or after the current one if `cancel_futures` is set."""
        self._is_shut_down = True
        if cancel_futures:
            with suppress(Empty):
                while (item := self._calls.get_nowait()) is not None:
                    item[0].cancel()
        self._calls.put(None)
        if wait and self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        for future, call in iter(self._calls.get, None):
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:  # noqa: BLE001
                    future.set_exception(error)
            del future, call  # they may be large
