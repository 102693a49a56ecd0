"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, TypeAlias

from headrace.errors import ErrorCode, KafkaError
from headrace.replication.partition import Partition
from headrace.replication.replica_manager import ReplicaManager
from headrace.server.context import Answer, Handler, Reply, RequestContext
from headrace.slices import Pace, Steps, in_slices
from headrace.wire.apis import ApiKey
from headrace.wire.encoder import Fields
from headrace.wire.items import made_of
from headrace.wire.record_checks import COMPILED

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
_OFFSET_NOT_AVAILABLE_SINCE: Final = 5
_READ_COMMITTED: Final = 1
_TO_HIGH_WATERMARK: Final = -1
_NOWHERE = (-1, -1, -1)
_LOOKUPS: Final = 2 if COMPILED else 1
"""Threads that look up records by timestamp."""


_PER_SLICE: Final = 256
"""Partitions of a request to handle without a pause."""


class _Duplicate(NamedTuple):
    partition_index: int


class _Asked(NamedTuple):
    """A topic of a request, with its partitions. A partition that is named twice is a `_Duplicate`."""

    topic: str
    partitions: list[Any]


_Found: TypeAlias = tuple[int, ErrorCode, tuple[int, int, int]]
"""A partition, an error, and a result of `find_bound`."""


class _Deletion(NamedTuple):
    """Fields of a partition's reply, and the log start offset to wait for on all replicas; -1 for an error."""

    fields: dict[str, Any]
    partition: Partition | None
    start: int

    @property
    def is_pending(self) -> bool:
        return self.partition is not None and self.partition.low_watermark < self.start


class PartitionOffsetsApi:
    """Handles ListOffsets, OffsetForLeaderEpoch and DeleteRecords."""

    def __init__(self, replicas: ReplicaManager, is_internal: Callable[[str], bool]) -> None:
        self._replicas = replicas
        self._is_internal = is_internal
        self._lookups = asyncio.Semaphore(_LOOKUPS)
        self._looking: dict[tuple[Partition, int, int], asyncio.Task[tuple[int, int, int]]] = {}

    def routes(self) -> dict[ApiKey, Handler]:
        return {
            ApiKey.LIST_OFFSETS: self.list_offsets,
            ApiKey.OFFSET_FOR_LEADER_EPOCH: self.offset_for_leader_epoch,
            ApiKey.DELETE_RECORDS: self.delete_records,
        }

    def list_offsets(self, context: RequestContext, request: Any) -> Answer:
        """Find offsets by timestamp. Negative timestamps mean special offsets, such as the latest one.

        A thread reads records if necessary.
        """
        return in_slices(self._list(context, request))

    def _list(self, context: RequestContext, request: Any) -> Steps[Reply | Awaitable[Reply]]:
        asked, reads_records = yield from _asked(request)
        if reads_records:
            return self._list_with_lookups(context, request, asked)

        def found(topic: _Asked) -> Fields:
            def one(asked: Any) -> Fields:
                return _fields(self._list_one(context, request, topic.topic, asked))

            return {"name": topic.topic, "partitions": made_of(topic.partitions, one)}

        return {"topics": made_of(asked, found)}

    async def _list_with_lookups(self, context: RequestContext, request: Any, asked_topics: list[_Asked]) -> Reply:
        pace = Pace()
        topics = []
        for topic, partitions in asked_topics:
            # One by one, so that other requests get the thread between two partitions.
            found: list[_Found] = []
            for asked in partitions:
                if isinstance(asked, _Duplicate) or not _reads_records(asked.timestamp):
                    found.append(self._list_one(context, request, topic, asked))
                else:
                    found.append(await self._look_up_one(context, request, topic, asked))
                await pace.rest()
            topics.append({"name": topic, "partitions": made_of(found, _fields)})
            await pace.rest()
        return {"topics": topics}

    def _partition(self, context: RequestContext, topic: str, asked: Any) -> Partition:
        if asked.timestamp < 0 and context.api_version < _SINCE_VERSION.get(asked.timestamp, context.api_version + 1):
            raise KafkaError(ErrorCode.unsupported_version)
        partition = self._replicas.get(topic, asked.partition_index)
        partition.check_leader_epoch(getattr(asked, "current_leader_epoch", -1))
        return partition

    def _list_one(self, context: RequestContext, request: Any, topic: str, asked: Any) -> _Found:
        if isinstance(asked, _Duplicate):
            return asked.partition_index, ErrorCode.invalid_request, _NOWHERE
        try:
            partition = self._partition(context, topic, asked)
            found = find_bound(
                partition,
                asked.timestamp,
                read_committed=_is_read_committed(request),
                is_follower=request.replica_id >= 0,
            )
        except KafkaError as failure:
            return self._offset_missing(context, asked, failure)
        return asked.partition_index, ErrorCode.none, found

    async def _look_up_one(self, context: RequestContext, request: Any, topic: str, asked: Any) -> _Found:
        try:
            partition = self._partition(context, topic, asked)
            end = partition.visible_end(read_committed=_is_read_committed(request))
            found = await self._looked_up(partition, asked.timestamp)
            if not 0 <= found[1] < end:
                _check_end_is_known(partition)
                found = _NOWHERE
        except KafkaError as failure:
            return self._offset_missing(context, asked, failure)
        return asked.partition_index, ErrorCode.none, found

    def _offset_missing(self, context: RequestContext, asked: Any, failure: KafkaError) -> _Found:
        self._replicas.report_damage(failure)
        code = failure.code
        if code is ErrorCode.offset_not_available and context.api_version < _OFFSET_NOT_AVAILABLE_SINCE:
            code = ErrorCode.leader_not_available  # older clients retry after this error
        return asked.partition_index, code, _NOWHERE

    async def _looked_up(self, partition: Partition, timestamp: int) -> tuple[int, int, int]:
        """Call `find_by_timestamp` in a thread. Equal concurrent lookups share one call."""
        key = partition, timestamp, partition.log_end_offset
        looking = self._looking.get(key)
        if looking is None:
            looking = asyncio.create_task(self._look_up(partition, timestamp))
            self._looking[key] = looking
            looking.add_done_callback(lambda done: (self._looking.pop(key), done.cancelled() or done.exception()))
        return await asyncio.shield(looking)

    async def _look_up(self, partition: Partition, timestamp: int) -> tuple[int, int, int]:
        async with self._lookups:
            work = asyncio.get_running_loop().run_in_executor(None, find_by_timestamp, partition, timestamp)
            try:
                return await asyncio.shield(work)
            except asyncio.CancelledError:
                await asyncio.wait([work])
                raise

    def offset_for_leader_epoch(self, _: RequestContext, request: Any) -> Reply:
        """Return the end offsets of leader epochs. Clients and followers use them to find where logs diverge."""

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
        """Raise log start offsets, and checkpoint them. Wait until all live replicas have raised theirs."""
        began = asyncio.get_running_loop().time()
        pace = Pace()
        topics: list[Fields] = []
        waits: list[_Deletion] = []
        for topic in request.topics:
            partitions = []
            for asked in topic.partitions:
                deletion = self._delete_one(topic.name, asked)
                partitions.append(deletion.fields)
                if deletion.is_pending:
                    waits.append(deletion)
                await pace.rest()
            topics.append({"name": topic.name, "partitions": partitions})
        await asyncio.to_thread(self._replicas.checkpoint)
        if waits:
            left_s = request.timeout.total_seconds() - (asyncio.get_running_loop().time() - began)
            await asyncio.gather(*(_all_deleted(deletion, left_s) for deletion in waits))
        return {"topics": topics}

    def _delete_one(self, topic: str, asked: Any) -> _Deletion:
        error = ErrorCode.none
        low_watermark = start = -1
        partition: Partition | None = None
        try:
            if self._is_internal(topic):
                raise KafkaError(
                    ErrorCode.invalid_topic_exception, f"records of the internal topic {topic} cannot be deleted"
                )
            partition = self._replicas.get(topic, asked.partition_index)
            target = partition.high_watermark if asked.offset == _TO_HIGH_WATERMARK else asked.offset
            partition.delete_records(target)
            low_watermark = partition.low_watermark
            start = target
        except KafkaError as failure:
            error = failure.code
        fields = {"partition_index": asked.partition_index, "low_watermark": low_watermark, "error_code": error}
        return _Deletion(fields, partition, start)


async def _all_deleted(deletion: _Deletion, timeout_s: float) -> None:
    """Complete the reply when all live replicas have deleted the records."""
    partition, fields = deletion.partition, deletion.fields
    assert partition is not None  # it is pending
    if partition.followers is not None and partition.low_watermark < deletion.start:
        error = await partition.followers.deleted(deletion.start, timeout_s)
        if error is not None:
            fields["error_code"] = error.code
            if error.code is not ErrorCode.request_timed_out:
                fields["low_watermark"] = -1
            return
    fields["low_watermark"] = partition.low_watermark


def _asked(request: Any) -> Steps[tuple[list[_Asked], bool]]:
    """Return the topics of a request, and True if the reply requires reading records."""
    times: Counter[tuple[str, int]] = Counter()
    reads_records = False
    left = _PER_SLICE
    for topic in request.topics:
        for start in range(0, len(topic.partitions) or 1, _PER_SLICE):
            some = topic.partitions[start : start + _PER_SLICE]
            times.update((topic.name, item.partition_index) for item in some)
            reads_records = reads_records or any(_reads_records(item.timestamp) for item in some)
            left -= len(some) + 1
            if left < 0:
                left = _PER_SLICE
                yield
    found: list[_Asked] = []
    for topic in request.topics:
        partitions: dict[int, Any] = {}
        if left < 0:
            left = _PER_SLICE
            yield
        for partition in topic.partitions:
            index = partition.partition_index
            partitions[index] = partition if times[topic.name, index] == 1 else _Duplicate(index)
            left -= 1
            if left < 0:
                left = _PER_SLICE
                yield
        found.append(_Asked(topic.name, list(partitions.values())))
        left -= 1
    return found, reads_records


def _fields(found: _Found) -> Fields:
    index, error, (timestamp, offset, leader_epoch) = found
    return {
        "partition_index": index,
        "error_code": error,
        "timestamp": timestamp,
        "offset": offset,
        "leader_epoch": leader_epoch,
    }


def _is_read_committed(request: Any) -> bool:
    return bool(getattr(request, "isolation_level", 0) == _READ_COMMITTED)


def _reads_records(timestamp: int) -> bool:
    return timestamp >= 0 or timestamp == MAX_TIMESTAMP


def find_bound(
    partition: Partition, timestamp: int, *, read_committed: bool, is_follower: bool = False
) -> tuple[int, int, int]:
    """Return `(timestamp in ms, offset, leader epoch)`, -1 where unknown, as in Kafka without tiered storage.

    `timestamp` is a special value that does not require reading records. Raises KafkaError(offset_not_available) for
    LATEST if a new leader does not know yet which records are committed (KIP-207).
    """
    log = partition.log
    if timestamp == LATEST:
        if is_follower:
            return -1, partition.log_end_offset, partition.leader_epoch
        _check_end_is_known(partition)
        return -1, partition.visible_end(read_committed=read_committed), partition.leader_epoch
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        start = log.log_start_offset
        epoch = log.leader_epochs.epoch_for(start)
        # The next record in an empty log will have the current epoch.
        return -1, start, partition.leader_epoch if epoch < 0 and start == log.log_end_offset else epoch
    return _NOWHERE


def _check_end_is_known(partition: Partition) -> None:
    """Raise KafkaError(offset_not_available) until the high watermark has reached the start of the leader epoch."""
    if partition.followers is not None and partition.followers.state.epoch_start > partition.high_watermark:
        raise KafkaError(
            ErrorCode.offset_not_available,
            f"the followers of {partition.topic_partition} have not fetched from its new leader yet: try again",
        )


def find_by_timestamp(partition: Partition, timestamp: int) -> tuple[int, int, int]:
    """Find the first record at or after `timestamp`, or the record with the largest one for MAX_TIMESTAMP.

    The result is as in `find_bound`.

    Reads records, so call it in a thread.
    """
    log = partition.log
    if timestamp == MAX_TIMESTAMP:
        newest = log.reader.max_timestamp()
        return _NOWHERE if newest is None else (*newest, log.leader_epochs.epoch_for(newest[1]))
    return log.reader.offset_for_timestamp(timestamp) or _NOWHERE
