"""Handle disks that fail while the broker is running: take their partitions offline."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.errors import KafkaError
from headrace.replication.partition import Partition
from headrace.replication.replica_manager import ReplicaManager
from headrace.types import TopicPartition
from headrace.wording import count

if TYPE_CHECKING:
    from headrace.replication.following.partition import FollowedPartition

log = logging.getLogger(__name__)

_LAST_ANSWERS_S: Final = 1.0
"""Time between the failure of the last directory and the stop of the broker, so that clients get an error."""


class FailedDisks:
    """Takes directories and single partitions offline."""

    def __init__(self, loop: asyncio.AbstractEventLoop, replicas: ReplicaManager) -> None:
        self._loop = loop
        self._replicas = replicas
        self.all_failed = asyncio.Event()
        """Set when the last log directory has failed, which stops the broker, as in Kafka."""
        self.metadata_directory: Path | None = None
        """The log directory with the cluster's metadata; None in a cluster with ZooKeeper."""
        self.on_resigned: Callable[[TopicPartition], None] = _ignore
        """Called with every partition that goes offline."""
        self.on_failure: Callable[[], None] = lambda: None
        """Called after partitions have gone offline, or a directory other than the last one has failed."""

    def directory_failed(self, directory: Path, reason: str) -> None:
        """Take a directory offline. Thread-safe."""
        self._loop.call_soon_threadsafe(self._take_offline, directory, reason)

    def partition_failed(self, partition: Partition, error: KafkaError) -> None:
        """Take offline a partition whose log could not be flushed."""
        self._give_up([(partition, str(error))])

    def check(self) -> None:
        """Take offline the partitions whose flush has failed in another thread."""
        self._give_up(self._replicas.failed())

    def _give_up(self, failed: "Iterable[tuple[Partition | FollowedPartition, str]]") -> None:
        give_up = self._replicas.give_up
        offline = [partition.topic_partition for partition, reason in failed if give_up(partition, reason)]
        self._resign(offline)
        if offline:
            self.on_failure()

    def _take_offline(self, directory: Path, reason: str) -> None:
        offline = self._replicas.take_offline(directory, reason)
        working = self._replicas.log_dirs.directories
        if not working:
            log.critical(
                "Log directory %s has failed (%s), and no other is left: the broker stops. Repair it, then start the"
                " broker again",
                directory,
                reason,
            )
            self._loop.call_later(_LAST_ANSWERS_S, self.all_failed.set)
            self._resign(offline)
            return
        log.error(
            "Log directory %s has failed (%s): %s offline (KAFKA_STORAGE_ERROR). Still in use: %s. Repair the failed"
            " one, then restart the broker%s",
            directory,
            reason,
            count(len(offline), "partition"),
            count(len(working), "other directory", "other directories"),
            "; until then topics and settings cannot be changed, because it contains the cluster's metadata"
            if self.metadata_directory == directory
            else "",
        )
        self._resign(offline)
        self.on_failure()

    def _resign(self, offline: Sequence[TopicPartition]) -> None:
        for topic_partition in offline:
            self.on_resigned(topic_partition)


def _ignore(_: TopicPartition) -> None:
    """Do nothing: no coordinator uses the partition during the start."""
