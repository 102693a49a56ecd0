"""Produce: the hot path in. One validated batch a partition, one write each, an answer encoded by hand.

Layout of the answer: https://kafka.apache.org/protocol#The_Messages_Produce
"""

import asyncio
import struct
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from headrace.broker.disks.slow_disk import STALL_NS, SlowDisk
from headrace.broker.large_batches import Large, LargeBatches, Prepared
from headrace.broker.refusals import RefusalLog
from headrace.cluster.topic_names import is_internal
from headrace.errors import ErrorCode, KafkaError
from headrace.replication.batch_rules import PreparedBatch, RecordsRefusedError
from headrace.replication.group_commit import GroupCommit
from headrace.replication.partition import ALL_REPLICAS, AppendResult, NoRoomError, Partition
from headrace.replication.replica_manager import OfflineError, ReplicaManager
from headrace.server.context import NO_REPLY, RawReply, Reply, RequestContext
from headrace.server.dispatch import Replies
from headrace.server.frames import InvalidRequestError
from headrace.slices import Pace
from headrace.storage.log.config import LogConfig
from headrace.types import new_tuple
from headrace.wire.compression import Codec
from headrace.wire.encoder import put_count, put_string

ADMIN_CLIENT_ID: Final = "__admin_client"
"""The client id that Kafka lets write to internal topics."""
_FLEXIBLE: Final = 9
_TOPIC_IDS: Final = 13
_ZSTD: Final = 7
_LOG_START_OFFSET: Final = 5
_RECORD_ERRORS: Final = 8
_ATTRIBUTES: Final = struct.Struct(">h")
_ATTRIBUTES_POSITION: Final = 21
_INT32 = struct.Struct(">i")
_PARTITION = struct.Struct(">ihqqq")
_PARTITION_FLEXIBLE = struct.Struct(">ihqqqBBB")
_PARTITION_V3 = struct.Struct(">ihqq")


class _Outcome(NamedTuple):
    """What became of one partition's batch; times in ms, offsets and times -1 where there are none."""

    partition: int
    error: int
    base_offset: int = -1
    log_append_time: int = -1
    log_start_offset: int = -1
    message: str | None = None
    record_errors: Sequence[tuple[int, str]] = ()


_Results: TypeAlias = list[tuple[bytes, list[_Outcome]]]
"""Of one request: each topic as the answer names it, and what became of its batches."""


_Waiting: TypeAlias = tuple[bytes | PreparedBatch, int, list[_Outcome], int, int, RequestContext]
"""A batch that waits for its partition: records, acks, where and at which place what becomes of it is to be noted,
partition, and the request it is of."""
_PENDING: Final = _Outcome(-1, 0)
_AT_ONCE: Final = 64
"""Batches for one partition that are appended without a pause."""
_FLUSHED_AT_ONCE: Final = 64

_refusals: Final = RefusalLog()


class ProduceApi:
    """Handler of Produce, of one request and of several that have come together."""

    def __init__(
        self, replicas: ReplicaManager, topic_name: Callable[[UUID | None], str | None], group_commit: GroupCommit
    ) -> None:
        self._replicas = replicas
        self._group_commit = group_commit
        self._slow_disk = SlowDisk()
        self._large_batches = LargeBatches(self._config_of)
        self._topic_name = topic_name
        self._many = asyncio.Lock()
        """Requests of many batches take turns, so that together they take no more time than one."""

    def produce(self, context: RequestContext, request: Any) -> Reply | Awaitable[Reply]:
        """Append what the request brings. acks=1 and acks=all are the same while a partition has one replica."""
        replies = self.produce_run([(context, request)])
        return _only(replies) if isinstance(replies, list) else _only_later(replies)

    def produce_run(self, requests: Sequence[tuple[RequestContext, Any]]) -> Replies | Awaitable[Replies]:
        """Append what requests bring that a client has sent one behind the other, with one write for each partition.

        Their replies, in order; an error instead of one ends the connection and is the last.
        """
        large, prepared = self._large_batches.found_in(requests)
        return self._once_checked(requests, large, prepared) if large else self._append_run(requests, prepared)

    async def _once_checked(
        self, requests: Sequence[tuple[RequestContext, Any]], large: Sequence[Large], prepared: Prepared
    ) -> Replies:
        replies = self._append_run(requests, {**prepared, **await self._large_batches.prepare(large)})
        return replies if isinstance(replies, list) else await replies

    async def produce_many(self, requests: Sequence[tuple[RequestContext, Any]]) -> Replies:
        """`produce_run` for requests with many batches: other clients are served in between."""
        large, prepared = self._large_batches.found_in(requests)
        if large:
            prepared = {**prepared, **await self._large_batches.prepare(large)}
        return await self._append_many(requests, prepared)

    def _config_of(self, context: RequestContext, topic: Any) -> LogConfig | None:
        """The settings of a topic in a request; None where this broker has not the first of its partitions."""
        name = topic.name if context.api_version < _TOPIC_IDS else self._topic_name(topic.topic_id)
        if name is None or not topic.partition_data:
            return None
        try:
            return self._replicas.get(name, topic.partition_data[0].index).log.config
        except KafkaError:
            return None

    def _append_run(
        self, requests: Sequence[tuple[RequestContext, Any]], prepared: Prepared
    ) -> Replies | Awaitable[Replies]:
        """`produce_run`, with the batches that were prepared in place of what they were."""
        began_ns = time.time_ns()
        now_ms = began_ns // 1_000_000
        results: list[_Results] = []
        waiting: dict[Partition, list[_Waiting]] = {}
        for number, (context, request) in enumerate(requests):
            results.append(self._sort(number, context, request, waiting, prepared))
            if request.acks == 0:
                self._append(waiting, now_ms)
                if _any_failed(results[-1]):
                    requests = requests[: len(results)]  # it ends the connection: what comes after it never came
                    break
        self._append(waiting, now_ms)
        replies = self._replies_later(requests, results, self._is_slow(began_ns))
        return _replies(requests, results) if replies is None else replies

    async def _append_many(self, requests: Sequence[tuple[RequestContext, Any]], prepared: Prepared) -> Replies:
        pace = Pace()
        results: list[_Results] = []
        waiting: dict[Partition, list[_Waiting]] = {}
        async with self._many:
            for number, (context, request) in enumerate(requests):
                results.append(self._sort(number, context, request, waiting, prepared))
                await pace.rest()
                if request.acks == 0:
                    await self._append_in_turns(waiting, pace)
                    if _any_failed(results[-1]):
                        requests = requests[: len(results)]
                        break
            await self._append_in_turns(waiting, pace)
            replies = self._replies_later(requests, results, self._is_slow(time.time_ns()))
        return _replies(requests, results) if replies is None else await replies

    async def _append_in_turns(self, waiting: dict[Partition, list[_Waiting]], pace: Pace) -> None:
        for partition, batches in waiting.items():
            topic, index = partition.topic_partition
            for start in range(0, len(batches), _AT_ONCE):
                some = batches[start : start + _AT_ONCE]
                began_ns = time.time_ns()
                try:
                    if self._replicas.get(topic, index) is not partition:
                        raise KafkaError(ErrorCode.unknown_topic_or_partition, f"{topic}-{index} was deleted meanwhile")
                except KafkaError as error:
                    for _, _, outcomes, place, _, context in some:
                        outcomes[place] = _refused(context, topic, index, error)
                else:
                    self._append({partition: some}, began_ns // 1_000_000)
                self._is_slow(began_ns)
                await pace.rest()
        waiting.clear()

    def _is_slow(self, began_ns: int) -> bool:
        """Decide whether producers wait for the disk, after writes that began then."""
        ended_ns = time.time_ns()
        if ended_ns - began_ns > STALL_NS:
            self._slow_disk.stalled(ended_ns, ended_ns - began_ns)
        return ended_ns < self._slow_disk.until_ns

    def _replies_later(
        self, requests: Sequence[tuple[RequestContext, Any]], results: list[_Results], is_slow: bool
    ) -> Awaitable[Replies] | None:
        """The replies once the batches are on the disk; None where they need not be."""
        if is_slow or (self._group_commit.partitions and any(request.acks for _, request in requests)):
            return self._once_flushed(requests, results, is_slow=is_slow)
        return None

    def _append(self, waiting: dict[Partition, list[_Waiting]], now_ms: int) -> None:
        """Append what waits, and note what became of it."""
        for partition, batches in waiting.items():
            if len(batches) == 1:  # as most are, and two microseconds cheaper so
                [(records, acks, outcomes, place, index, context)] = batches
                try:
                    base_offset, _, append_time, start = partition.append_as_leader(records, now_ms=now_ms, acks=acks)
                except KafkaError as error:
                    outcomes[place] = _refused_by(partition, context, error)
                else:
                    outcomes[place] = new_tuple(_Outcome, (index, 0, base_offset, append_time, start, None, ()))
                continue
            for (_, _, outcomes, place, index, context), result in zip(
                batches, partition.append_all(batches, now_ms=now_ms), strict=True
            ):
                if type(result) is AppendResult:
                    base_offset, _, append_time, start = result
                    outcomes[place] = new_tuple(_Outcome, (index, 0, base_offset, append_time, start, None, ()))
                else:
                    outcomes[place] = _refused_by(partition, context, result)
        waiting.clear()

    def _sort(
        self,
        number: int,
        context: RequestContext,
        request: Any,
        waiting: dict[Partition, list[_Waiting]],
        prepared: Prepared,
    ) -> _Results:
        """Put the request's batches to those that wait for their partitions; the places of what becomes of them."""
        version = context.api_version
        acks = request.acks
        refusal = None
        if acks not in (0, 1, ALL_REPLICAS):
            refusal = _INVALID_ACKS
        elif request.transactional_id is not None:
            refusal = _NO_TRANSACTIONS
        results: _Results = []
        for topic_place, topic in enumerate(request.topic_data):
            outcomes: list[_Outcome] = []
            results.append((self._name_bytes(topic, version), outcomes))
            if refusal is not None:
                outcomes += [_failed(data.index, refusal) for data in topic.partition_data]
                continue
            name = topic.name if version < _TOPIC_IDS else self._topic_name(topic.topic_id)
            if name is None:
                outcomes += [_refused(context, name, data.index, _UNKNOWN_TOPIC_ID) for data in topic.partition_data]
                continue
            if is_internal(name) and context.client_id != ADMIN_CLIENT_ID:
                outcomes += [_refused(context, name, data.index, _INTERNAL_TOPIC) for data in topic.partition_data]
                continue
            for place, data in enumerate(topic.partition_data):
                index = data.index
                records: bytes | PreparedBatch = data.records or b""
                try:
                    if version < _ZSTD:
                        _refuse_zstd(data.records or b"")
                    if prepared:
                        records = prepared.get((number, topic_place, place), records)
                    partition = self._replicas.get(name, index)
                except KafkaError as error:
                    outcomes.append(_refused(context, name, index, error))
                    continue
                each = (records, acks, outcomes, len(outcomes), index, context)
                outcomes.append(_PENDING)
                batches = waiting.get(partition)
                if batches is None:
                    waiting[partition] = [each]
                else:
                    batches.append(each)
        return results

    async def _once_flushed(
        self, requests: Sequence[tuple[RequestContext, Any]], results: list[_Results], *, is_slow: bool
    ) -> Replies:
        """The replies, once what the requests brought is on the disk, where `flush.messages` or a slow disk ask for it.

        A batch that was there already, sent again, waits as well: its first answer may still be waiting.
        """
        began_ns = time.time_ns()
        places: list[tuple[list[_Outcome], int]] = []
        flushes: list[Awaitable[None]] = []
        pace = Pace()
        for (context, request), topics in zip(requests, results, strict=True):
            for topic, (_, outcomes) in zip(request.topic_data, topics, strict=True):
                name = topic.name if context.api_version < _TOPIC_IDS else self._topic_name(topic.topic_id)
                for place, outcome in enumerate(outcomes):
                    if outcome.error or name is None:
                        continue
                    try:
                        partition = self._replicas.get(name, outcome.partition)
                    except KafkaError as error:
                        outcomes[place] = _failed(outcome.partition, error)
                        continue
                    if is_slow:
                        self._group_commit.request(partition)
                    if is_slow or partition.awaits_flush:
                        places.append((outcomes, place))
                        flushes.append(self._group_commit.committed(partition, partition.log_end_offset))
                    if place % _FLUSHED_AT_ONCE == _FLUSHED_AT_ONCE - 1:
                        await pace.rest()
        for (outcomes, place), done in zip(places, await asyncio.gather(*flushes, return_exceptions=True), strict=True):
            if isinstance(done, KafkaError):
                outcomes[place] = _failed(outcomes[place].partition, done)
            elif done is not None:
                raise done
        ended_ns = time.time_ns()
        if is_slow:
            self._slow_disk.clock_is(ended_ns)
            if ended_ns - began_ns > STALL_NS:
                self._slow_disk.stalled(ended_ns, ended_ns - began_ns)
        return _replies(requests, results)

    @staticmethod
    def _name_bytes(topic: Any, version: int) -> bytes:
        if version >= _TOPIC_IDS:
            topic_id: UUID | None = topic.topic_id
            return bytes(16) if topic_id is None else topic_id.bytes
        name = bytearray()
        put_string(name, topic.name, flexible=version >= _FLEXIBLE)
        return bytes(name)


def _refused_by(partition: Partition, context: RequestContext, error: KafkaError) -> _Outcome:
    topic, index = partition.topic_partition
    return _refused(context, topic, index, error, partition.log_start_offset)


def _refused(
    context: RequestContext, name: str | None, index: int, error: KafkaError, log_start_offset: int = -1
) -> _Outcome:
    if error.code is not ErrorCode.unknown_topic_or_partition and not isinstance(error, NoRoomError | OfflineError):
        _refusals.refused(f"{name}-{index}", context, error)
    return _failed(index, error, log_start_offset)


def _replies(requests: Sequence[tuple[RequestContext, Any]], results: Sequence[_Results]) -> Replies:
    return [
        _reply(topics, request.acks, context.api_version)
        for (context, request), topics in zip(requests, results, strict=True)
    ]


def _reply(results: _Results, acks: int, version: int) -> RawReply | InvalidRequestError:
    if acks != 0:
        return RawReply((_encode(results, version),))
    if failed := _any_failed(results):
        # As Kafka: without an answer, the end of the connection is the only sign of failure.
        return InvalidRequestError(f"a Produce with acks=0 failed: {failed.message}")
    return NO_REPLY


def _any_failed(results: _Results) -> _Outcome | None:
    return next((outcome for _, outcomes in results for outcome in outcomes if outcome.error), None)


def _only(replies: Replies) -> RawReply:
    [reply] = replies
    if isinstance(reply, InvalidRequestError):
        raise reply
    return reply


async def _only_later(replies: Awaitable[Replies]) -> RawReply:
    return _only(await replies)


def _refuse_zstd(records: bytes) -> None:
    if (
        len(records) > _ATTRIBUTES_POSITION + 2
        and _ATTRIBUTES.unpack_from(records, _ATTRIBUTES_POSITION)[0] & 7 == Codec.ZSTD
    ):
        raise KafkaError(
            ErrorCode.unsupported_compression_type, f"zstd needs Produce version {_ZSTD} or newer; upgrade the client"
        )


_INVALID_ACKS = KafkaError(ErrorCode.invalid_required_acks, "acks must be 0, 1 or -1 (all)")
_UNKNOWN_TOPIC_ID = KafkaError(ErrorCode.unknown_topic_id)
_INTERNAL_TOPIC = KafkaError(ErrorCode.invalid_topic_exception, "only the broker itself writes to internal topics")
_NO_TRANSACTIONS = KafkaError(ErrorCode.invalid_txn_state, "no transaction is open; InitProducerId begins none here")


def _failed(index: int, error: KafkaError, log_start_offset: int = -1) -> _Outcome:
    records = error.records if isinstance(error, RecordsRefusedError) else ()
    return _Outcome(index, error.code.value, -1, -1, log_start_offset, str(error), records)


def _encode(results: _Results, version: int) -> bytearray:
    flexible = version >= _FLEXIBLE
    out = bytearray()
    put_count(out, len(results), flexible=flexible)
    for name, outcomes in results:
        out += name
        put_count(out, len(outcomes), flexible=flexible)
        for index, error, offset, append_time, start, message, record_errors in outcomes:
            if flexible and message is None:
                # no record errors (1), no message (0), no tags (0)
                out += _PARTITION_FLEXIBLE.pack(index, error, offset, append_time, start, 1, 0, 0)
            elif version < _LOG_START_OFFSET:
                out += _PARTITION_V3.pack(index, error, offset, append_time)
            else:
                out += _PARTITION.pack(index, error, offset, append_time, start)
                if version >= _RECORD_ERRORS:
                    _put_errors(out, record_errors, message, flexible=flexible)
        if flexible:
            out.append(0)
    # not throttled, and no tags
    out += b"\x00\x00\x00\x00\x00" if flexible else b"\x00\x00\x00\x00"
    return out


def _put_errors(
    out: bytearray, record_errors: Sequence[tuple[int, str]], message: str | None, *, flexible: bool
) -> None:
    put_count(out, len(record_errors), flexible=flexible)
    for place, reason in record_errors:
        out += _INT32.pack(place)
        put_string(out, reason, flexible=flexible)
        if flexible:
            out.append(0)
    if message is None:
        out += b"\x00" if flexible else b"\xff\xff"
    else:
        put_string(out, message, flexible=flexible)
    if flexible:
        out.append(0)
