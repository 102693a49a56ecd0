"""An event loop in virtual time that runs the tasks and callbacks of several processes.

Everything that a process starts belongs to it, because contexts are inherited. After `Process.kill` none of it
runs; while it is frozen, its callbacks wait.
"""

import asyncio
import heapq
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from random import Random
from typing import Any, Final
from unittest.mock import patch

from headrace.clock import Clock

_EPOCH_NS: Final = 1_700_000_000_000_000_000
_SLOWEST_DISK_S: Final = 0.02


class DeadlockError(Exception):
    """Nothing is left to run."""


class Process:
    """A process on a host, whose name the network knows."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.is_alive = True
        self.is_frozen = False
        self.context: Context = copy_context()
        self.context.run(_PROCESS.set, self)
        self.clock_skew_s = 0.0
        self.parked: list[asyncio.Handle] = []
        """Callbacks that wait for the process to continue."""


_PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


def current_process() -> Process | None:
    """Return the process whose callback runs now; None for the world."""
    return _PROCESS.get()


class ProcessLoop(asyncio.BaseEventLoop):
    """The loop. `now` is in seconds; `connect` makes connections."""

    _ready: Any
    _scheduled: Any

    def __init__(self, random: Random) -> None:
        super().__init__()
        self.now = 1000.0
        self.after_step: Callable[[], None] = lambda: None
        """Called after everything that was ready has run once."""
        self.ran: set[Process] = set()
        """The processes that have run since the last call of `after_step`."""
        self.connect: Callable[..., Any] = _refuse
        self._random = random
        self._processes: list[Process] = []
        self._all_tasks: list[asyncio.Task[Any]] = []
        self.set_task_factory(self._create_task)
        self.set_exception_handler(lambda _, __: None)

    def time(self) -> float:
        return self.now

    def spawn(self, process: Process, work: Callable[[], Any]) -> "asyncio.Task[Any]":
        """Run the coroutine of `work` as a task of the process."""
        self._processes.append(process)
        return process.context.copy().run(lambda: self.create_task(work()))

    def kill(self, process: Process) -> None:
        process.is_alive = False
        process.parked.clear()

    def freeze(self, process: Process) -> None:
        process.is_frozen = True

    def resume(self, process: Process) -> None:
        process.is_frozen = False
        self._ready.extend(process.parked)
        process.parked.clear()

    def end(self) -> None:
        """Cancel all remaining tasks, including those of dead processes, and close the loop."""
        self.after_step = lambda: None
        for process in self._processes:
            process.is_alive = True
            process.is_frozen = False
        self._scheduled.clear()
        left = [task for task in self._all_tasks if not task.done()]
        for task in left:
            task.cancel()
        if left:
            self.run_until_complete(asyncio.wait(left, timeout=1.0))
        self.close()

    # Parts of asyncio's loops

    async def create_connection(self, factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:  # type: ignore[override]
        return await self.connect(factory, (host, port))

    def run_in_executor(self, _: Any, work: Callable[..., Any], *arguments: Any) -> "asyncio.Future[Any]":  # type: ignore[override]
        """Run the work without a thread, after a delay for the disk."""
        done: asyncio.Future[Any] = self.create_future()

        def run() -> None:
            if done.cancelled():
                return
            try:
                done.set_result(work(*arguments))
            except Exception as error:  # noqa: BLE001 it belongs to the caller
                done.set_exception(error)

        self.call_later(self._random.uniform(0, _SLOWEST_DISK_S), run)
        return done

    def call_at(self, when: float, callback: Any, *arguments: Any, context: Context | None = None) -> Any:  # type: ignore[override]
        handle = asyncio.TimerHandle(when, callback, arguments, self, context)
        # Pairs are compared without a call of Python. Handles are never equal, so they keep asyncio's order.
        heapq.heappush(self._scheduled, (when, handle))
        return handle

    def call_soon(self, callback: Any, *arguments: Any, context: Context | None = None) -> Any:  # type: ignore[override]
        self._check_closed()  # type: ignore[attr-defined]
        handle = asyncio.Handle(callback, arguments, self, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def _create_task(self, loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> "asyncio.Task[Any]":
        task = asyncio.Task(work, loop=loop, **options)
        # Keep the tasks of a dead process; collecting them would run their `finally` blocks.
        self._all_tasks.append(task)
        return task

    def _run_once(self) -> None:
        scheduled, ready = self._scheduled, self._ready
        while scheduled and scheduled[0][1]._cancelled:
            heapq.heappop(scheduled)
        if not ready:
            if not scheduled:
                raise DeadlockError
            self.now = max(self.now, scheduled[0][0])
        now = self.now
        while scheduled and scheduled[0][0] <= now:
            handle = heapq.heappop(scheduled)[1]
            if not handle._cancelled:
                ready.append(handle)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            process = handle._context.get(_PROCESS)
            if process is not None:
                if not process.is_alive:
                    continue
                if process.is_frozen:
                    process.parked.append(handle)
                    continue
                self.ran.add(process)
            handle._run()
        self.after_step()
        self.ran.clear()

    def _timer_handle_cancelled(self, _: asyncio.TimerHandle) -> None:
        """Do nothing: cancelled timers are few."""

    def _process_events(self, _: object) -> None:
        """Do nothing: no sockets."""

    def _write_to_self(self) -> None:
        """Do nothing: no threads."""


async def _refuse(_: object, __: object) -> Any:
    raise ConnectionRefusedError


@contextmanager
def virtual_clocks(loop: ProcessLoop) -> Iterator[None]:
    """Replace the system's clocks with the loop's; the wall clock has the skew of the current process."""

    def time_ns() -> int:
        process = _PROCESS.get()
        skew = 0.0 if process is None else process.clock_skew_s
        return _EPOCH_NS + int((loop.now + skew) * 1e9)

    def monotonic_ns() -> int:
        return int(loop.now * 1e9)

    clock = Clock(lambda: time_ns() // 1_000_000, loop.time)
    with (
        patch.object(time, "time_ns", time_ns),
        patch.object(time, "monotonic_ns", monotonic_ns),
        patch.object(time, "monotonic", loop.time),
        patch("headrace.broker.membership.following.SYSTEM", clock),
        # Work is never interrupted because of the speed of this machine.
        patch("headrace.slices._clock", lambda: 0.0),
    ):
        yield
