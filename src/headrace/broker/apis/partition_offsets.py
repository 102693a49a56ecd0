"""Where a partition begins and ends: ListOffsets, OffsetForLeaderEpoch, DeleteRecords."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from headrace.broker.context import Handler, Reply, RequestContext
from headrace.errors import ErrorCode, KafkaError
from headrace.replication.partition import Partition
from headrace.replication.replica_manager import ReplicaManager
from headrace.slices import Pace
from headrace.wire.apis import ApiKey
from headrace.wire.encoder import Fields
from headrace.wire.items import made_of

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6
_SINCE_VERSION: Final = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
_READ_COMMITTED: Final = 1
_NOWHERE = (-1, -1, -1)


class PartitionOffsetsApi:
    """Handlers of the questions and commands about a partition's bounds."""

    def __init__(self, replicas: ReplicaManager, is_internal: Callable[[str], bool]) -> None:
        self._replicas = replicas
        self._is_internal = is_internal

    def routes(self) -> dict[ApiKey, Handler]:
        return {
            ApiKey.LIST_OFFSETS: self.list_offsets,
            ApiKey.OFFSET_FOR_LEADER_EPOCH: self.offset_for_leader_epoch,
            ApiKey.DELETE_RECORDS: self.delete_records,
        }

    def list_offsets(self, context: RequestContext, request: Any) -> Reply:
        """Offsets by timestamp, and the special ones that negative timestamps ask for."""
        read_committed = getattr(request, "isolation_level", 0) == _READ_COMMITTED
        times = Counter((topic.name, asked.partition_index) for topic in request.topics for asked in topic.partitions)
        return {
            "topics": [
                {
                    "name": topic.name,
                    "partitions": [
                        self._list_one(topic.name, asked, context.api_version, read_committed=read_committed)
                        if times[topic.name, index] == 1
                        else _offset_found(index, ErrorCode.invalid_request, _NOWHERE)
                        for index, asked in {each.partition_index: each for each in topic.partitions}.items()
                    ],
                }
                for topic in request.topics
            ]
        }

    def _list_one(self, topic: str, asked: Any, version: int, *, read_committed: bool) -> Fields:
        error = ErrorCode.none
        found = _NOWHERE
        try:
            if asked.timestamp < 0 and version < _SINCE_VERSION.get(asked.timestamp, version + 1):
                raise KafkaError(ErrorCode.unsupported_version)
            partition = self._replicas.get(topic, asked.partition_index)
            partition.check_leader_epoch(getattr(asked, "current_leader_epoch", -1))
            found = find_offset(partition, asked.timestamp, read_committed=read_committed)
        except KafkaError as failure:
            self._replicas.tell_damage(failure)
            error = failure.code
        return _offset_found(asked.partition_index, error, found)

    def offset_for_leader_epoch(self, _: RequestContext, request: Any) -> Reply:
        """Where the log of a leader epoch ends, for a client that looks for the point of divergence."""

        def ends(topic: Any) -> Fields:
            return {
                "topic": topic.topic,
                "partitions": made_of(topic.partitions, lambda asked: self._epoch_end(topic.topic, asked)),
            }

        return {"topics": made_of(request.topics, ends)}

    def _epoch_end(self, topic: str, asked: Any) -> Fields:
        error = ErrorCode.none
        leader_epoch = end_offset = -1
        try:
            partition = self._replicas.get(topic, asked.partition)
            partition.check_leader_epoch(asked.current_leader_epoch)
            leader_epoch, end_offset = partition.end_offset_for_epoch(asked.leader_epoch)
        except KafkaError as failure:
            error = failure.code
        return {
            "error_code": error,
            "partition": asked.partition,
            "leader_epoch": leader_epoch,
            "end_offset": end_offset,
        }

    async def delete_records(self, _: RequestContext, request: Any) -> Reply:
        """Move log start offsets up; the new ones are on disk before the answer."""
        pace = Pace()
        topics = []
        for topic in request.topics:
            partitions = []
            for asked in topic.partitions:
                partitions.append(self._delete_one(topic.name, asked))
                await pace.rest()
            topics.append({"name": topic.name, "partitions": partitions})
        await asyncio.to_thread(self._replicas.checkpoint)
        return {"topics": topics}

    def _delete_one(self, topic: str, asked: Any) -> Fields:
        error = ErrorCode.none
        low_watermark = -1
        try:
            if self._is_internal(topic):
                raise KafkaError(ErrorCode.invalid_topic_exception, f"records of {topic} cannot be deleted by hand")
            low_watermark = self._replicas.get(topic, asked.partition_index).delete_records(asked.offset)
        except KafkaError as failure:
            error = failure.code
        return {"partition_index": asked.partition_index, "low_watermark": low_watermark, "error_code": error}


def _offset_found(index: int, error: ErrorCode, found: tuple[int, int, int]) -> Fields:
    timestamp, offset, leader_epoch = found
    return {
        "partition_index": index,
        "error_code": error,
        "timestamp": timestamp,
        "offset": offset,
        "leader_epoch": leader_epoch,
    }


def find_offset(partition: Partition, timestamp: int, *, read_committed: bool) -> tuple[int, int, int]:
    """`(timestamp in ms, offset, leader epoch)`, each -1 where there is none, as Kafka without tiered storage answers.

    `timestamp` is in ms or one of the special values.
    """
    log = partition.log
    end = partition.visible_end(read_committed=read_committed)
    if timestamp == LATEST:
        return -1, end, partition.leader_epoch
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        start = log.log_start_offset
        epoch = log.leader_epochs.epoch_for(start)
        # What will be written at the start of an empty log is of the present epoch.
        return -1, start, partition.leader_epoch if epoch < 0 and start == log.log_end_offset else epoch
    if timestamp == MAX_TIMESTAMP:
        newest = log.max_timestamp()
        return _NOWHERE if newest is None else (*newest, log.leader_epochs.epoch_for(newest[1]))
    if timestamp < 0:
        return _NOWHERE
    found = log.offset_for_timestamp(timestamp)
    return _NOWHERE if found is None or found[1] >= end else found
