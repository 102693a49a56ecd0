"""Periodic work of a broker, in separate tasks."""

import asyncio
import logging
from collections.abc import Callable, Generator
from concurrent.futures import Executor
from typing import Final

from headrace.clock import now_ms
from headrace.config import BrokerConfig
from headrace.errors import KafkaError
from headrace.replication.producer_snapshots import INTERVAL_MS as SNAPSHOT_INTERVAL_MS
from headrace.replication.producer_snapshots import ProducerSnapshots
from headrace.replication.replica_manager import ReplicaManager
from headrace.slices import Steps, finish

log = logging.getLogger(__name__)

DELETED_FILES_CHECK_MS: Final = 1000
FAILURE_CHECK_MS: Final = 1000
FIRST_RETENTION_MS: Final = 30_000
"""Maximum delay of the first retention run, as in Kafka: a broker that restarts often must delete old data, too."""
_LONGEST_PAUSE_S: Final = 86_400.0


class Upkeep:
    """Runs work periodically until `stop`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, executor: Executor) -> None:
        self._loop = loop
        self._executor = executor
        self._tasks: list[asyncio.Task[None]] = []

    def every(
        self,
        name: str,
        pause_ms: Callable[[], int],
        work: Callable[[], Callable[[], None] | Steps[None] | None],
        *,
        slow: bool = False,
        first_ms: int = 86_400_000,
    ) -> None:
        """Run `work` every `pause_ms()`, but at least once a day; the first time after `first_ms` at the latest.

        `slow` work runs in a thread; other work may return steps, which run in slices, or a function to run in a
        thread. A failure is logged and does not stop later runs.
        """
        self._tasks.append(self._loop.create_task(self._repeat(name, pause_ms, work, slow, first_ms / 1000)))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _repeat(
        self,
        name: str,
        pause_ms: Callable[[], int],
        work: Callable[[], Callable[[], None] | Steps[None] | None],
        slow: bool,
        longest_s: float,
    ) -> None:
        while True:
            await asyncio.sleep(min(pause_ms() / 1000, longest_s))
            longest_s = _LONGEST_PAUSE_S
            try:
                rest = work if slow else work()
                if isinstance(rest, Generator):
                    await finish(rest)
                elif rest is not None:
                    await self._loop.run_in_executor(self._executor, rest)
            except (KafkaError, OSError) as error:
                log.error("%s failed and will be retried: %s", name, error)
            except Exception:
                log.exception("%s failed; trying again (this is a bug, please report it)", name)


def maintain_logs(upkeep: Upkeep, config: BrokerConfig, replicas: ReplicaManager) -> None:
    """Delete old data, expire producers, flush, and write checkpoints and producer snapshots, as configured."""
    log_dirs = replicas.log_dirs

    def write_back() -> None:
        log_dirs.flush_rolled()
        replicas.checkpoint()

    upkeep.every(
        "Retention",
        lambda: config.log_retention_check_interval_ms,
        replicas.apply_retention,
        first_ms=FIRST_RETENTION_MS,
    )
    upkeep.every(
        "The expiry of producers",
        lambda: config.producer_id_expiration_check_interval_ms,
        lambda: replicas.expire_producers(config.producer_id_expiration_ms),
    )
    upkeep.every(
        "Flushing",
        lambda: min(config.log_flush_scheduler_interval_ms, FAILURE_CHECK_MS, replicas.shortest_flush_ms),
        replicas.flush_due,
        slow=True,
    )
    snapshots = ProducerSnapshots(replicas.hosted)
    upkeep.every("Writing producer snapshots", lambda: SNAPSHOT_INTERVAL_MS, snapshots.take)
    upkeep.every("Writing checkpoints", lambda: config.log_flush_offset_checkpoint_interval_ms, write_back, slow=True)
    upkeep.every(
        "Removing deleted files",
        lambda: DELETED_FILES_CHECK_MS,
        lambda: log_dirs.remove_deleted_files(now_ms()),
        slow=True,
    )
