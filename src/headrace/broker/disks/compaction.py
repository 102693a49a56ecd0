"""Run the log cleaner with its threads, processes, and calls to the event loop.

The cleaner is imported when this broker has a log with `cleanup.policy=compact`.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, TypeVar

from headrace.clock import now_ms
from headrace.config import BrokerConfig
from headrace.extras import install
from headrace.replication.replica_manager import ReplicaManager

if TYPE_CHECKING:
    from headrace.storage.cleaner.log_cleaner import CleanerSettings, Compactable, LogCleaner
    from headrace.storage.cleaner.process import CleanerProcess

_T = TypeVar("_T")

_MIN_BUFFER_BYTES: Final = 16 * 1024
_MIN_BACKOFF_S: Final = 0.1

log = logging.getLogger(__name__)


class Compaction:
    """Compacts logs in `log.cleaner.threads` threads, each of which uses a process."""

    def __init__(self, config: BrokerConfig, replicas: ReplicaManager, loop: asyncio.AbstractEventLoop) -> None:
        self._config = config
        self._replicas = replicas
        self._loop = loop
        self._stopping = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._threads: ThreadPoolExecutor | None = None
        self._processes: list[CleanerProcess] = []
        self._cleaner: LogCleaner | None = None

    @property
    def cleaner(self) -> "LogCleaner | None":
        """None until it is imported."""
        return self._cleaner

    @property
    def dead_threads(self) -> int:
        """Number of cleaner loops that have ended unexpectedly."""
        return 0 if self._stopping.is_set() else sum(task.done() for task in self._tasks)

    def start(self) -> None:
        """Compact logs every `log.cleaner.backoff.ms`, first after this delay."""
        if self._config.log_cleaner_enable and self._config.log_cleaner_threads:
            count = self._config.log_cleaner_threads
            self._threads = ThreadPoolExecutor(count, thread_name_prefix="headrace-cleaner")
            self._tasks = [self._loop.create_task(self._repeat()) for _ in range(count)]

    async def stop(self) -> None:
        """Abort running compactions, which start over after a restart."""
        self._stopping.set()
        for process in self._processes:
            process.close()
        await asyncio.gather(*self._tasks)
        for process in self._processes:
            process.end()
        if self._threads is not None:
            self._threads.shutdown()

    async def _repeat(self) -> None:
        process: CleanerProcess | None = None
        while not self._stopping.is_set():
            try:
                async with asyncio.timeout(max(_MIN_BACKOFF_S, self._config.log_cleaner_backoff_ms / 1000)):
                    await self._stopping.wait()
                    break
            except TimeoutError:
                pass
            if not any(partition.log.config.compacts for partition in self._replicas.hosted()):
                continue
            try:
                if process is None:
                    process = await self._loop.run_in_executor(self._threads, self._load)
                while not self._stopping.is_set() and self._cleaner is not None:
                    if not await self._loop.run_in_executor(self._threads, self._cleaner.clean_filthiest, process):
                        break
            except Exception:
                log.exception("Compaction failed and will be retried")

    def _load(self) -> "CleanerProcess":
        from headrace.storage.cleaner.log_cleaner import LogCleaner
        from headrace.storage.cleaner.process import CleanerProcess

        if self._cleaner is None and find_spec("numpy") is None:
            log.info(
                "Compaction takes several times as long without numpy. Install it with: %s",
                install("compaction"),
            )
        process = CleanerProcess()
        self._on_loop(lambda: self._processes.append(process))
        if self._cleaner is None:
            self._cleaner = LogCleaner(
                self._replicas.log_dirs, self._logs, self._settings, on_loop=self._on_loop, now_ms=now_ms
            )
        return process

    def _logs(self) -> "Iterable[Compactable]":
        from headrace.storage.cleaner.log_cleaner import Compactable

        for partition in self._replicas.hosted():
            if partition.log.config.compacts:
                yield Compactable(partition.log, partition.last_stable_offset, partition.producers.snapshot)

    def _settings(self) -> "CleanerSettings":
        from headrace.storage.cleaner.log_cleaner import CleanerSettings

        config = self._config
        threads = len(self._tasks)  # the setting may have changed since
        return CleanerSettings(
            map_bytes=config.log_cleaner_dedupe_buffer_size * config.log_cleaner_io_buffer_load_factor / threads,
            # one for reading and one for writing
            io_buffer_bytes=max(_MIN_BUFFER_BYTES, config.log_cleaner_io_buffer_size // threads // 2),
            bytes_per_second=max(1.0, config.log_cleaner_io_max_bytes_per_second / threads),
        )

    def _on_loop(self, work: Callable[[], _T]) -> _T:
        async def run() -> _T:
            return work()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()
