"""InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn and EndTxn."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from typing import Any, Final

from headrace.cluster.topic_names import GROUP_OFFSETS, is_internal
from headrace.coordinator.transaction_coordinator import TransactionCoordinator
from headrace.coordinator.transactions.machine import NeedsProducerIdError
from headrace.coordinator.transactions.states import NOBODY, ProducerIdentity
from headrace.errors import ErrorCode, KafkaError
from headrace.server.context import Answer, Handler, Reply, RequestContext
from headrace.slices import Steps, finish, in_slices
from headrace.types import Request, TopicPartition
from headrace.wire.apis import ApiKey
from headrace.wire.encoder import Fields

_MILLISECOND: Final = timedelta(milliseconds=1)
_PER_SLICE: Final = 256
"""Partitions of a request to handle without a pause."""
_BATCHED_SINCE: Final = 4
"""First version of AddPartitionsToTxn with several transactions."""
_NEXT_EPOCH_SINCE: Final = 5
"""First version of EndTxn that returns the next epoch."""
_FENCED_SINCE: Final = {ApiKey.INIT_PRODUCER_ID: 4, ApiKey.ADD_PARTITIONS_TO_TXN: 2}
"""First versions with PRODUCER_FENCED instead of INVALID_PRODUCER_EPOCH; 2 for other requests."""


class TransactionApis:
    """Handles the requests of transactional producers. `partition_count` returns 0 for an unknown topic."""

    def __init__(
        self,
        coordinator: TransactionCoordinator,
        *,
        partition_count: Callable[[str], int],
        offsets_partition: Callable[[str], int],
        more_producer_ids: Callable[[], Awaitable[None]],
    ) -> None:
        self._coordinator = coordinator
        self._partition_count = partition_count
        self._offsets_partition = offsets_partition
        self._more_producer_ids = more_producer_ids

    def routes(self) -> dict[ApiKey, Handler]:
        return {
            ApiKey.INIT_PRODUCER_ID: self.init_producer_id,
            ApiKey.ADD_PARTITIONS_TO_TXN: self.add_partitions,
            ApiKey.ADD_OFFSETS_TO_TXN: self.add_offsets,
            ApiKey.END_TXN: self.end,
        }

    async def init_producer_id(self, context: RequestContext, request: Request) -> Reply:
        """Return the id and epoch of a transactional producer (KIP-98, KIP-360)."""
        producer = ProducerIdentity(getattr(request, "producer_id", -1), getattr(request, "producer_epoch", -1))

        def ask() -> ProducerIdentity:
            return self._coordinator.init_producer_id(
                request.transactional_id,
                None if producer == NOBODY else producer,
                request.transaction_timeout // _MILLISECOND,
                has_two_phases=getattr(request, "enable2_pc", False),
                keeps_prepared=getattr(request, "keep_prepared_txn", False),
            )

        answer, error = await self._with_ids(ask)
        if answer is not None:
            self._coordinator.note_client(request.transactional_id, context.sender)
        code = error or await self._committed(request.transactional_id)
        if code is not ErrorCode.none or answer is None:
            return {"error_code": _client_error(code, context), "producer_id": -1, "producer_epoch": -1}
        return {"error_code": code, "producer_id": answer.producer_id, "producer_epoch": answer.epoch}

    async def _with_ids(self, ask: Callable[[], ProducerIdentity]) -> tuple[ProducerIdentity | None, ErrorCode]:
        while True:
            try:
                return ask(), ErrorCode.none
            except NeedsProducerIdError:
                try:
                    await self._more_producer_ids()
                except KafkaError as error:
                    return None, error.code
            except KafkaError as error:
                return None, error.code

    async def _committed(self, name: str) -> ErrorCode:
        """Wait until the last record of a transactional id is committed. Return the error, if any."""
        waiting = self._coordinator.committed(name)
        error = None if waiting is None else await waiting
        return ErrorCode.none if error is None else ErrorCode.coordinator_not_available

    def _once_committed(self, name: str, error: ErrorCode, answer: Callable[[ErrorCode], Fields]) -> Answer:
        """Reply when the last record of a transactional id is committed; at once if it is, or on an error."""
        waiting = None if error is not ErrorCode.none else self._coordinator.committed(name)
        if waiting is None:
            return answer(error)
        return _later(waiting, answer)

    # AddPartitionsToTxn

    def add_partitions(self, context: RequestContext, request: Request) -> Answer:
        """Add partitions to transactions, or verify that they have been added (KIP-98, KIP-890)."""
        if context.api_version >= _BATCHED_SINCE:
            return in_slices(self._add_batched(context, request))
        return in_slices(self._add_one(context, request))

    def _add_one(self, context: RequestContext, request: Request) -> Steps[Any]:
        name = request.v3_and_below_transactional_id
        topics = request.v3_and_below_topics
        producer = ProducerIdentity(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
        errors, partitions = yield from self._checked(topics, may_be_internal=False)
        code = ErrorCode.none
        if not errors:
            code = _client_error(self._add(name, producer, partitions, context), context)

        waiting = None if errors or code is not ErrorCode.none else self._coordinator.committed(name)
        if waiting is not None:
            return _results_later(waiting, topics)
        return {"results_by_topic_v3_and_below": (yield from _results(topics, errors, code))}

    def _add_batched(self, context: RequestContext, request: Request) -> Steps[Any]:
        answers: list[Fields] = []
        waits: list[asyncio.Future[KafkaError | None]] = []
        for transaction in request.transactions:
            producer = ProducerIdentity(transaction.producer_id, transaction.producer_epoch)
            errors, partitions = yield from self._checked(transaction.topics, may_be_internal=True)
            code = ErrorCode.none
            if errors:
                pass
            elif transaction.verify_only:
                errors = self._coordinator.verify(transaction.transactional_id, producer, partitions)
            else:
                code = _client_error(self._add(transaction.transactional_id, producer, partitions, context), context)
                waiting = self._coordinator.committed(transaction.transactional_id) if code is ErrorCode.none else None
                if waiting is not None:
                    waits.append(waiting)
            results = yield from _results(transaction.topics, errors, code)
            answers.append({"transactional_id": transaction.transactional_id, "topic_results": results})
            yield
        answer = {"error_code": ErrorCode.none, "results_by_transaction": answers}
        return _all_committed(waits, answer) if waits else answer

    def _add(
        self,
        name: str,
        producer: ProducerIdentity,
        partitions: frozenset[TopicPartition],
        context: RequestContext,
    ) -> ErrorCode:
        is_from_broker = context.api_key == ApiKey.ADD_PARTITIONS_TO_TXN and context.api_version >= _BATCHED_SINCE
        try:
            self._coordinator.add_partitions(name, producer, partitions, client_version=2 if is_from_broker else 0)
        except KafkaError as error:
            return error.code
        if not is_from_broker:
            self._coordinator.note_client(name, context.sender)
        return ErrorCode.none

    def _checked(
        self, topics: Iterable[Any], *, may_be_internal: bool
    ) -> Steps[tuple[dict[TopicPartition, ErrorCode], frozenset[TopicPartition]]]:
        """Return errors by partition, and the partitions to add: all of them, or none if there are errors.

        If one partition has an error, the valid ones get OPERATION_NOT_ATTEMPTED.
        """
        errors: dict[TopicPartition, ErrorCode] = {}
        partitions: list[TopicPartition] = []
        for topic in topics:
            is_refused = not may_be_internal and is_internal(topic.name)
            count = self._partition_count(topic.name)
            for index in topic.partitions:
                partition = TopicPartition(topic.name, index)
                partitions.append(partition)
                if is_refused:
                    errors[partition] = ErrorCode.topic_authorization_failed
                elif not 0 <= index < count:
                    errors[partition] = ErrorCode.unknown_topic_or_partition
                if len(partitions) % _PER_SLICE == 0:
                    yield
        if not errors:
            return errors, frozenset(partitions)
        for number, partition in enumerate(partitions, 1):
            errors.setdefault(partition, ErrorCode.operation_not_attempted)
            if number % _PER_SLICE == 0:
                yield
        return errors, frozenset()

    # AddOffsetsToTxn, EndTxn

    def add_offsets(self, context: RequestContext, request: Request) -> Answer:
        """Add the group's partition of `__consumer_offsets` to the transaction (KIP-98)."""
        name = request.transactional_id
        producer = ProducerIdentity(request.producer_id, request.producer_epoch)
        partition = TopicPartition(GROUP_OFFSETS, self._offsets_partition(request.group_id))
        code = _client_error(self._add(name, producer, frozenset({partition}), context), context)
        return self._once_committed(name, code, lambda code: {"error_code": code})

    def end(self, context: RequestContext, request: Request) -> Answer:
        """Commit or abort a transaction (KIP-98); since version 5 the reply contains the next epoch (KIP-890)."""
        name = request.transactional_id
        producer = ProducerIdentity(request.producer_id, request.producer_epoch)
        client_version = 2 if context.api_version >= _NEXT_EPOCH_SINCE else 0

        def ask() -> ProducerIdentity:
            return self._coordinator.end(name, producer, commit=request.committed, client_version=client_version)

        try:
            following = ask()
        except NeedsProducerIdError:
            return self._end_later(context, name, ask)
        except KafkaError as error:
            return _end_reply(context, NOBODY, error.code)
        return self._once_committed(name, ErrorCode.none, lambda code: _end_reply(context, following, code))

    async def _end_later(self, context: RequestContext, name: str, ask: Callable[[], ProducerIdentity]) -> Reply:
        """End the transaction when a producer id is available."""
        following, error = await self._with_ids(ask)
        return _end_reply(context, following or NOBODY, error or await self._committed(name))


def _end_reply(context: RequestContext, following: ProducerIdentity, code: ErrorCode) -> Fields:
    if code is not ErrorCode.none:
        following = NOBODY
    return {
        "error_code": _client_error(code, context),
        "producer_id": following.producer_id,
        "producer_epoch": following.epoch,
    }


def _client_error(code: ErrorCode, context: RequestContext) -> ErrorCode:
    """Convert the error to one that the client's version supports."""
    if code is ErrorCode.producer_fenced and context.api_version < _FENCED_SINCE.get(ApiKey(context.api_key), 2):
        return ErrorCode.invalid_producer_epoch
    return code


def _results(
    topics: Iterable[Any], errors: dict[TopicPartition, ErrorCode], otherwise: ErrorCode
) -> Steps[list[dict[str, Any]]]:
    results = []
    for topic in topics:
        partitions = []
        for number, index in enumerate(topic.partitions, 1):
            code = errors.get(TopicPartition(topic.name, index), otherwise)
            partitions.append({"partition_index": index, "partition_error_code": code})
            if number % _PER_SLICE == 0:
                yield
        results.append({"name": topic.name, "results_by_partition": partitions})
    return results


async def _later(waiting: "asyncio.Future[KafkaError | None]", answer: Callable[[ErrorCode], Fields]) -> Fields:
    return answer(ErrorCode.none if await waiting is None else ErrorCode.coordinator_not_available)


async def _results_later(waiting: "asyncio.Future[KafkaError | None]", topics: Iterable[Any]) -> Fields:
    code = ErrorCode.none if await waiting is None else ErrorCode.coordinator_not_available
    return {"results_by_topic_v3_and_below": await finish(_results(topics, {}, code))}


async def _all_committed(waits: "list[asyncio.Future[KafkaError | None]]", answer: Fields) -> Fields:
    for waiting in waits:
        if await waiting is not None:
            raise KafkaError(ErrorCode.coordinator_not_available)
    return answer
