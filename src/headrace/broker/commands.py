"""Execute a controller's commands on this broker, in order: logs are opened before clients learn of partitions."""

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import Executor

from headrace.cluster.commands import Command, LeaderAndIsr, StopReplica
from headrace.cluster.metadata_cache import MetadataCache
from headrace.errors import KafkaError
from headrace.replication.replica_manager import ReplicaManager
from headrace.types import PartitionState, TopicPartition

log = logging.getLogger(__name__)


class Commands:
    """The broker's end of the controller's channel."""

    def __init__(self, node_id: int, replicas: ReplicaManager, cache: MetadataCache, executor: Executor) -> None:
        self._node_id = node_id
        self._replicas = replicas
        self._cache = cache
        self._executor = executor

    async def deliver(self, broker_id: int, command: Command) -> None:
        """Execute a command to this broker."""
        assert broker_id == self._node_id, f"a command for broker {broker_id}"
        if isinstance(command, LeaderAndIsr):
            # It waits for the disk: use a thread.
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._executor, self._lead, command.partitions)
        elif isinstance(command, StopReplica):
            # Withdraw the partitions at once; deleting the files takes longer and uses a thread.
            withdrawn = self._replicas.withdraw(command.partitions)
            await asyncio.get_running_loop().run_in_executor(self._executor, self._delete, withdrawn)
        else:
            await self._cache.apply(command)

    def _lead(self, states: Sequence[PartitionState]) -> None:
        for state in states:
            if state.leader != self._node_id:
                continue
            topic_partition = TopicPartition(state.topic, state.partition)
            try:
                self._replicas.become_leader(topic_partition, state.topic_id, state.leader_epoch, is_new=state.is_new)
            except KafkaError as error:
                log.error("%s is offline: %s", topic_partition, error)
        self._sync_names()

    def _delete(self, partitions: Sequence[TopicPartition]) -> None:
        self._replicas.delete_files(partitions)
        self._sync_names()

    def _sync_names(self) -> None:
        try:
            self._replicas.log_dirs.sync_names()
        except KafkaError as error:
            log.error(
                "A power failure may undo the latest changes, as log directories could not be flushed: %s",
                error,
            )
