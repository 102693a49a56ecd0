"""Verify transactional batches of Produce requests with the coordinator before the append.

Most need no verification, because the transaction is already open in the partition (KIP-98, KIP-890).
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from struct import Struct
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from headrace.broker.large_batches import Requests
from headrace.clock import now_ms
from headrace.config import BrokerConfig
from headrace.errors import ErrorCode, KafkaError
from headrace.replication.replica_manager import ReplicaManager
from headrace.replication.verification import UNVERIFIED, TransactionVerifier, VerificationGuard, Verified
from headrace.server.context import RequestContext
from headrace.slices import Steps, chunks, finish
from headrace.types import TopicPartition, new_tuple
from headrace.wire.batch import HEADER_SIZE, TRANSACTIONAL_FLAG

_TOPIC_IDS: Final = 13
_ADDS: Final = 12
"""First version of Produce that adds partitions to the transaction (`transaction.version` 2)."""
_ABORTABLE: Final = 11
"""First version with TRANSACTION_ABORTABLE."""
_FLAGS: Final = 22
_PRODUCER: Final = Struct(">qhi")
"""Id, epoch and base sequence in the header of a batch."""
_PRODUCER_POSITION: Final = 43
_PER_SLICE: Final = 64
"""Partitions to handle without a pause."""

_RETRIABLE: Final = frozenset(
    {
        ErrorCode.network_exception,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
    }
)


class Verdict(NamedTuple):
    """The result of verifying one request: its errors, and the guards for its appends."""

    refusal: KafkaError | None
    """Refuses the whole request."""
    errors: Mapping[TopicPartition, KafkaError]
    guards: Mapping[TopicPartition, VerificationGuard]


Verdicts: TypeAlias = Sequence[Verdict | None]
"""Verdicts by request; None for a request without transactional batches."""


class _Question(NamedTuple):
    """The key of a verification; verifications of several requests with equal keys are combined."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    adds: bool
    client: str
    """The sender, for the log."""


class _Begun(NamedTuple):
    """A request whose verification has begun; `question` is None if verification is disabled."""

    question: _Question | None
    version: int
    errors: dict[TopicPartition, KafkaError]
    guards: dict[TopicPartition, VerificationGuard]


class TransactionVerification:
    """Verifies the transactional batches in runs of Produce requests."""

    def __init__(
        self,
        replicas: ReplicaManager,
        topic_name: Callable[[UUID | None], str | None],
        verifier: TransactionVerifier,
        config: BrokerConfig,
    ) -> None:
        self._replicas = replicas
        self._topic_name = topic_name
        self._verifier = verifier
        self._config = config

    def verify(self, requests: Requests) -> Verdicts | Awaitable[Verdicts] | None:
        """Return the verdicts on several requests; None if they contain no transactional batches."""
        if not any(_transactional(topic) for _, request in requests for topic in request.topic_data):
            return None
        begun = [self._begin(context, request) for context, request in requests]
        asked = _questions(begun)
        if not asked:
            return [_verdict(item, {}) for item in begun]
        answers = {question: self._ask(question, partitions) for question, partitions in asked.items()}
        known: dict[_Question, Verified] = {}
        for question, answer in answers.items():
            if isinstance(answer, Awaitable) or _is_concurrent((question, answer)):
                return self._verify_later(begun, asked, answers)
            known[question] = answer
        return [_verdict(item, known) for item in begun]

    async def verify_many(self, requests: Requests) -> Verdicts | None:
        """Like `verify`, for requests with many partitions, with pauses for other clients."""
        begun = [await finish(self._begin_many(context, request)) for context, request in requests]
        if not any(begun):
            return None
        asked = _questions(begun)
        answers = {question: self._ask(question, partitions) for question, partitions in asked.items()}
        return await self._verify_later(begun, asked, answers)

    async def _verify_later(
        self,
        begun: Sequence[_Begun | Verdict | None],
        asked: Mapping[_Question, Sequence[TopicPartition]],
        answers: Mapping[_Question, Verified | Awaitable[Verified]],
    ) -> Verdicts:
        known = {question: await _answer(answer) for question, answer in answers.items()}
        backoff_s = self._config.add_partitions_to_txn_retry_backoff_ms / 1000
        deadline = time.monotonic() + self._config.add_partitions_to_txn_retry_backoff_max_ms / 1000
        while time.monotonic() < deadline and (again := [key for key, _ in filter(_is_concurrent, known.items())]):
            # The previous transaction is ending. It usually ends before a client would retry.
            await asyncio.sleep(backoff_s)
            for question in again:
                known[question] = await _answer(self._ask(question, asked[question]))
        return [_verdict(item, known) for item in begun]

    def _ask(self, question: _Question, partitions: Sequence[TopicPartition]) -> Verified | Awaitable[Verified]:
        transactional_id, producer_id, producer_epoch, adds, client = question
        return self._verifier.verify(
            transactional_id, producer_id, producer_epoch, partitions, adds=adds, client=client
        )

    def _begin(self, context: RequestContext, request: Any) -> _Begun | Verdict | None:
        """Begin to verify the transactional batches of a request.

        Return None for a request without transactional batches, or a verdict for an invalid request.
        """
        found = _Batches()
        for topic in request.topic_data:
            self._gather(context, request, topic, topic.partition_data, found)
        begun = self._begun(context, request, found)
        if isinstance(begun, _Begun):
            self._start(begun, found.first)
        return begun

    def _begin_many(self, context: RequestContext, request: Any) -> Steps[_Begun | Verdict | None]:
        """Like `_begin`, in steps."""
        found = _Batches()
        for topic in request.topic_data:
            yield
            for some in chunks(topic.partition_data, _PER_SLICE):
                self._gather(context, request, topic, some, found)
                yield
        begun = self._begun(context, request, found)
        if isinstance(begun, _Begun):
            for some in chunks(found.first, _PER_SLICE):
                self._start(begun, {partition: found.first[partition] for partition in some})
                yield
        return begun

    def _gather(
        self, context: RequestContext, request: Any, topic: Any, partition_data: Iterable[Any], found: "_Batches"
    ) -> None:
        """Add a topic's transactional batches to `found`."""
        name = topic.name if context.api_version < _TOPIC_IDS else self._topic_name(topic.topic_id)
        for data in partition_data:
            records = data.records
            if not records or len(records) <= _FLAGS or not records[_FLAGS] & TRANSACTIONAL_FLAG:
                continue
            if request.transactional_id is None:
                found.is_nameless = True
                return
            if name is None or len(records) < HEADER_SIZE:
                continue  # the append reports it
            producer_id, producer_epoch, sequence = _PRODUCER.unpack_from(records, _PRODUCER_POSITION)
            if producer_id < 0:
                continue
            found.producers.add((producer_id, producer_epoch))
            found.first.setdefault(new_tuple(TopicPartition, (name, data.index)), sequence)

    def _begun(self, context: RequestContext, request: Any, found: "_Batches") -> _Begun | Verdict | None:
        if found.is_nameless:
            return _NO_TRANSACTIONAL_ID
        if not found.producers:
            return None
        if len(found.producers) > 1:
            return _SEVERAL_PRODUCERS
        version = context.api_version
        adds = version >= _ADDS
        if not adds and not self._config.transaction_partition_verification_enable:
            return new_tuple(_Begun, (None, version, {}, dict.fromkeys(found.first, UNVERIFIED)))
        [(producer_id, producer_epoch)] = found.producers
        asked = request.transactional_id, producer_id, producer_epoch, adds, context.sender
        question = new_tuple(_Question, asked)
        return new_tuple(_Begun, (question, version, {}, {}))

    def _start(self, begun: _Begun, first: Mapping[TopicPartition, int]) -> None:
        """Start to verify partitions; `first` has their first sequence numbers. Add guards and errors to `begun`."""
        question, _, errors, guards = begun
        if question is None:
            return
        _, producer_id, producer_epoch, adds, _ = question
        now = now_ms()
        for topic_partition, sequence in first.items():
            partition = self._replicas.find(*topic_partition)
            if partition is None:
                continue  # the append reports it
            try:
                guard = partition.start_verification(producer_id, producer_epoch, sequence, adds=adds, now_ms=now)
            except KafkaError as error:
                errors[topic_partition] = error
                continue
            if guard is not None:
                guards[topic_partition] = guard


class _Batches:
    """The transactional batches of a request."""

    __slots__ = ("first", "is_nameless", "producers")

    def __init__(self) -> None:
        self.first: dict[TopicPartition, int] = {}
        """The sequence number of each partition's first batch."""
        self.producers: set[tuple[int, int]] = set()
        """Producer ids and epochs."""
        self.is_nameless = False
        """True if the request has transactional batches, but no transactional id."""


def _transactional(topic: Any) -> bool:
    for data in topic.partition_data:
        records = data.records
        if records and len(records) > _FLAGS and records[_FLAGS] & TRANSACTIONAL_FLAG:
            return True
    return False


def _questions(begun: Iterable[_Begun | Verdict | None]) -> dict[_Question, list[TopicPartition]]:
    asked: dict[_Question, dict[TopicPartition, VerificationGuard]] = {}
    for item in begun:
        if isinstance(item, _Begun) and item.question is not None and item.guards:
            asked.setdefault(item.question, {}).update(item.guards)
    return {question: list(partitions) for question, partitions in asked.items()}


async def _answer(answer: Verified | Awaitable[Verified]) -> Verified:
    return answer if isinstance(answer, Mapping) else await answer


def _is_concurrent(answered: tuple[_Question, Verified]) -> bool:
    question, answer = answered
    return question.adds and ErrorCode.concurrent_transactions in answer.values()


def _verdict(begun: _Begun | Verdict | None, answers: Mapping[_Question, Verified]) -> Verdict | None:
    if not isinstance(begun, _Begun):
        return begun
    question, version, errors, guards = begun
    answer = {} if question is None else answers.get(question, {})
    if answer:
        for topic_partition in guards:
            code = answer.get(topic_partition, ErrorCode.none)
            if code is not ErrorCode.none:
                errors[topic_partition] = _producer_error(code, version)
    return new_tuple(Verdict, (None, errors, guards))


def _producer_error(code: ErrorCode, version: int) -> KafkaError:
    if code is ErrorCode.producer_fenced:
        code = ErrorCode.invalid_producer_epoch
    elif code is ErrorCode.transaction_abortable and version < _ABORTABLE:
        code = ErrorCode.invalid_txn_state
    if code is ErrorCode.invalid_txn_state:
        return KafkaError(code, "Partition was not added to the transaction")
    if code in _RETRIABLE or (code is ErrorCode.concurrent_transactions and version < _ADDS):
        # As in Kafka: producers retry this error, but not the coordinator's errors.
        return KafkaError(
            ErrorCode.not_enough_replicas,
            f"Unable to verify the partition has been added to the transaction. Underlying error: {code.name.upper()}",
        )
    return KafkaError(code)


_NO_TRANSACTIONAL_ID: Final = Verdict(
    KafkaError(ErrorCode.transactional_id_authorization_failed, "a transactional batch needs a transactional id"),
    {},
    {},
)
_SEVERAL_PRODUCERS: Final = Verdict(
    KafkaError(ErrorCode.invalid_producer_id_mapping, "Transactional records contained more than one producer ID"),
    {},
    {},
)
