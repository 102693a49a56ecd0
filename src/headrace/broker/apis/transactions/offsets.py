"""TxnOffsetCommit: commit offsets of a group within a transaction (KIP-98, KIP-447)."""

import inspect
from collections.abc import Callable
from typing import Any, Final

from headrace.clock import now_ms
from headrace.cluster.topic_names import GROUP_OFFSETS
from headrace.coordinator.group_coordinator import GroupCoordinator
from headrace.coordinator.groups.group import OffsetToCommit
from headrace.coordinator.groups.records.offsets import NO_LEADER_EPOCH, CommittedOffset
from headrace.coordinator.groups.subscriptions import Topics
from headrace.coordinator.runtime.shards import AS_COORDINATOR_ERROR
from headrace.coordinator.transactions.states import ProducerIdentity
from headrace.errors import ErrorCode, KafkaError
from headrace.replication.partition import Partition
from headrace.replication.purgatory import Purgatory
from headrace.replication.replica_manager import ReplicaManager
from headrace.replication.verification import UNVERIFIED, TransactionVerifier, VerificationGuard
from headrace.server.context import Handler, Reply, RequestContext
from headrace.slices import Steps, finish
from headrace.types import Request
from headrace.wire.apis import ApiKey

_PER_SLICE: Final = 256
_MAX_COMMIT: Final = 15_000
"""Maximum offsets in one commit, as in OffsetCommit: they must fit into one batch."""
_MEMBERS_SINCE: Final = 3
_LEADER_EPOCHS_SINCE: Final = 2
_ABORTABLE_SINCE: Final = 4
_ADDS_SINCE: Final = 5
"""First version in which the broker adds the partition of `__consumer_offsets` to the transaction."""
_LATER: Final = frozenset(
    {
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
    }
)


class TransactionalOffsetsApi:
    """Handles TxnOffsetCommit: commits offsets within transactions."""

    def __init__(
        self,
        groups: Callable[[], GroupCoordinator],
        topics: Topics,
        verifier: TransactionVerifier,
        replicas: ReplicaManager,
        purgatory: Purgatory,
        partition_count: Callable[[str], int],
        offsets_partition: Callable[[str], int],
        is_verified: Callable[[], bool],
    ) -> None:
        """`is_verified` returns transaction.partition.verification.enable, which applies before version 5."""
        self._groups = groups
        self._topics = topics
        self._verifier = verifier
        self._replicas = replicas
        self._purgatory = purgatory
        self._partition_count = partition_count
        self._offsets_partition = offsets_partition
        self._is_verified = is_verified

    def routes(self) -> dict[ApiKey, Handler]:
        return {ApiKey.TXN_OFFSET_COMMIT: self.commit}

    async def commit(self, context: RequestContext, request: Request) -> Reply:
        """Write all offsets in one batch of the transaction. The reply has an error code per partition."""
        offsets, answers, places = await finish(self._read(context, request))
        if offsets:
            try:
                if len(offsets) > _MAX_COMMIT:
                    raise KafkaError(ErrorCode.invalid_commit_offset_size)
                codes = await self._commit(context, request, offsets)
            except KafkaError as error:
                codes = [_client_error(error.code, context)] * len(offsets)
            for place, code in zip(places, codes, strict=True):
                place["error_code"] = code
        return {"topics": answers}

    def _read(
        self, context: RequestContext, request: Request
    ) -> Steps[tuple[list[OffsetToCommit], list[dict[str, Any]], list[dict[str, Any]]]]:
        committed_ms = now_ms()
        topics = self._topics
        offsets: list[OffsetToCommit] = []
        answers: list[dict[str, Any]] = []
        places: list[dict[str, Any]] = []
        for topic in request.topics:
            topic_id, count = topics.describe(topic.name) or (b"", 0)
            partitions = []
            for number, partition in enumerate(topic.partitions):
                index = partition.partition_index
                answer = {"partition_index": index, "error_code": ErrorCode.unknown_topic_or_partition}
                partitions.append(answer)
                if 0 <= index < count:
                    epoch = partition.committed_leader_epoch if context.api_version >= _LEADER_EPOCHS_SINCE else None
                    value = CommittedOffset(
                        partition.committed_offset,
                        NO_LEADER_EPOCH if epoch is None else epoch,
                        partition.committed_metadata or "",
                        committed_ms,
                        topic_id=topic_id,
                    )
                    offsets.append((topic.name, index, value))
                    places.append(answer)
                if number % _PER_SLICE == _PER_SLICE - 1:
                    yield
            if partitions:  # as in Kafka, omit topics without partitions
                answers.append({"name": topic.name, "partitions": partitions})
            yield
        return offsets, answers, places

    async def _commit(
        self, context: RequestContext, request: Request, offsets: list[OffsetToCommit]
    ) -> list[ErrorCode]:
        if not request.group_id:
            raise KafkaError(ErrorCode.invalid_group_id, "The group id must not be empty.")
        index = self._offsets_partition(request.group_id)
        try:
            partition = self._replicas.get(GROUP_OFFSETS, index)
        except KafkaError as error:
            raise KafkaError(ErrorCode.not_coordinator, str(error)) from error
        guard = await self._verify_first(context, request, partition)
        if self._replicas.find(GROUP_OFFSETS, index) is not partition:
            raise KafkaError(ErrorCode.not_coordinator, "the group has moved to another coordinator")
        has_members = context.api_version >= _MEMBERS_SINCE
        codes = self._groups().commit_transactional(
            request.group_id,
            request.member_id if has_members else "",
            request.group_instance_id if has_members else None,
            request.generation_id if has_members else -1,
            offsets,
            producer=ProducerIdentity(request.producer_id, request.producer_epoch),
            append=lambda batch, time_ms: partition.append_own(batch, time_ms, guard),
        )
        end_offset = partition.log_end_offset
        if partition.high_watermark < end_offset:
            failure = await self._purgatory.committed(partition, end_offset)
            if failure is not None:
                raise KafkaError(ErrorCode.coordinator_not_available, str(failure)) from failure
        return codes

    async def _verify_first(
        self, context: RequestContext, request: Request, partition: Partition
    ) -> VerificationGuard | None:
        """Verify the transaction with its coordinator, unless it is open in the partition. Raises KafkaError."""
        adds = context.api_version >= _ADDS_SINCE
        guard = partition.start_verification(request.producer_id, request.producer_epoch, adds=adds, now_ms=now_ms())
        if guard is None:
            return None
        if not adds and not self._is_verified():
            return UNVERIFIED
        where = partition.topic_partition
        verified = self._verifier.verify(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            [where],
            adds=adds,
            client=context.sender,
        )
        codes = await verified if inspect.isawaitable(verified) else verified
        code = codes.get(where, ErrorCode.none)
        if code is ErrorCode.network_exception:
            raise KafkaError(ErrorCode.coordinator_load_in_progress)
        if code in _LATER or (code is ErrorCode.concurrent_transactions and not adds):
            raise KafkaError(ErrorCode.coordinator_not_available)
        if code is not ErrorCode.none:
            raise KafkaError(code)
        return guard


def _client_error(code: ErrorCode, context: RequestContext) -> ErrorCode:
    """Convert a partition error to the coordinator error that the client's request version supports."""
    code = AS_COORDINATOR_ERROR.get(code, code)
    if code is ErrorCode.producer_fenced:
        return ErrorCode.invalid_producer_epoch
    if code is ErrorCode.transaction_abortable and context.api_version < _ABORTABLE_SINCE:
        return ErrorCode.invalid_txn_state
    if code is ErrorCode.group_id_not_found:
        return ErrorCode.illegal_generation
    return code
