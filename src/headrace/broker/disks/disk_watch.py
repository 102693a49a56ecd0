"""Watches the log directories: whether they are still there, and how full they are.

It warns at the soft mark, and at the hard one keeps clients from writing.

The file system is asked often where it could be full before the next look, and never by an append: partitions carry a
flag instead.
"""

import asyncio
import logging
from pathlib import Path
from typing import Final

from headrace.config import BrokerConfig
from headrace.errors import KafkaError
from headrace.replication.replica_manager import ReplicaManager
from headrace.storage.dirs.disk_space import DiskSpace, Marks, Room

log = logging.getLogger(__name__)

_SLOWEST_S: Final = 1.0
_FASTEST_S: Final = 0.005
_FILLED_PER_SECOND: Final = 1024**3
"""Bytes in a second that the broker is assumed to write at most, with others beside it."""
_RETENTION_S: Final = 2.0


class DiskWatch:
    """Looks at the directories of `replicas` from `start` to `stop`."""

    def __init__(self, config: BrokerConfig, replicas: ReplicaManager, loop: asyncio.AbstractEventLoop) -> None:
        self._config = config
        self._replicas = replicas
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._retention_at = 0.0

    def start(self) -> None:
        """Look now, and again and again."""
        pause = _SLOWEST_S
        try:
            self._replicas.log_dirs.check()
            seen = list(self._replicas.log_dirs.owned.observe_space(self._marks()))
            some_are_full = any(Room.NONE in (before, space.room) for _, before, space in seen)
            for directory, before, space in seen:
                self._see(directory, before, space)
                if space.room is not Room.NONE:
                    pause = min(pause, max(_FASTEST_S, (space.free - space.hard) / _FILLED_PER_SECOND))
                    if some_are_full:  # and partitions may have been moved from there
                        self._replicas.refuse_records(directory, None)
        except KafkaError:
            return  # no directory is left, which has been told
        except Exception:
            log.exception("Looking how full the log directories are failed and is tried again")
        self._timer = self._loop.call_later(pause, self.start)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

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
            _tell(directory, before, space)
        if space.room is Room.NONE:
            # every time, for partitions are created and moved
            self._replicas.refuse_records(
                directory,
                f"log directory {directory} has only {_mib(space.free)} free, and {_mib(space.hard)} are kept for the"
                " broker itself (headrace.disk.hard.free.*): free space, delete topics or lower their retention;"
                " records are taken again as soon as there is room",
            )
            if self._loop.time() >= self._retention_at:
                self._retention_at = self._loop.time() + _RETENTION_S
                self._replicas.apply_retention()


def _tell(directory: Path, before: Room, space: DiskSpace) -> None:
    if space.room is Room.NONE:
        log.error(
            "%s has %s free, less than the hard mark of %s (headrace.disk.hard.free.*): its partitions take no records"
            " from clients until there is more; reads, retention, deletions and internal topics go on",
            directory,
            _mib(space.free),
            _mib(space.hard),
        )
        return
    if before is Room.NONE:
        log.warning("%s has %s free: its partitions take records again", directory, _mib(space.free))
    if space.room is Room.LOW:
        log.warning(
            "%s has %s of %s free, less than the soft mark of %s (headrace.disk.soft.free.*); producers will be refused"
            " under %s: free space, delete topics or lower their retention",
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
