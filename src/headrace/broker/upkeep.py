"""Work that a broker repeats at intervals, each in a task of its own."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor

from headrace.errors import KafkaError

log = logging.getLogger(__name__)

_LONGEST_PAUSE_S = 86_400.0


class Upkeep:
    """Repeats what `every` was given, until `stop`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, executor: Executor) -> None:
        self._loop = loop
        self._executor = executor
        self._tasks: list[asyncio.Task[None]] = []

    def every(
        self,
        name: str,
        pause_ms: Callable[[], int],
        work: Callable[[], Callable[[], None] | None],
        *,
        slow: bool = False,
        first_ms: int = 86_400_000,
    ) -> None:
        """Do `work` again and again, in a thread if it is `slow`; what it returns is done in a thread.

        A failure is logged, and the next turn comes. The first comes after `first_ms` at the latest.
        """
        self._tasks.append(self._loop.create_task(self._repeat(name, pause_ms, work, slow, first_ms / 1000)))

    async def stop(self) -> None:
        """End all of it."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _repeat(
        self,
        name: str,
        pause_ms: Callable[[], int],
        work: Callable[[], Callable[[], None] | None],
        slow: bool,
        longest_s: float,
    ) -> None:
        while True:
            await asyncio.sleep(min(pause_ms() / 1000, longest_s))
            longest_s = _LONGEST_PAUSE_S
            try:
                rest = work if slow else work()
                if rest is not None:
                    await self._loop.run_in_executor(self._executor, rest)
            except (KafkaError, OSError) as error:
                log.error("%s failed and is tried again later: %s", name, error)
            except Exception:
                log.exception("%s failed and is tried again later", name)
