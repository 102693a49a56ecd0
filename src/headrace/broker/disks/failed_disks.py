"""Disks that fail while the broker runs: their partitions go offline, the others are served."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from headrace.errors import ErrorCode, KafkaError
from headrace.replication.partition import Partition
from headrace.replication.replica_manager import ReplicaManager
from headrace.types import TopicPartition
from headrace.wording import count

log = logging.getLogger(__name__)

_LAST_ANSWERS_S: Final = 1.0
"""How long a broker without log directories still says so to its clients, before it ends."""


class FailedDisks:
    """Takes directories and single partitions offline."""

    def __init__(self, loop: asyncio.AbstractEventLoop, replicas: ReplicaManager) -> None:
        self._loop = loop
        self._replicas = replicas
        self.all_failed = asyncio.Event()
        """Set when no log directory is left: the broker has to end, as Kafka's does."""
        self.metadata_directory: Path | None = None
        """The directory that has the cluster's metadata."""
        self.on_resigned: Callable[[TopicPartition], None] = _nobody
        """Called with every partition that goes."""

    def directory_failed(self, directory: Path, why: str) -> None:
        """A log directory has failed. Any thread may call this."""
        self._loop.call_soon_threadsafe(self._take_offline, directory, why)

    def partition_failed(self, partition: Partition, error: KafkaError) -> None:
        """The log of one partition could not be flushed."""
        if self._replicas.give_up(partition, str(error)):
            self.on_resigned(partition.topic_partition)

    def look(self) -> None:
        """Find the partitions whose flush has failed in another thread."""
        for partition, why in self._replicas.failed():
            self.partition_failed(partition, KafkaError(ErrorCode.kafka_storage_error, why))

    def _take_offline(self, directory: Path, why: str) -> None:
        gone = self._replicas.take_offline(directory, why)
        working = self._replicas.log_dirs.directories
        if not working:
            log.critical(
                "Log directory %s has failed (%s), and no other is left: the broker ends. Mend it, then start the"
                " broker again",
                directory,
                why,
            )
            self._loop.call_later(_LAST_ANSWERS_S, self.all_failed.set)
            self._resign(gone)
            return
        log.error(
            "Log directory %s has failed (%s). Offline, with KAFKA_STORAGE_ERROR as the answer: %s. Still served: %s."
            " Mend it, then restart the broker%s",
            directory,
            why,
            count(len(gone), "partition"),
            count(len(working), "other directory", "other directories"),
            "; until then topics and settings cannot be changed, as it has the cluster's metadata"
            if self.metadata_directory == directory
            else "",
        )
        self._resign(gone)

    def _resign(self, gone: Sequence[TopicPartition]) -> None:
        for topic_partition in gone:
            self.on_resigned(topic_partition)


def _nobody(_: TopicPartition) -> None:
    """While the broker starts, nobody relies on a partition yet."""
