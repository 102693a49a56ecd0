"""Check that the log directories exist, and that their file systems have enough free space.

Warn at the soft mark, and refuse records from clients at the hard mark.

The closer a file system is to the hard mark, the more often it is checked. Appends check only a flag of the partition.
"""

import asyncio
import logging
from pathlib import Path
from typing import Final

from headrace.config import BrokerConfig
from headrace.errors import KafkaError
from headrace.replication.replica_manager import ReplicaManager
from headrace.slices import finish
from headrace.storage.dirs.disk_space import DiskSpace, Marks, Room

log = logging.getLogger(__name__)

_SLOWEST_S: Final = 1.0
_FASTEST_S: Final = 0.005
_FILLED_PER_SECOND: Final = 1024**3
"""Assumed maximum rate (bytes per second) of all writes to the file system."""
_RETENTION_S: Final = 2.0
"""Time between runs of retention while a directory is below the hard mark."""


class DiskWatch:
    """Checks the directories of `replicas` from `start` to `stop`."""

    def __init__(self, config: BrokerConfig, replicas: ReplicaManager, loop: asyncio.AbstractEventLoop) -> None:
        self._config = config
        self._replicas = replicas
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._retention_at = 0.0
        self._retention: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Check now and then periodically."""
        pause = _SLOWEST_S
        try:
            self._replicas.log_dirs.check()
            seen = list(self._replicas.log_dirs.owned.observe_space(self._marks()))
            some_are_full = any(Room.NONE in (before, space.room) for _, before, space in seen)
            for directory, before, space in seen:
                self._see(directory, before, space)
                if space.room is not Room.NONE:
                    pause = min(pause, max(_FASTEST_S, (space.free - space.hard) / _FILLED_PER_SECOND))
                    if some_are_full:  # partitions may have moved here from a full directory
                        self._replicas.refuse_records(directory, None)
        except KafkaError:
            return  # no directory is left, which has been logged
        except Exception:
            log.exception("The check of free disk space failed and will be retried")
        self._timer = self._loop.call_later(pause, self.start)

    def stop(self) -> None:
        for work in (self._timer, self._retention):
            if work is not None:
                work.cancel()

    def _marks(self) -> Marks:
        config = self._config
        return Marks(
            config.headrace_disk_soft_free_bytes,
            config.headrace_disk_soft_free_percent,
            config.headrace_disk_hard_free_bytes,
            config.headrace_disk_hard_free_percent,
        )

    def _see(self, directory: Path, before: Room, space: DiskSpace) -> None:
        if space.room is not before:
            _log(directory, before, space)
        if space.room is Room.NONE:
            # repeated, because partitions may have been created here or moved here
            self._replicas.refuse_records(
                directory,
                f"log directory {directory} has only {_mib(space.free)} free, and {_mib(space.hard)} are reserved for"
                " the broker (headrace.disk.hard.free.*): make room by deleting topics or lowering their retention;"
                " records are accepted again as soon as enough space is free",
            )
            is_idle = self._retention is None or self._retention.done()
            if is_idle and self._loop.time() >= self._retention_at:
                self._retention_at = self._loop.time() + _RETENTION_S
                self._retention = self._loop.create_task(self._free_space())

    async def _free_space(self) -> None:
        try:
            await finish(self._replicas.apply_retention())
        except Exception:
            log.exception("Retention failed and will be retried (this is a bug, please report it)")


def _log(directory: Path, before: Room, space: DiskSpace) -> None:
    if space.room is Room.NONE:
        log.error(
            "%s has %s free, less than the hard mark of %s (headrace.disk.hard.free.*): its partitions refuse records"
            " from clients until more space is free; reads, retention, deletions and internal topics continue to work",
            directory,
            _mib(space.free),
            _mib(space.hard),
        )
        return
    if before is Room.NONE:
        log.warning("%s has %s free: its partitions accept records again", directory, _mib(space.free))
    if space.room is Room.LOW:
        log.warning(
            "%s has %s of %s free, less than the soft mark of %s (headrace.disk.soft.free.*); below %s,"
            " records from producers will be refused: make room by deleting topics or lowering their retention",
            directory,
            _mib(space.free),
            _mib(space.total),
            _mib(space.soft),
            _mib(space.hard),
        )
    elif before is Room.LOW:
        log.info("%s has %s free, more than the soft mark", directory, _mib(space.free))


def _mib(size: int) -> str:
    return f"{size / 1024**2:,.0f} MiB"
