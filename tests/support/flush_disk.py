"""A disk whose flushes tests block or fail; the fixture `disk` replaces fdatasync with it."""

import os
import threading

from headrace.replication.partition import Partition


class Disk:
    """Counts syncs, blocks those of the files in `stuck` until `free` is set, and fails with `error`."""

    def __init__(self) -> None:
        self.syncs = 0
        self.error: int | None = None
        self.stuck: set[int] = set()
        self.begun = threading.Event()
        self.free = threading.Event()

    def fdatasync(self, descriptor: int) -> None:
        self.syncs += 1
        self.begun.set()
        if os.fstat(descriptor).st_ino in self.stuck:
            assert self.free.wait(10)
        if self.error is not None:
            raise OSError(self.error, os.strerror(self.error))

    def hold(self, partition: Partition) -> None:
        self.stuck.add(partition.log.segments.active.path.stat().st_ino)
