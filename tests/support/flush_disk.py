"""A disk whose flushes tests hold up or let fail; the fixture `disk` puts it in the place of fdatasync."""

import os
import threading

from headrace.replication.partition import Partition


class Disk:
    """Stands in for fdatasync: counts, waits while it is told to, and fails with the error it is given."""

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
