"""The transaction coordinator's log, and the partitions that markers are written to."""

import asyncio
from collections.abc import Callable
from typing import Final, TypeAlias

from headrace.broker.coordinators.offsets_topic import OffsetsTopicLog
from headrace.clock import now_ms
from headrace.cluster.topic_names import GROUP_OFFSETS
from headrace.coordinator.transactions.machine import WriteMarkers
from headrace.errors import ErrorCode, KafkaError
from headrace.replication.partition import Partition
from headrace.replication.purgatory import Purgatory
from headrace.replication.replica_manager import ReplicaManager
from headrace.types import TopicPartition

_NOT_HERE: Final = frozenset({ErrorCode.unknown_topic_or_partition, ErrorCode.not_leader_or_follower})


class StateTopicLog(OffsetsTopicLog):
    """A partition of `__transaction_state`."""

    def __init__(self, partition: Partition, purgatory: Purgatory) -> None:
        super().__init__(partition)
        self._purgatory = purgatory

    @property
    def coordinator_epoch(self) -> int:
        """The leader epoch, which markers contain."""
        return self._partition.leader_epoch

    def committed(self) -> asyncio.Future[KafkaError | None] | None:
        """Return a future that is done when all appended records are committed; None if they already are."""
        partition = self._partition
        end_offset = partition.log_end_offset
        if partition.high_watermark >= end_offset:
            return None
        return self._purgatory.committed(partition, end_offset)


WriteElsewhere: TypeAlias = Callable[[TopicPartition, WriteMarkers, int], "asyncio.Future[KafkaError | None]"]
"""Sends a marker to the broker that leads the partition, with the coordinator epoch."""


class PartitionMarkers:
    """Writes markers to partitions. `exists` returns True if the cluster has a partition."""

    def __init__(
        self,
        replicas: ReplicaManager,
        purgatory: Purgatory,
        *,
        exists: Callable[[TopicPartition], bool],
        on_offsets: Callable[[int, int, bool], None],
        elsewhere: WriteElsewhere | None = None,
    ) -> None:
        """After writing to `__consumer_offsets`, call `on_offsets` with partition, producer id, and True for a commit.

        Without `elsewhere`, markers for partitions that this broker does not lead are rejected.
        """
        self._elsewhere = elsewhere
        self._replicas = replicas
        self._purgatory = purgatory
        self._exists = exists
        self._on_offsets = on_offsets

    def write(
        self, partition: TopicPartition, markers: WriteMarkers, coordinator_epoch: int
    ) -> asyncio.Future[KafkaError | None] | None:
        """Append the marker here, or send it to the partition's leader (see `MarkerWriter`). Raises KafkaError."""
        try:
            found = self._replicas.get(*partition)
        except KafkaError as error:
            if error.code not in _NOT_HERE:
                raise
            if self._exists(partition):
                if self._elsewhere is not None:
                    return self._elsewhere(partition, markers, coordinator_epoch)
                raise KafkaError(ErrorCode.not_leader_or_follower, str(error)) from error
            raise
        producer_id, epoch = markers.producer
        end_offset = found.append_marker(
            producer_id,
            epoch,
            commit=markers.commit,
            coordinator_epoch=coordinator_epoch,
            now_ms=now_ms(),
            transaction_version=markers.client_version,
        )
        if partition.topic == GROUP_OFFSETS:
            self._on_offsets(partition.partition, producer_id, markers.commit)
        if found.high_watermark >= end_offset:
            return None
        return self._purgatory.committed(found, end_offset)
