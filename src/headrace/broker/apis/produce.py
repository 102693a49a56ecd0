"""Produce, the hot path for writes: validate one batch per partition, append it, and encode the reply by hand.

Layout of the reply: https://kafka.apache.org/protocol#The_Messages_Produce
"""

import asyncio
import struct
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from headrace.broker.apis.produce_answers import Outcome, Results, any_failed, failed, name_bytes, replies_to
from headrace.broker.apis.produce_transactions import TransactionVerification, Verdict, Verdicts
from headrace.broker.current_leader import LeaderOf
from headrace.broker.large_batches import NONE_LARGE, TOPIC_IDS, Large, LargeBatches, Prepared, Requests
from headrace.broker.refusals import RefusalLog
from headrace.cluster.topic_names import is_internal
from headrace.errors import ErrorCode, KafkaError
from headrace.promise import Promise
from headrace.replication.appends import ALL_REPLICAS, AppendResult, NoRoomError, OfflineError
from headrace.replication.batch_rules import PreparedBatch
from headrace.replication.partition import Partition
from headrace.replication.purgatory import Outcome as Completed
from headrace.replication.purgatory import Purgatory, Wait, all_done
from headrace.replication.replica_manager import ReplicaManager
from headrace.replication.verification import VerificationGuard
from headrace.server.context import RawReply, Reply, RequestContext
from headrace.server.dispatch import Replies
from headrace.server.frames import InvalidRequestError
from headrace.server.loop.busy_poll import SMALL_READ
from headrace.server.loop.turns import Turns
from headrace.server.runs import Executed
from headrace.slices import Pace
from headrace.storage.log.config import LogConfig
from headrace.types import TopicPartition, new_tuple
from headrace.wire.compression import Codec

ADMIN_CLIENT_ID: Final = "__admin_client"
"""The client id that may write to internal topics, as in Kafka."""
_ZSTD: Final = 7
_CURRENT_LEADER: Final = 10
_ATTRIBUTES: Final = struct.Struct(">h")
_ATTRIBUTES_POSITION: Final = 21


class _Batch(NamedTuple):
    """A batch to append, whose outcome is stored in `outcomes[place]`."""

    records: bytes | PreparedBatch
    acks: int
    outcomes: list[Outcome]
    place: int
    partition: int
    context: RequestContext
    timeout: timedelta
    guard: VerificationGuard | None


_Waiting: TypeAlias = dict[Partition, list[_Batch]]
"""Batches by partition."""


class _Incomplete(NamedTuple):
    """An appended batch, whose outcome in `outcomes[place]` is known when `completion` is done."""

    outcomes: list[Outcome]
    place: int
    partition: int
    completion: Wait
    may_overlap: bool
    """True if the client may send more before the completion."""


_PENDING: Final = Outcome(-1, 0)
_AT_ONCE: Final = 64
"""Batches for one partition to append without a pause."""

_refusals: Final = RefusalLog()


class ProduceApi:
    """Handles Produce requests, one at a time or several from one client together."""

    def __init__(
        self,
        replicas: ReplicaManager,
        topic_name: Callable[[UUID | None], str | None],
        purgatory: Purgatory,
        transactions: TransactionVerification,
        leader_of: LeaderOf | None = None,
        turns: Turns | None = None,
    ) -> None:
        """`leader_of` finds leaders on other brokers; None without others. `turns` can hold replies to followers."""
        self._leader_of = leader_of
        self._turns = turns
        self._replicas = replicas
        self._purgatory = purgatory
        self._transactions = transactions
        self._large_batches = LargeBatches(self._config_of)
        self._topic_name = topic_name
        self._many = asyncio.Lock()
        """Serializes requests with many batches, so that together they do not block the event loop."""

    def produce(self, context: RequestContext, request: Any) -> Reply | Awaitable[Reply]:
        """Append the request's batches, and reply once its `acks` setting is satisfied."""
        replies = self.produce_run([(context, request)])
        if isinstance(replies, list):
            return _only(replies)
        return replies.then(_only_done) if type(replies) is Executed else _only_later(replies)

    def produce_run(self, requests: Requests) -> Replies | Awaitable[Replies]:
        """Append the batches of consecutive requests of a client, with one write per partition.

        Return the replies in order. A failed request with acks=0 gets an InvalidRequestError: it closes the connection.
        """
        found = self._large_batches.select(requests)
        if found is NONE_LARGE:
            return self._append_run(requests, {}, None)
        large, prepared = found
        if large:
            return self._once_checked(requests, large, prepared)
        verdicts = self._transactions.verify(requests)
        if isinstance(verdicts, Awaitable):
            return self._once_verified(requests, prepared, verdicts)
        return self._append_run(requests, prepared, verdicts)

    async def _once_checked(self, requests: Requests, large: Sequence[Large], prepared: Prepared) -> Replies:
        prepared = {**prepared, **await self._large_batches.prepare(large)}
        verdicts = self._transactions.verify(requests)
        if isinstance(verdicts, Awaitable):
            return await self._once_verified(requests, prepared, verdicts)
        replies = self._append_run(requests, prepared, verdicts)
        return replies if isinstance(replies, list) else await replies

    async def _once_verified(self, requests: Requests, prepared: Prepared, verdicts: Awaitable[Verdicts]) -> Replies:
        replies = self._append_run(requests, prepared, await verdicts)
        return replies if isinstance(replies, list) else await replies

    async def produce_many(self, requests: Requests) -> Replies:
        """Like `produce_run`, for requests with many batches, with pauses for other clients."""
        large, prepared = self._large_batches.select(requests)
        if large:
            prepared = {**prepared, **await self._large_batches.prepare(large)}
        return await self._append_many(requests, prepared)

    def _config_of(self, context: RequestContext, topic: Any) -> LogConfig | None:
        """Return the config of a requested topic; None if this broker leads none of its requested partitions."""
        name = topic.name if context.api_version < TOPIC_IDS else self._topic_name(topic.topic_id)
        if name is None:
            return None
        found = (self._replicas.find(name, data.index) for data in topic.partition_data)
        return next((partition.log.config for partition in found if partition is not None), None)

    def _append_run(
        self, requests: Requests, prepared: Prepared, verdicts: Verdicts | None
    ) -> Replies | Awaitable[Replies]:
        """Like `produce_run`, with large batches already prepared and transactions verified."""
        results: list[Results] = []
        waiting: _Waiting = {}
        incomplete: list[_Incomplete] = []
        for number, (context, request) in enumerate(requests):
            verdict = None if verdicts is None else verdicts[number]
            results.append(self._collect(number, context, request, waiting, prepared, verdict))
            if request.acks == 0:
                self._append(waiting, incomplete)
                if any_failed(results[-1]):
                    requests = requests[: len(results)]  # the connection will be closed: ignore later requests
                    break
        is_lone = len(requests) == 1 and requests[0][1].acks == ALL_REPLICAS and _is_small(waiting)
        if is_lone and self._turns is not None:
            # The producer waits for the followers, so send them its records at once. Other producers may send more:
            # in the next turn of the event loop, one reply contains the records of several requests.
            self._turns.hold_replies()
            try:
                self._append(waiting, incomplete)
            finally:
                self._turns.release_replies()
        else:
            self._append(waiting, incomplete)
        answered = [(context, request.acks) for context, request in requests]
        if not incomplete:
            return replies_to(answered, results, self._topic_name)
        promises = [item.completion for item in incomplete if isinstance(item.completion, Promise)]
        if len(promises) == len(incomplete):
            return Executed(self._once_replicated(answered, results, incomplete, promises))
        replies = self._once_complete(answered, results, incomplete)
        # While the disk is slow, the client has to wait before it may send more.
        return Executed(replies) if all(item.may_overlap for item in incomplete) else replies

    async def _append_many(self, requests: Requests, prepared: Prepared) -> Replies:
        pace = Pace()
        results: list[Results] = []
        waiting: _Waiting = {}
        incomplete: list[_Incomplete] = []
        async with self._many:
            verdicts = await self._transactions.verify_many(requests)
            for number, (context, request) in enumerate(requests):
                verdict = None if verdicts is None else verdicts[number]
                results.append(self._collect(number, context, request, waiting, prepared, verdict))
                await pace.rest()
                if request.acks == 0:
                    await self._append_in_turns(waiting, incomplete, pace)
                    if any_failed(results[-1]):
                        requests = requests[: len(results)]
                        break
            await self._append_in_turns(waiting, incomplete, pace)
        return await self._once_complete(
            [(context, request.acks) for context, request in requests], results, incomplete
        )

    async def _append_in_turns(self, waiting: _Waiting, incomplete: list[_Incomplete], pace: Pace) -> None:
        for partition, batches in waiting.items():
            topic, index = partition.topic_partition
            for start in range(0, len(batches), _AT_ONCE):
                some = batches[start : start + _AT_ONCE]
                try:
                    if self._replicas.get(topic, index) is not partition:
                        raise KafkaError(
                            ErrorCode.unknown_topic_or_partition, f"{topic}-{index} was deleted during the request"
                        )
                except KafkaError as error:
                    for batch in some:
                        batch.outcomes[batch.place] = self._refused(batch.context, topic, index, error)
                else:
                    self._append({partition: some}, incomplete)
                await pace.rest()
        waiting.clear()

    def _append(self, waiting: _Waiting, incomplete: list[_Incomplete]) -> None:
        """Append waiting batches, store their outcomes, and collect those that are not complete yet."""
        began_ns = time.time_ns()
        now_ms = began_ns // 1_000_000
        for partition, batches in waiting.items():
            if len(batches) == 1:  # the common case; this saves 2 µs
                [batch] = batches
                records, acks, outcomes, place, index, context, _, guard = batch
                try:
                    base_offset, last_offset, append_time, start = partition.append_as_leader(
                        records, now_ms=now_ms, acks=acks, guard=guard
                    )
                except KafkaError as error:
                    outcomes[place] = self._refused_by(partition, context, error)
                else:
                    outcomes[place] = new_tuple(Outcome, (index, 0, base_offset, append_time, start, None, (), None))
                    if last_offset >= partition.high_watermark:
                        self._note_incomplete(partition, batch, last_offset, incomplete)
                continue
            for batch, result in zip(batches, partition.append_all(batches, now_ms=now_ms), strict=True):
                _, _, outcomes, place, index, context, _, _ = batch
                if type(result) is AppendResult:
                    base_offset, last_offset, append_time, start = result
                    outcomes[place] = new_tuple(Outcome, (index, 0, base_offset, append_time, start, None, (), None))
                    if last_offset >= partition.high_watermark:
                        self._note_incomplete(partition, batch, last_offset, incomplete)
                else:
                    outcomes[place] = self._refused_by(partition, context, result)
        if self._purgatory.slow_disk.wrote(began_ns):
            for partition, batches in waiting.items():
                completion = self._purgatory.flushed(partition, partition.log_end_offset)
                incomplete += [
                    _Incomplete(item.outcomes, item.place, item.partition, completion, False)
                    for item in batches
                    if not item.outcomes[item.place].error
                ]
        waiting.clear()

    def _note_incomplete(
        self, partition: Partition, batch: _Batch, last_offset: int, incomplete: list[_Incomplete]
    ) -> None:
        """Add the batch to `incomplete` if its producer cannot be answered yet. A duplicate waits like its original."""
        completion = self._purgatory.completion(
            partition, last_offset + 1, batch.acks, timeout_s=batch.timeout.total_seconds()
        )
        if completion is not None:
            has_followers = partition.followers is not None
            incomplete.append(_Incomplete(batch.outcomes, batch.place, batch.partition, completion, has_followers))

    async def _once_complete(
        self,
        answered: Sequence[tuple[RequestContext, int]],
        results: Sequence[Results],
        incomplete: Sequence[_Incomplete],
    ) -> Replies:
        """Return the replies when all appends have completed or failed."""
        if incomplete:
            ends = await asyncio.gather(*(item.completion for item in incomplete))
            _note_failures(incomplete, ends)
        return replies_to(answered, results, self._topic_name)

    def _once_replicated(
        self,
        answered: Sequence[tuple[RequestContext, int]],
        results: Sequence[Results],
        incomplete: Sequence[_Incomplete],
        completions: Sequence[Promise[Completed]],
    ) -> Promise[Replies]:
        """Like `_once_complete`, but in the iteration of the event loop in which the last of `completions` is done."""

        def replies(_: object) -> Replies:
            _note_failures(incomplete, [completion.result() for completion in completions])
            return replies_to(answered, results, self._topic_name)

        return (completions[0] if len(completions) == 1 else all_done(completions)).then(replies)

    def _collect(
        self,
        number: int,
        context: RequestContext,
        request: Any,
        waiting: _Waiting,
        prepared: Prepared,
        verdict: Verdict | None,
    ) -> Results:
        """Add the request's batches to `waiting`, and return the list of their future outcomes."""
        version = context.api_version
        acks = request.acks
        timeout = request.timeout
        refusal = None
        if acks not in (0, 1, ALL_REPLICAS):
            refusal = _INVALID_ACKS
        elif verdict is not None:
            refusal = verdict.refusal
        results: Results = []
        for topic_place, topic in enumerate(request.topic_data):
            outcomes: list[Outcome] = []
            results.append((name_bytes(topic, version), outcomes))
            name = topic.name if version < TOPIC_IDS else self._topic_name(topic.topic_id)
            if refusal is not None:
                outcomes += [self._refused(context, name, data.index, refusal) for data in topic.partition_data]
                continue
            if name is None:
                outcomes += [
                    self._refused(context, name, data.index, _UNKNOWN_TOPIC_ID) for data in topic.partition_data
                ]
                continue
            if is_internal(name) and context.client_id != ADMIN_CLIENT_ID:
                outcomes += [
                    self._refused(context, name, data.index, _error_of_internal(verdict, name, data.index))
                    for data in topic.partition_data
                ]
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
                    guard = None if verdict is None else _guard_of(verdict, name, index)
                except KafkaError as error:
                    outcomes.append(self._refused(context, name, index, error))
                    continue
                batch = new_tuple(_Batch, (records, acks, outcomes, len(outcomes), index, context, timeout, guard))
                outcomes.append(_PENDING)
                batches = waiting.get(partition)
                if batches is None:
                    waiting[partition] = [batch]
                else:
                    batches.append(batch)
        return results

    def _refused_by(self, partition: Partition, context: RequestContext, error: KafkaError) -> Outcome:
        topic, index = partition.topic_partition
        return self._refused(context, topic, index, error, partition.log_start_offset)

    def _refused(
        self, context: RequestContext, name: str | None, index: int, error: KafkaError, log_start_offset: int = -1
    ) -> Outcome:
        leader = None
        if error.code is ErrorCode.not_leader_or_follower:
            if name is not None and self._leader_of is not None and context.api_version >= _CURRENT_LEADER:
                leader = self._leader_of(name, index, context.listener)
        elif error.code is not ErrorCode.unknown_topic_or_partition and not isinstance(
            error, NoRoomError | OfflineError
        ):
            partition = f"partition {index} of an unknown topic" if name is None else f"{name}-{index}"
            _refusals.refused(partition, context, error)
        return failed(index, error, log_start_offset, leader)


def _error_of_internal(verdict: Verdict | None, name: str, index: int) -> KafkaError:
    """Return the error for a write to an internal topic. As in Kafka, an error of the verification comes first."""
    found = None if verdict is None else verdict.errors.get(TopicPartition(name, index))
    return _INTERNAL_TOPIC if found is None else found


def _is_small(waiting: _Waiting) -> bool:
    """Return True for a single batch of at most SMALL_READ bytes."""
    if len(waiting) != 1:
        return False
    [[batch, *others]] = waiting.values()
    return not others and not isinstance(batch.records, PreparedBatch) and len(batch.records) <= SMALL_READ


def _note_failures(incomplete: Sequence[_Incomplete], ends: Sequence[Completed]) -> None:
    for (outcomes, place, partition, _, _), error in zip(incomplete, ends, strict=True):
        if error is not None:
            outcomes[place] = failed(partition, error)


def _only_done(replies: Promise[Replies]) -> RawReply:
    return _only(replies.result())


def _only(replies: Replies) -> RawReply:
    [reply] = replies
    if isinstance(reply, InvalidRequestError):
        raise reply
    return reply


async def _only_later(replies: Awaitable[Replies]) -> RawReply:
    return _only(await replies)


def _guard_of(verdict: Verdict, name: str, index: int) -> VerificationGuard | None:
    topic_partition = new_tuple(TopicPartition, (name, index))
    error = verdict.errors.get(topic_partition)
    if error is not None:
        raise error
    return verdict.guards.get(topic_partition)


def _refuse_zstd(records: bytes) -> None:
    if (
        len(records) > _ATTRIBUTES_POSITION + 2
        and _ATTRIBUTES.unpack_from(records, _ATTRIBUTES_POSITION)[0] & 7 == Codec.ZSTD
    ):
        raise KafkaError(
            ErrorCode.unsupported_compression_type,
            f"zstd requires Produce version {_ZSTD} or newer: upgrade the client",
        )


_INVALID_ACKS = KafkaError(ErrorCode.invalid_required_acks, "acks must be 0, 1 or -1 (all)")
_UNKNOWN_TOPIC_ID = KafkaError(ErrorCode.unknown_topic_id)
_INTERNAL_TOPIC = KafkaError(ErrorCode.invalid_topic_exception, "only the broker may write to internal topics")
