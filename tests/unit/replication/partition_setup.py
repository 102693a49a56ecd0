"""A partition that leads, over a real log."""

from pathlib import Path
from uuid import UUID

from headrace.replication.partition import Partition
from headrace.replication.purgatory import Purgatory
from headrace.replication.replica_manager import ReplicaManager
from headrace.storage.dirs.log_dirs import LogDirs
from headrace.storage.log.config import LogConfig
from headrace.types import TopicPartition

NOW = 1_700_000_000_000
TOPIC_ID = UUID(int=5)
TP = TopicPartition("t", 0)
_DEFAULTS = LogConfig()


class Setup:
    """A partition over a real log."""

    def __init__(self, directory: Path, config: LogConfig = _DEFAULTS, purgatory: Purgatory | None = None) -> None:
        self.directory = directory
        self.config = config
        self.purgatory = purgatory
        self.open()

    def open(self, leader_epoch: int = 0) -> Partition:
        self.replicas = ReplicaManager(
            LogDirs.open([self.directory], broker_id=0), lambda _: self.config, self.purgatory
        )
        self.partition = self.replicas.become_leader(TP, TOPIC_ID, leader_epoch)
        return self.partition

    def reopen(self, leader_epoch: int = 0) -> Partition:
        self.replicas.close()
        return self.open(leader_epoch)

    def configure(self, **changes: object) -> Partition:
        self.config = LogConfig(**changes)  # type: ignore[arg-type]
        list(self.replicas.reconfigure({"t"}))
        return self.partition
