"""Read the log of a partition for a consumer or a follower."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple
from uuid import UUID

from headrace.broker.apis.fetch_answers import Answered
from headrace.broker.fetch_session import FetchPartition
from headrace.errors import ErrorCode, KafkaError
from headrace.replication.partition import Partition
from headrace.replication.replica_manager import ReplicaManager

_REPLICA_STATE: Final = 15


class Follower(NamedTuple):
    """The broker that sends a fetch; epoch -1 if it does not say it (KIP-903)."""

    broker_id: int
    broker_epoch: int


def follower_of(request: Any, version: int) -> Follower | None:
    """Return the broker that sends a request; None for a consumer."""
    if version < _REPLICA_STATE:
        broker_id, broker_epoch = request.replica_id, -1
    else:
        broker_id, broker_epoch = request.replica_state.replica_id, request.replica_state.replica_epoch
    return Follower(broker_id, broker_epoch) if broker_id >= 0 else None


def _divergence(partition: Partition, wanted: FetchPartition) -> tuple[int, int] | None:
    """Return the last epoch and its end offset that both logs have, if the client's has diverged (KIP-595).

    Raises KafkaError(offset_out_of_range) for an epoch that this log does not know.
    """
    if wanted.last_fetched_epoch < 0:
        return None
    epoch, end = partition.end_offset_for_epoch(wanted.last_fetched_epoch)
    if epoch < 0 or wanted.fetch_offset < partition.log_start_offset:
        raise KafkaError(ErrorCode.offset_out_of_range)
    return (epoch, end) if epoch < wanted.last_fetched_epoch or end < wanted.fetch_offset else None


class FetchReads:
    """Reads for Fetch requests."""

    def __init__(self, replicas: ReplicaManager, topic_name: Callable[[UUID | None], str | None]) -> None:
        self._replicas = replicas
        self._topic_name = topic_name

    def read(self, wanted: FetchPartition, max_bytes: int, *, read_committed: bool, min_one_batch: bool) -> Answered:
        """Return the available data of a partition, or the error."""
        partition: Partition | None = None
        try:
            partition = self._partition(wanted)
            diverging = _divergence(partition, wanted)
            if diverging is not None:
                return wanted, ErrorCode.none, partition, None, diverging
            part = partition.read(
                wanted.fetch_offset,
                min(max_bytes, wanted.max_bytes),
                read_committed=read_committed,
                min_one_batch=min_one_batch,
            )
        except KafkaError as error:
            self._replicas.report_damage(error)
            return wanted, error.code, partition, None, None
        return wanted, ErrorCode.none, partition, part, None

    def read_as_follower(
        self, wanted: FetchPartition, max_bytes: int, follower: Follower, *, is_new: bool, min_one_batch: bool
    ) -> Answered:
        """Like `read`, for a follower. A new request says where its log ends, which may raise the high watermark."""
        partition: Partition | None = None
        try:
            partition = self._partition(wanted)
            if isinstance(wanted.topic, UUID) and wanted.topic != partition.topic_id:
                raise KafkaError(ErrorCode.inconsistent_topic_id)
            diverging = _divergence(partition, wanted)
            if diverging is not None:
                return wanted, ErrorCode.none, partition, None, diverging
            part = partition.read_as_follower(
                follower.broker_id,
                wanted.fetch_offset,
                min(max_bytes, wanted.max_bytes),
                min_one_batch=min_one_batch,
            )
            if is_new:
                partition.fetched_by(
                    follower.broker_id, wanted.fetch_offset, wanted.log_start_offset, follower.broker_epoch
                )
        except KafkaError as error:
            self._replicas.report_damage(error)
            return wanted, error.code, partition, None, None
        return wanted, ErrorCode.none, partition, part, None

    def _partition(self, wanted: FetchPartition) -> Partition:
        name = wanted.topic if isinstance(wanted.topic, str) else self._topic_name(wanted.topic)
        if name is None:
            raise KafkaError(ErrorCode.unknown_topic_id)
        partition = self._replicas.get(name, wanted.index)
        partition.check_leader_epoch(wanted.current_leader_epoch)
        return partition
